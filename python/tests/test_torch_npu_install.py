"""install and uninstall: what is there in between, and that nothing of it is there before and after but the device's name."""

import doctest
import importlib
import importlib.util
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import Backend
from torch.utils.checkpoint import DefaultDeviceType, checkpoint
from torch.utils.data import DataLoader

import plait
from plait.compat import torch_npu as compat

REPOSITORY = Path(__file__).resolve().parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)


def surroundings() -> dict[str, Any]:
    """All that the stand-in touches."""
    registries = (Backend.backend_type_map, Backend.backend_capability, Backend.default_device_backend_map, Backend._plugins)
    owners = (torch, torch.Tensor, torch.nn.Module, torch.nn.utils.rnn.PackedSequence, torch.UntypedStorage, torch.TypedStorage, Backend)
    return {
        "modules": {name for name in sys.modules if name.split(".")[0] == "torch_npu" or name == "torch.npu"},
        "names": {(owner.__name__, name) for owner in owners for name in ("npu", "is_npu", "HCCL") if name in vars(owner)},
        "backends": [name for registry in registries for name in (*registry, *registry.values()) if str(name).lower() in ("hccl", "npu")],
        "functions": (torch.histc, torch.Tensor.histc, torch.autocast.__init__, torch.accelerator.synchronize),
        "operators": [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("npu::")],
        "recomputation": DefaultDeviceType._default_device_type,
        "loaders": list(torch.serialization._package_registry),
        "accelerator": (torch.accelerator.is_available(), torch.accelerator.current_accelerator(), torch._C._get_accelerator()),
    }


@pytest.fixture
def torch_npu() -> Iterator[types.ModuleType]:
    before = surroundings()
    yield compat.install()
    compat.uninstall()
    assert surroundings() == before


def test_importing_changes_nothing() -> None:
    code = "import torch, plait, plait.compat.torch_npu, sys; assert 'torch_npu' not in sys.modules and not hasattr(torch, 'npu'); "
    code += "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'; "
    code += "assert not [n for n in torch._C._dispatch_get_all_op_names() if n.startswith('npu::')]; plait.compat.torch_npu.uninstall()"
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_twice_is_once(torch_npu: types.ModuleType) -> None:
    assert compat.install() is torch_npu is sys.modules["torch_npu"] and compat.is_installed()
    compat.uninstall()
    compat.uninstall()
    assert not compat.is_installed() and "torch_npu" not in sys.modules
    with pytest.raises((RuntimeError, ImportError)):
        torch.empty(1, device="npu")
    with pytest.raises(AttributeError):
        _ = torch.ops.npu.npu_swiglu
    again = compat.install()
    assert again.npu_swiglu(torch.ones(1, 2)).shape == (1, 1)


def test_the_real_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = types.ModuleType("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", real)
    with pytest.raises(plait.Error, match="real torch_npu"):
        compat.install()
    assert sys.modules["torch_npu"] is real and not hasattr(torch, "npu")


def test_a_failure_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    compat.install()
    compat.uninstall()
    before = surroundings()
    monkeypatch.setattr(Backend, "backend_list", [*Backend.backend_list, "hccl"])
    with pytest.raises(plait.Error, match="hccl"):
        compat.install()
    assert surroundings() == before and not compat.is_installed()


def test_the_modules(torch_npu: types.ModuleType) -> None:
    assert importlib.util.find_spec("torch_npu") is torch_npu.__spec__
    assert importlib.import_module("torch_npu.npu") is torch_npu.npu is torch.npu  # type: ignore[attr-defined]
    assert importlib.import_module("torch_npu.npu.amp").autocast is torch_npu.npu.amp.autocast
    from torch_npu import npu_fusion_attention

    torch_npu.npu.config.allow_internal_format = False
    with pytest.raises(plait.Error, match="npu_fusion_attention.*not available"):
        npu_fusion_attention(torch.ones(1))
    assert not hasattr(torch_npu, "npu_no_such_operator")


def test_what_is_asked_for_on_npu_is_on_the_cpu(torch_npu: types.ModuleType) -> None:
    x: Any = torch.randn(3, 4)
    linear: Any = torch.nn.Linear(2, 2)
    made = [
        x.to("npu"), x.npu(), x.to("npu:3"), torch.zeros(2, device="npu"), torch.tensor([1], device="npu"), torch.arange(3, device="npu"),
        torch.empty(2, device=torch.device("npu", 0)), x.new_empty(2, device=torch.accelerator.current_device_index()),
        torch.tril_indices(2, 2, device="npu"), torch.full_like(x, 1.0, device="npu"), torch.nn.Linear(2, 2).to("npu").weight,
        linear.npu().weight, torch.nn.Linear(2, 2, device="npu").weight, x.pin_memory(), x.to(device="npu", dtype=torch.bfloat16),
    ]  # fmt: skip
    assert all(tensor.device.type == "cpu" for tensor in made)
    copy = x.to("npu")
    copy.zero_()
    assert x.abs().sum() > 0  # a copy, as on the device
    with torch.device("npu"):
        assert torch.ones(1).device.type == "cpu"
    weight = torch.randn(3, requires_grad=True)
    (weight.to("npu") * 2).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2, 2, 2]


