"""moe_layer and nn.Experts: one result whatever dispatcher, ranks and engine, against float64 and against the composed operators."""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from conftest import FLOATS, same_bits
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import plait
from plait import ops

E, H, WIDTH, K = 4, 8, 6, 2  # WIDTH: an expert's intermediate size
DISPATCHERS = ["eager", "alltoall", "allgather", "mc2", "auto"]
# Tokens of each rank, for 1, 2 and 4 ranks: the same nine in all.
SPLITS = {1: [9], 2: [9, 0], 4: [2, 0, 6, 1]}


class Problem(NamedTuple):
    x: Tensor
    ids: Tensor
    weights: Tensor
    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor
    down_bias: Tensor
    dy: Tensor


def make_problem(dtype: torch.dtype, num_tokens: int = 9) -> Problem:
    logits = torch.randn(num_tokens, E)
    routing = ops.route(logits, K, norm_topk=True)
    shapes = [(E, H, 2 * WIDTH), (E, WIDTH, H), (E, 2 * WIDTH), (E, H), (num_tokens, H)]
    others = [torch.randn(shape).to(dtype) for shape in shapes]
    return Problem(torch.randn(num_tokens, H).to(dtype), routing.expert_ids, routing.weights, *others)


def run_layer(problem: Problem, split: list[int], dispatcher: str, recompute: bool = False) -> list[Tensor]:
    """y, dx, dweights in token order and dW, dbias in expert order, put together from all ranks."""
    size = len(split)

    def rank(group: plait.Group) -> list[Tensor]:
        begin = sum(split[: group.rank])
        mine, own = slice(begin, begin + split[group.rank]), slice(group.rank * E // size, (group.rank + 1) * E // size)
        x, weights = (t[mine].clone().requires_grad_() for t in (problem.x, problem.weights))
        parameters = [t[own].clone().requires_grad_() for t in (problem.gate_up, problem.down, problem.gate_up_bias, problem.down_bias)]
        gate_up, down, gate_up_bias, down_bias = parameters
        y = ops.moe_layer(
            x,
            problem.ids[mine],
            weights,
            gate_up,
            down,
            group,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            dispatcher=dispatcher,
            recompute=recompute,
        )
        return [y.detach(), *torch.autograd.grad(y, [x, weights, *parameters], problem.dy[mine])]

    return [torch.cat(parts) for parts in zip(*plait.run_ranks(size, rank, timeout=120), strict=True)]


def define_layer(p: Problem) -> list[Tensor]:
    """The same in float64, expert by expert."""
    leaves = [t.double().requires_grad_() for t in (p.x, p.weights, p.gate_up, p.down, p.gate_up_bias, p.down_bias)]
    x, weights, gate_up, down, gate_up_bias, down_bias = leaves
    y = torch.zeros_like(x)
    for expert in range(E):
        gate, up = (x @ gate_up[expert] + gate_up_bias[expert]).chunk(2, -1)
        out = (torch.nn.functional.silu(gate) * up) @ down[expert] + down_bias[expert]
        y = y + out * (weights * (p.ids == expert)).sum(1, keepdim=True)
    return [y.detach(), *torch.autograd.grad(y, leaves, p.dy.double())]


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_result_for_all_dispatchers_and_numbers_of_ranks(dtype: torch.dtype) -> None:
    problem = make_problem(dtype)
    wanted = run_layer(problem, SPLITS[1], "eager")
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for got, exact in zip(wanted, define_layer(problem), strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()))
    assert all(gradient.abs().max() > 0 for gradient in wanted)
    for split in SPLITS.values():
        for dispatcher in DISPATCHERS:
            for a, b in zip(run_layer(problem, split, dispatcher), wanted, strict=True):
                assert same_bits(a, b), (split, dispatcher)
    for a, b in zip(run_layer(problem, SPLITS[2], "alltoall", recompute=True), wanted, strict=True):
        assert same_bits(a, b)


def test_forward_equals_the_composed_operators() -> None:
    p = make_problem(torch.bfloat16, 33)
    rows, position = ops.permute(p.x, p.ids, num_experts=E)
    counts = torch.bincount(p.ids.flatten(), minlength=E)
    h = ops.grouped_matmul(rows, p.gate_up, counts, bias=p.gate_up_bias)
    out = ops.grouped_matmul(ops.swiglu(h), p.down, counts, bias=p.down_bias)
    composed = ops.unpermute(out, position, p.weights, expert_ids=p.ids, num_experts=E)
    assert same_bits(run_layer(p, [33], "mc2")[0], composed)


def in_one_rank(body: Callable[[plait.Group], None]) -> None:
    plait.run_ranks(1, body)


def arguments(group: plait.Group, num_tokens: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, plait.Group]:
    p = make_problem(torch.float32, num_tokens)
    return p.x.requires_grad_(), p.ids, p.weights.requires_grad_(), p.gate_up.requires_grad_(), p.down.requires_grad_(), group


