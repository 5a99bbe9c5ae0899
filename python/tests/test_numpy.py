"""Without PyTorch: `plait.ops` on NumPy arrays has the bits of `plait.ops` on tensors."""

import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import bits
from torch import Tensor

import plait
from plait import ops
from plait.ops import _numpy

T, E, K, H, N = 7, 4, 2, 6, 5

SCRIPT = """
import sys
sys.modules["torch"] = None
import numpy as np
import plait
given = np.load(sys.argv[1])
ops = plait.ops
results = {}
exec(sys.argv[3])
assert sys.modules["torch"] is None
np.savez(sys.argv[2], **results)
"""

# Run here with tensors and there with arrays.
COMMON = """
x, weight, logits, ids, weights = (given[name] for name in ("x", "weight", "logits", "ids", "weights"))
for score in ("softmax", "sigmoid", "topk_softmax"):
    for name, value in ops.route(logits, 2, score=score, norm_topk=True)._asdict().items():
        results[f"{score} {name}"] = value
for number, (some_ids, experts, sentinel) in enumerate(((ids, 4, False), (ids, None, False), (ids, 3, True))):
    rows, position = ops.permute(x, some_ids, num_experts=experts, sentinel=sentinel)
    results[f"rows {number}"], results[f"position {number}"] = rows, position
    results[f"sum {number}"] = ops.unpermute(rows, position, weights)
rows, position = ops.permute(x, ids, num_experts=4)
results["tree"] = ops.unpermute(rows, position, weights, expert_ids=ids, num_experts=4)
results["plain"] = ops.unpermute(rows, position, k=2)
results["few"], _ = ops.permute(x, ids, num_out_rows=-3)
results["map rows"], position = ops.permute(x, routing_map=given["map"])
results["map sum"] = ops.unpermute(results["map rows"], position, routing_map=given["map"])
results["y"] = ops.grouped_matmul(rows, weight, [3, 0, 6, 2], bias=given["bias"])
results["ends"] = ops.grouped_matmul(rows, weight, [3, 3, 9, 11], group_list_type=0, fused=False)
results["gradient"] = ops.grouped_matmul(rows.T, results["y"], [3, 0, 6, 2], group_type=2)
for name in ("swiglu", "swiglu_clamped", "geglu_tanh", "relu2"):
    results[name] = getattr(ops, name)(x)
results["interleaved"] = ops.swiglu(x, interleaved=True)
"""


def make_operands(dtype: torch.dtype) -> dict[str, Tensor]:
    shapes = {"x": (T, H), "weight": (E, H, N), "bias": (E, N)}
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(T)])
    floats = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    return floats | {"logits": torch.randn(T, E), "ids": ids, "weights": torch.rand(T, K), "map": torch.rand(T, E) > 0.4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_bits_of_the_operators_for_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    given = make_operands(dtype)
    inputs, outputs = tmp_path / "given.npz", tmp_path / "results.npz"
    np.savez(inputs, **{name: tensor.numpy() for name, tensor in given.items()})  # type: ignore[arg-type]
    command = [sys.executable, "-c", SCRIPT, str(inputs), str(outputs), COMMON]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    wanted: dict[str, Any] = {}
    exec(COMMON, {"given": given, "ops": ops, "results": wanted})
    got = np.load(outputs)
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        array = torch.from_numpy(got[name])
        assert array.dtype == value.dtype and array.shape == value.shape and torch.equal(bits(array), bits(value)), name


def test_arrays_of_any_strides() -> None:
    given = {name: tensor.numpy() for name, tensor in make_operands(torch.float32).items()}
    backwards = given["x"][::-1, ::-1]
    stored = np.ascontiguousarray(given["weight"].transpose(0, 2, 1)).transpose(0, 2, 1)
    wanted = _numpy.grouped_matmul(np.ascontiguousarray(backwards), given["weight"], [4, 1, 0, 2])
    np.testing.assert_array_equal(_numpy.grouped_matmul(backwards, stored, np.array([4, 1, 0, 2], np.int32)), wanted)
    out = np.full((T, N), np.nan, np.float32)
    assert _numpy.grouped_matmul(backwards, stored, [4, 1, 0, 2], out=out) is out
    np.testing.assert_array_equal(out, wanted)
    total = np.ones((E, H, N), np.float32)
    gradient = _numpy.grouped_matmul(given["x"].T, wanted, [4, 1, 0, 2], group_type=2)
    _numpy.grouped_matmul(given["x"].T, wanted, [4, 1, 0, 2], group_type=2, accumulate_into=total)
    np.testing.assert_allclose(total, gradient + 1, rtol=1e-6, atol=1e-6)


def test_errors_are_those_of_the_core() -> None:
    x, weight = np.ones((4, 1), np.float32), np.ones((2, 1, 1), np.float32)
    with pytest.raises(plait.InvalidArgument, match="5"):
        _numpy.grouped_matmul(x, weight, [2, 5], group_list_type=0)
    with pytest.raises(plait.InvalidArgument, match="float64|64 bits"):
        _numpy.grouped_matmul(x.astype(np.float64), weight, [2, 2])
    with pytest.raises(plait.InvalidArgument):
        _numpy.grouped_matmul(x[:, 0], weight, [2, 2])
    with pytest.raises(plait.InvalidArgument, match="7"):
        _numpy.permute(x, np.array([[0], [1], [7], [0]]), num_experts=2)
    with pytest.raises(plait.InvalidArgument, match="k=None"):
        _numpy.unpermute(x, np.arange(4, dtype=np.int32))
    with pytest.raises(plait.InvalidArgument, match="NaN"):
        _numpy.route(np.full((1, 4), np.nan, np.float32), 2)


def test_what_needs_torch_says_so() -> None:
    hide = "import sys; sys.modules['torch'] = None; import plait; "
    for code in ("plait.ops.moe_layer", "from plait.ops import moe_layer"):
        run = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True, check=False, timeout=120)
        assert run.returncode == 1 and "plait.ops.moe_layer needs PyTorch" in run.stderr
    hide += "sys.modules['numpy'] = None; plait.info(); plait.ops"
    run = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 1 and "plait.ops needs PyTorch" in run.stderr


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(_numpy)
    assert result.failed == 0 and result.attempted > 0