def test_saving_and_loading(torch_npu: types.ModuleType, tmp_path: Path) -> None:
    x = torch.randn(3, device="npu")
    torch.save({"x": x}, tmp_path / "x.pt")
    for place in ("npu", "npu:1", torch.device("npu", 0)):
        assert torch.equal(torch.load(tmp_path / "x.pt", map_location=place)["x"], x)
    storage: Any = x.untyped_storage()
    assert storage.npu().data_ptr() == x.data_ptr()


def test_counting_integers(torch_npu: types.ModuleType) -> None:
    counts = torch.histc(torch.tensor([0, 1, 2, 2, 3, 7]), bins=3, min=0, max=3)
    assert counts.tolist() == [1, 1, 3] and counts.dtype == torch.int64
    assert torch.tensor([4, 5, 4], dtype=torch.int32).histc(2).tolist() == [2, 1]
    assert torch.histc(torch.empty(0, dtype=torch.int64), bins=2, min=0, max=2).tolist() == [0, 0]
    assert torch.histc(torch.tensor([0.5, 1.5]), bins=2, min=0, max=2).tolist() == [1, 1]


def test_streams_events_and_figures(torch_npu: types.ModuleType) -> None:
    npu = torch_npu.npu
    assert isinstance(npu.Stream(), torch.Stream)
    begin, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    begin.record()
    with npu.stream(npu.Stream()) as stream:
        stream.wait_stream(npu.current_stream())
        torch.ones(1).record_stream(stream)
    end.record()
    npu.synchronize()
    torch.accelerator.synchronize()
    assert begin.elapsed_time(end) >= 0
    assert 0 < npu.memory_allocated() and 0 < npu.mem_get_info()[0] <= npu.mem_get_info()[1]
    with npu.device(1):
        assert npu.current_device() == 1
    assert npu.current_device() == 0 and npu.device_count() >= 1 and npu.is_available()
    torch.manual_seed(5)
    state = npu.get_rng_state()
    first = torch.rand(2, device="npu")
    npu.set_rng_state(state)
    assert torch.equal(first, torch.rand(2))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recompute_and_autocast(torch_npu: types.ModuleType, reentrant: bool) -> None:
    x, weight = torch.randn(2, 3, device="npu", requires_grad=True), torch.randn(3, 3)
    with torch.autocast("npu", dtype=torch.bfloat16):
        y = checkpoint(lambda value: value @ weight, x, use_reentrant=reentrant)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    with torch_npu.npu.amp.autocast(dtype=torch.bfloat16):
        assert (x @ weight).dtype == torch.bfloat16


def test_loading_data_with_pinned_memory(torch_npu: types.ModuleType) -> None:
    loader: Any = DataLoader(torch.randn(4, 2), batch_size=2, pin_memory=True)  # type: ignore[arg-type]
    assert sum(len(batch) for batch in loader) == 4


def test_a_forked_child_can_run_backward(torch_npu: types.ModuleType) -> None:
    """Also with a device whose thread would be missing in the child."""
    code = "import os, torch, plait.compat.torch_npu as c; c.install(); w = torch.ones(2, requires_grad=True); (w * 2).sum().backward()\n"
    code += "child = os.fork()\nif child == 0:\n    (w * 2).sum().backward(); os._exit(0 if w.grad.tolist() == [4, 4] else 1)\n"
    code += "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_operators_in_a_compiled_graph(torch_npu: types.ModuleType) -> None:
    torch._dynamo.reset()
    x, ids, probs = torch.randn(5, 4, requires_grad=True), torch.randint(0, 3, (5, 2)), torch.rand(5, 2)

    def body(x: torch.Tensor) -> torch.Tensor:
        rows, order = torch_npu.npu_moe_token_permute(x, ids)
        act = torch_npu.npu_swiglu(torch.cat([rows, rows], 1))
        return torch_npu.npu_moe_token_unpermute(act, order, probs=probs)

    eager, compiled = body(x), torch.compile(body, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(eager, compiled)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (eager, compiled)))
    torch._dynamo.reset()


@pytest.mark.parametrize("module", ["plait.compat.torch_npu", "plait.compat.torch_npu._comm"])
def test_examples_in_docstrings(module: str) -> None:
    loaded = importlib.import_module(module)
    result = doctest.testmod(loaded, extraglobs={"plait": plait, "torch": torch}, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0 and result.attempted > 0


@pytest.mark.parametrize(("document", "section"), [("torch_npu.md", ""), ("migrate.md", "From Ascend code")])
def test_examples_in_the_documentation(document: str, section: str) -> None:
    """Every Python block runs, top to bottom in one namespace."""
    text = (REPOSITORY / "docs" / document).read_text()
    if section:
        text = re.split(r"^## ", text.split(f"## {section}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    try:
        for block in blocks:
            exec(compile(block, document, "exec"), namespace)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        compat.uninstall()