def test_without_weights_all_are_one_and_two_gives_twice() -> None:
    def body(group: plait.Group) -> None:
        x, ids, _, gate_up, down, _ = arguments(group)
        plain = ops.moe_layer(x, ids, None, gate_up, down, group)
        assert same_bits(plain, ops.moe_layer(x, ids, torch.ones(5, K), gate_up, down, group))
        assert same_bits(2 * plain, ops.moe_layer(x, ids.long(), torch.full((5, K), 2.0), gate_up, down, group))

    in_one_rank(body)


def test_gradients_of_any_stride_and_transposed_weights() -> None:
    def body(group: plait.Group) -> None:
        x, ids, weights, gate_up, down, _ = arguments(group)
        stored = down.detach().transpose(1, 2).contiguous().requires_grad_()
        y = ops.moe_layer(x, ids, weights, gate_up, down, group)
        y_stored = ops.moe_layer(x, ids, weights, gate_up, stored.transpose(1, 2), group)
        assert same_bits(y, y_stored)
        dx, ddown = torch.autograd.grad(y.sum(), (x, down))
        dx_stored, dstored = torch.autograd.grad(y_stored.sum(), (x, stored))
        assert same_bits(dx, dx_stored) and same_bits(ddown, dstored.transpose(1, 2).contiguous())

    in_one_rank(body)


def test_checkpoint_and_two_forwards_before_a_backward() -> None:
    def rank(group: plait.Group) -> None:
        gate_up, down = torch.ones(1, H, 2 * WIDTH) / 7, torch.ones(1, WIDTH, H) / 5
        x = torch.linspace(-1, 1, 17 * H).view(17, H).requires_grad_()
        ids = torch.zeros(17, 2, dtype=torch.int32)
        ids[:, 1] = 1

        def run(value: Tensor) -> Tensor:
            return ops.moe_layer(value, ids, None, gate_up, down * (group.rank + 1), group)

        (wanted,) = torch.autograd.grad(run(x).square().sum(), x)
        (got,) = torch.autograd.grad(checkpoint(run, x, use_reentrant=False).square().sum(), x)
        assert same_bits(got, wanted)
        first, second = run(x), run(2 * x)
        (both,) = torch.autograd.grad(first.square().sum() + second.square().sum(), x)
        (apart,) = torch.autograd.grad(run(2 * x).square().sum(), x)
        torch.testing.assert_close(both, wanted + apart)

    plait.run_ranks(2, rank)


def test_forwards_that_are_dropped_give_their_memory_back() -> None:
    def rank(group: plait.Group) -> tuple[int, int]:
        gate_up, down = torch.ones(1, H, 2 * WIDTH, requires_grad=True), torch.ones(1, WIDTH, H, requires_grad=True)
        x, ids = torch.ones(20000, H), torch.tensor([[0, 1]]).expand(20000, 2)
        held = []
        for _ in range(60):
            ops.moe_layer(x, ids, None, gate_up, down, group, dispatcher="mc2")
            held.append(group.window_bytes)
        return held[10], held[-1]

    for early, late in plait.run_ranks(2, rank):
        assert early == late > 0


def test_opcheck() -> None:
    def body(group: plait.Group) -> None:
        for num_tokens in (5, 0):
            settings = (group.handle, "swiglu", False, 0.0, 0.0, "alltoall", False, False)
            x, ids, weights, gate_up, down, _ = arguments(group, num_tokens)
            bias = torch.randn(E, 2 * WIDTH, requires_grad=True), torch.randn(E, H, requires_grad=True)
            # Not the comparison of a compiled with an eager call: the second result is the number of the call.
            checks = ("test_schema", "test_autograd_registration", "test_faketensor")
            torch.library.opcheck(
                torch.ops.plait.moe_layer.default, (x, ids, weights, gate_up, bias[0], down, bias[1], *settings), test_utils=checks
            )

    in_one_rank(body)


def test_compiled_without_graph_breaks() -> None:
    torch._dynamo.reset()
    compilations = CompileCounterWithBackend("aot_eager")
    (group,) = plait.run_ranks(1, lambda group: group)
    x, ids, weights, gate_up, down, _ = arguments(group)

    def run(x: Tensor, ids: Tensor) -> Tensor:
        return ops.moe_layer(x * 2, ids, weights, gate_up, down, group)

    compiled = torch.compile(run, fullgraph=True, backend=compilations)
    for some_ids in (ids, ids.flip(1), torch.zeros_like(ids)):
        eager, fast = run(x, some_ids), compiled(x, some_ids)
        assert same_bits(eager, fast)
        leaves = (x, weights, gate_up, down)
        for a, b in zip(torch.autograd.grad(eager.sum(), leaves), torch.autograd.grad(fast.sum(), leaves), strict=True):
            assert same_bits(a, b)
    assert compilations.frame_count == 1


def test_autocast() -> None:
    def body(group: plait.Group) -> None:
        x, ids, weights, gate_up, down, _ = arguments(group)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = ops.moe_layer(x, ids, weights, gate_up, down, group)
        assert same_bits(y, ops.moe_layer(x.bfloat16(), ids, weights, gate_up.bfloat16(), down.bfloat16(), group))
        y.sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32

    in_one_rank(body)


