"""What holds for all operators: torch's own checks of custom operators, torch.compile, threads, fork, the CPU's float mode."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from conftest import same_bits
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import plait
from plait import ops

OPS = torch.ops.plait


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def counts(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


IDS = torch.tensor([[1, 0], [2, 1], [0, 2]], dtype=torch.int32)
MAP = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
POSITION = torch.tensor([2, 0, 4, 3, 1, 5], dtype=torch.int32)

SAMPLES: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "grouped_matmul": (OPS.grouped_matmul, lambda: (floats(5, 3), floats(2, 3, 4), counts(2, 1), 1, floats(2, 4), True)),
    "grouped_matmul, transposed weight": (
        OPS.grouped_matmul,
        lambda: (floats(5, 3), torch.randn(2, 4, 3).transpose(1, 2).requires_grad_(), counts(2, 3), 0, None, True),
    ),
    "grouped_matmul, no rows": (OPS.grouped_matmul, lambda: (floats(0, 3), floats(2, 3, 4), counts(0, 0), 1, None, True)),
    "grouped_matmul, loop": (OPS.grouped_matmul, lambda: (floats(5, 3), floats(2, 3, 4), counts(2, 1), 1, None, False)),
    "grouped_matmul_k": (OPS.grouped_matmul_k, lambda: (floats(5, 3), floats(5, 4), counts(2, 1), 1, True)),
    "grouped_matmul_out": (
        OPS.grouped_matmul_out,
        lambda: (torch.randn(5, 3), torch.randn(2, 3, 4), counts(2, 1), 1, None, True, torch.empty(5, 4)),
    ),
    "grouped_matmul_k_out": (
        OPS.grouped_matmul_k_out,
        lambda: (torch.randn(5, 3), torch.randn(5, 4), counts(2, 1), 1, True, True, torch.zeros(2, 3, 4)),
    ),
    "grouped_matmul_lists": (OPS.grouped_matmul_lists, lambda: ([floats(2, 3), floats(4, 1)], [floats(3, 2), floats(1, 5)], [])),
    "permute": (OPS.permute, lambda: (floats(3, 4), IDS, 0, 3, True)),
    "permute, identity": (OPS.permute, lambda: (floats(3, 4), torch.zeros(3, 1, dtype=torch.int32), 0, 1, False)),
    "permute, ids beyond the experts": (OPS.permute, lambda: (floats(3, 4), IDS, 0, 2, False, True)),
    "permute, no tokens": (OPS.permute, lambda: (floats(0, 4), IDS[:0], 0, None, False)),
    "unpermute": (OPS.unpermute, lambda: (floats(6, 4), POSITION, floats(3, 2), 2, IDS, 3)),
    "unpermute, no weights": (OPS.unpermute, lambda: (floats(6, 4), POSITION, None, 2, None, 0)),
    "permute_map": (OPS.permute_map, lambda: (floats(3, 4), MAP, 0)),
    "unpermute_map": (OPS.unpermute_map, lambda: (floats(5, 4), torch.arange(5, dtype=torch.int32), MAP, floats(3, 3))),
    "activation": (OPS.activation, lambda: (floats(3, 8), "swiglu", False, 0.0, 0.0)),
    "activation, ungated": (OPS.activation, lambda: (floats(0, 8), "relu2", False, 0.0, 0.0)),
    "route": (OPS.route, lambda: (floats(3, 6), torch.zeros(6), 2, "sigmoid", True, 2.5, 2, 1)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name: str) -> None:
    operator, make_arguments = SAMPLES[name]
    torch.library.opcheck(operator.default, make_arguments())


def test_every_operator_has_a_sample() -> None:
    names = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("plait::")}
    # They need a group and have tests of their own.
    elsewhere = {"moe", "moe_layer", "mc2_fused_expert", "alltoallv_grouped_matmul", "grouped_matmul_alltoallv"}
    assert {n for n in names if not n.endswith(("_backward", "_backward_into"))} - elsewhere == {name.split(",")[0] for name in SAMPLES}


def layer(x: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    routing = ops.route(logits, 2, norm_topk=True)
    rows, position = ops.permute(x, routing.expert_ids, num_experts=4)
    per_expert = torch.zeros(4, dtype=torch.int64).scatter_add(0, routing.expert_ids.flatten().long(), torch.ones(position.shape[0]).long())
    h = ops.grouped_matmul(rows, gate_up, per_expert)
    out = ops.grouped_matmul(ops.swiglu(h), down.transpose(1, 2), per_expert)
    return ops.unpermute(out, position, routing.weights, expert_ids=routing.expert_ids, num_experts=4)


def test_compiled_without_graph_breaks_and_without_recompiling_per_count() -> None:
    torch._dynamo.reset()
    compilations = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=compilations, dynamic=False)
    parameters = [floats(4, 3, 8), floats(4, 3, 4)]
    for favourite in range(4):
        logits = torch.randn(6, 4)
        logits[:, favourite] += 10
        leaves = [floats(6, 3), logits.requires_grad_(), *parameters]
        eager, fast = layer(*leaves), compiled(*leaves)
        assert same_bits(eager, fast)
        dy = torch.randn_like(eager)
        for a, b in zip(torch.autograd.grad(eager, leaves, dy), torch.autograd.grad(fast, leaves, dy), strict=True):
            assert same_bits(a.contiguous(), b.contiguous())
    assert compilations.frame_count == 1


def test_counts_as_a_tensor_do_not_recompile() -> None:
    torch._dynamo.reset()
    compilations = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ops.grouped_matmul, fullgraph=True, backend=compilations)
    x, weight = floats(4, 3), floats(2, 3, 5)
    for group_list in ([2, 2], [4, 0], [0, 4], [0, 0]):
        assert same_bits(compiled(x, weight, torch.tensor(group_list)), ops.grouped_matmul(x, weight, group_list))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x, weight, torch.tensor([1, 2])).dtype == torch.bfloat16
    assert compilations.frame_count == 2


def test_a_routing_map_compiles_with_a_dynamic_number_of_rows() -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def round_trip(x: Tensor, routing_map: Tensor) -> Tensor:
        rows, position = ops.permute(x, routing_map=routing_map)
        return ops.unpermute(rows * 2, position, routing_map=routing_map)

    x = floats(3, 4)
    for routing_map in (MAP, ~MAP, torch.zeros_like(MAP)):
        y = round_trip(x, routing_map)
        torch.testing.assert_close(y, 2 * x * routing_map.sum(1, keepdim=True))
        (dx,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(dx, torch.ones_like(x) * 2 * routing_map.sum(1, keepdim=True))


def test_backward_twice_through_a_retained_graph() -> None:
    x, weight = floats(4, 3), floats(2, 3, 5)
    y = ops.grouped_matmul(x, weight, [1, 3])
    first = torch.autograd.grad(y.sum(), (x, weight), retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(y.sum(), (x, weight)), strict=True):
        assert same_bits(a, b)


def test_calls_from_several_threads_give_the_same_bits() -> None:
    x, weight = torch.randn(64, 32), torch.randn(4, 32, 48)
    wanted = ops.grouped_matmul(x, weight, [16, 0, 40, 8])
    with ThreadPoolExecutor(4) as workers:
        results = list(workers.map(lambda _: ops.grouped_matmul(x, weight, [16, 0, 40, 8]), range(24)))
    assert all(same_bits(result, wanted) for result in results)


def test_operators_work_in_a_child_of_fork() -> None:
    x, weight = torch.randn(64, 32), torch.randn(2, 32, 48)
    wanted = ops.grouped_matmul(x, weight, [32, 32])
    child = os.fork()
    if child == 0:
        os._exit(0 if same_bits(ops.grouped_matmul(x, weight, [32, 32]), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_denormals_of_the_process_stay_as_they_are() -> None:
    tiny = torch.tensor([2.0**-149])

    def kept() -> bool:
        return bool((tiny * 1 != 0).all())

    assert kept()
    ops.grouped_matmul(torch.ones(2, 3), torch.ones(1, 3, 2), [2])
    assert kept()
    with pytest.raises(plait.Error):
        ops.grouped_matmul(torch.ones(2, 3), torch.ones(1, 3, 2), [3])
    assert kept()