@pytest.mark.parametrize("dispatcher", ["alltoall", "mc2"])
def test_an_error_on_one_rank_is_one_on_all_and_names_it(dispatcher: str) -> None:
    told = {}

    def rank(group: plait.Group) -> None:
        ids = torch.tensor([[0], [5 if group.rank == 1 else 1]])
        with pytest.raises(plait.Error) as caught:
            ops.moe_layer(torch.ones(2, H), ids, None, torch.ones(1, H, 2 * WIDTH), torch.ones(1, WIDTH, H), group, dispatcher=dispatcher)
        told[group.rank] = caught.value

    plait.run_ranks(2, rank, timeout=60)
    assert told[0].code == "aborted" and told[0].rank == 1
    assert all("5" in str(error) for error in told.values())


@pytest.mark.parametrize(
    ("x", "ids"),
    [
        (torch.ones(2, H).double(), torch.zeros(2, 1).long()),
        (torch.ones(H), torch.zeros(2, 1).long()),
        (torch.ones(2, 1, H), torch.zeros(2, 1).long()),
        (torch.ones(2, H), torch.zeros(2, 1)),
        (torch.ones(2, H), torch.zeros(2, 1, dtype=torch.int16)),
        (torch.ones(2, H), torch.zeros(2).long()),
        (torch.ones(2, H), torch.zeros(3, 1).long()),
    ],
)
def test_a_wrong_argument_of_one_rank_stops_the_group_at_once(x: Tensor, ids: Tensor) -> None:
    def rank(group: plait.Group) -> str:
        own = (x, ids) if group.rank == 1 else (torch.ones(2, H), torch.zeros(2, 1).long())
        with pytest.raises(plait.Error) as caught:
            ops.moe_layer(*own, None, torch.ones(1, H, 2 * WIDTH), torch.ones(1, WIDTH, H), group)
        return caught.value.code

    assert plait.run_ranks(2, rank, timeout=60) == ["aborted", "invalid argument"]


def test_a_group_that_is_gone_is_an_error() -> None:
    group = plait.init("short")
    handle = group.handle
    del group
    settings = (handle, "swiglu", False, 0.0, 0.0, "alltoall", False, False)
    with pytest.raises(plait.InvalidArgument, match="gone"):
        torch.ops.plait.moe_layer(
            torch.ones(1, H), torch.zeros(1, 1).int(), None, torch.ones(1, H, 2 * WIDTH), None, torch.ones(1, WIDTH, H), None, *settings
        )


@pytest.mark.parametrize(("activation", "bias"), [("swiglu", False), ("swiglu_clamped", True), ("relu2", False)])
def test_experts_do_not_depend_on_the_number_of_ranks(activation: str, bias: bool) -> None:
    x = torch.randn(2, 3, H)
    routing = ops.route(torch.randn(6, E), K)
    ids, weights = routing.expert_ids.view(2, 3, K), routing.weights.view(2, 3, K)

    def rank(group: plait.Group) -> tuple[Tensor, list[Tensor]]:
        experts = plait.nn.Experts(E, H, WIDTH, group, activation=activation, bias=bias, dispatcher="mc2")
        for number, parameter in enumerate(experts.parameters()):  # threads share the random state, so values of their own
            full = torch.linspace(-1, 1, parameter[0].numel() * E).view(E, *parameter.shape[1:]) + number
            parameter.data.copy_(full[group.rank * E // group.size :][: E // group.size])
        y = experts(x, ids, weights)
        y.square().sum().backward()
        return y.detach(), [p.grad for p in experts.parameters() if p.grad is not None]

    ((alone, gradients),) = plait.run_ranks(1, rank)
    shared = plait.run_ranks(2, rank)
    assert alone.shape == x.shape and all(same_bits(y, alone) for y, _ in shared)
    for number, gradient in enumerate(gradients):
        # Both ranks had the same tokens, so each sum has every term twice.
        torch.testing.assert_close(torch.cat([part[number] for _, part in shared]), 2 * gradient)


def test_experts_have_the_values_of_their_seed() -> None:
    def rank(group: plait.Group) -> plait.nn.Experts:
        return plait.nn.Experts(E, H, WIDTH, group, bias=True)

    torch.manual_seed(5)
    (whole,) = plait.run_ranks(1, rank)
    groups = plait.run_ranks(2, lambda group: group)
    parts = []
    for group in groups:
        torch.manual_seed(5)
        parts.append(rank(group))
    assert same_bits(torch.cat([p.gate_up for p in parts]), whole.gate_up)
    assert same_bits(torch.cat([p.down for p in parts]), whole.down)
    copy = deepcopy(whole)
    assert copy.group is whole.group and copy.gate_up is not whole.gate_up and same_bits(copy.gate_up, whole.gate_up)
    with pytest.raises(plait.InvalidArgument, match="3.*2"):
        plait.nn.Experts(3, H, WIDTH, groups[0])
