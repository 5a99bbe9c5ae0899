"""The fused pair against the sequence that it replaces, written out over all ranks' rows: exchange by slicing, grouped_matmul, slicing back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from conftest import FLOATS, same_bits
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import plait
from plait import ops

K, N, KS, NS = 5, 7, 3, 4
EXPERTS = 2  # of each rank


class Pair(NamedTuple):
    """What all ranks have; counts[s][g]: rows of rank s for expert g of all."""

    counts: Tensor
    x: list[Tensor]
    weight: list[Tensor]
    bias: list[Tensor]
    shared_x: list[Tensor]
    shared_weight: list[Tensor]
    dy: list[Tensor]
    dshared_y: list[Tensor]

    def at_home(self, rank: int) -> list[int]:
        """Rows of `rank` for every expert."""
        return self.counts[rank].tolist()

    def at_experts(self, rank: int) -> list[int]:
        """Rows of every rank for the experts of `rank`, rank major."""
        return self.counts[:, rank * EXPERTS : (rank + 1) * EXPERTS].flatten().tolist()


def random_counts(size: int) -> Tensor:
    """Uneven, some 0; one expert that nobody wants, and from two ranks on a rank without rows."""
    counts = torch.randint(0, 6, (size, size * EXPERTS))
    counts[:, -1] = 0
    counts[0, 0] = 9
    if size > 1:
        counts[1] = 0
    return counts


def make_pair(counts: Tensor, dtype: torch.dtype, home: bool) -> Pair:
    """`home`: rows begin at the experts."""
    size = counts.shape[0]
    own, experts = counts.sum(1).tolist(), counts.view(size, size, EXPERTS).sum((0, 2)).tolist()
    begin, end = (experts, own) if home else (own, experts)

    def per_rank(shape_of: Callable[[int], tuple[int, ...]]) -> list[Tensor]:
        return [torch.randn(shape_of(rank)).to(dtype) for rank in range(size)]

    return Pair(
        counts,
        per_rank(lambda rank: (begin[rank], K)),
        per_rank(lambda _: (EXPERTS, K, N)),
        per_rank(lambda _: (EXPERTS, N)),
        per_rank(lambda rank: (rank, KS)),
        per_rank(lambda _: (KS, NS)),
        per_rank(lambda rank: (end[rank], N)),
        per_rank(lambda rank: (rank, NS)),
    )


def to_experts(pair: Pair, rows: list[Tensor]) -> list[Tensor]:
    """Rows by sender, destination expert -> for every rank, by its expert, then sender."""
    parts = [part.split(pair.at_home(rank)) for rank, part in enumerate(rows)]
    size = len(rows)
    return [torch.cat([parts[s][d * EXPERTS + j] for j in range(EXPERTS) for s in range(size)]) for d in range(size)]


def to_homes(pair: Pair, rows: list[Tensor]) -> list[Tensor]:
    """The inverse."""
    size = len(rows)
    by_expert = [pair.counts[:, d * EXPERTS : (d + 1) * EXPERTS].t().flatten().tolist() for d in range(size)]
    parts = [part.split(lengths) for part, lengths in zip(rows, by_expert, strict=True)]
    return [torch.cat([parts[d][j * size + s] for d in range(size) for j in range(EXPERTS)]) for s in range(size)]


def define(pair: Pair, home: bool) -> list[list[Tensor]]:
    """Per rank: y, shared_y, dx, dweight, dbias, dshared_x, dshared_weight."""
    leaves = [[t.clone().requires_grad_() for t in part] for part in pair[1:6]]
    x, weight, bias, shared_x, shared_weight = leaves
    size = len(x)
    rows = x if home else to_experts(pair, x)
    per_expert = pair.counts.sum(0).view(size, EXPERTS)
    out = [ops.grouped_matmul(rows[r], weight[r], per_expert[r], bias=bias[r]) for r in range(size)]
    y = to_homes(pair, out) if home else out
    shared_y = [one_group(shared_x[r], shared_weight[r]) for r in range(size)]
    gradients = torch.autograd.grad([*y, *shared_y], [t for part in leaves for t in part], [*pair.dy, *pair.dshared_y])
    return [[y[r].detach(), shared_y[r].detach(), *gradients[r::size]] for r in range(size)]


def one_group(x: Tensor, weight: Tensor) -> Tensor:
    return ops.grouped_matmul(x, weight.unsqueeze(0), [x.shape[0]])


def call(home: bool) -> Callable[..., tuple[Any, ...]]:
    return ops.grouped_matmul_alltoallv if home else ops.alltoallv_grouped_matmul


def counts_of(pair: Pair, home: bool, rank: int) -> tuple[list[int], list[int]]:
    out, arrive = pair.at_home(rank), pair.at_experts(rank)
    return (arrive, out) if home else (out, arrive)


def run_pair(
    pair: Pair, home: bool, change: Callable[[Tensor], Tensor] = torch.clone, as_tensors: bool = False, **options: bool
) -> list[list[Tensor]]:
    """`change` makes what the operator is given of an operand."""

    def rank(group: plait.Group) -> list[Tensor]:
        leaves = [change(part[group.rank]).requires_grad_() for part in pair[1:6]]
        x, weight, bias, shared_x, shared_weight = leaves
        send, recv = counts_of(pair, home, group.rank)
        counts = (torch.tensor(send).int(), torch.tensor(recv).view(group.size, EXPERTS)) if as_tensors else (send, recv)
        y, shared_y, *_ = call(home)(x, weight, group, *counts, bias=bias, shared_x=shared_x, shared_weight=shared_weight, **options)
        gradients = torch.autograd.grad([y, shared_y], leaves, [change(pair.dy[group.rank]), change(pair.dshared_y[group.rank])])
        return [y.detach(), shared_y.detach(), *gradients]

    return plait.run_ranks(pair.counts.shape[0], rank, timeout=120)


def assert_same(got: list[list[Tensor]], wanted: list[list[Tensor]]) -> None:
    for rank, (own, own_wanted) in enumerate(zip(got, wanted, strict=True)):
        for i, (a, b) in enumerate(zip(own, own_wanted, strict=True)):
            assert same_bits(a, b), (rank, i)


HOME = pytest.mark.parametrize("home", [False, True], ids=["alltoallv_grouped_matmul", "grouped_matmul_alltoallv"])


@HOME
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_bits_of_the_sequence_that_it_replaces(home: bool, dtype: torch.dtype, size: int) -> None:
    pair = make_pair(random_counts(size), dtype, home)
    wanted = define(pair, home)
    for fused in (True, False):
        assert_same(run_pair(pair, home, fused=fused), wanted)
    assert_same(run_pair(pair, home, as_tensors=True), wanted)
    assert any(gradient.abs().max() > 0 for gradient in wanted[0][2:])


@HOME
def test_no_rows_at_all(home: bool) -> None:
    pair = make_pair(torch.zeros(2, 4, dtype=torch.int64), torch.float32, home)
    got = run_pair(pair, home)
    assert_same(got, define(pair, home))
    assert got[0][0].shape == (0, N) and not got[0][3].any()


def strided(tensor: Tensor) -> Tensor:
    """The same values with gaps between all elements and the last two dimensions stored the other way round."""
    room = torch.full([*tensor.shape[:-2], tensor.shape[-1] * 2, tensor.shape[-2] * 3], float("nan"), dtype=tensor.dtype)
    view = room[..., ::2, ::3].transpose(-1, -2)
    view.copy_(tensor)
    return view.detach()


@HOME
def test_operands_and_gradients_of_any_strides(home: bool) -> None:
    pair = make_pair(random_counts(3), torch.bfloat16, home)
    assert_same(run_pair(pair, home, strided), define(pair, home))


@HOME
def test_a_gradient_of_stride_0(home: bool) -> None:
    pair = make_pair(random_counts(2), torch.float32, home)
    pair = pair._replace(dy=[torch.ones(()).expand_as(t) for t in pair.dy], dshared_y=[torch.ones(()).expand_as(t) for t in pair.dshared_y])
    assert_same(run_pair(pair, home, torch.Tensor.detach), define(pair, home))


@HOME
def test_transposed_weights_by_view_and_by_flag(home: bool) -> None:
    pair = make_pair(random_counts(2), torch.bfloat16, home)

    def rank(group: plait.Group) -> None:
        x = pair.x[group.rank]
        counts = counts_of(pair, home, group.rank)
        shared_x = pair.shared_x[group.rank]
        plain = call(home)(x, pair.weight[group.rank], group, *counts, shared_x=shared_x, shared_weight=pair.shared_weight[group.rank])
        stored = pair.weight[group.rank].transpose(1, 2).contiguous().requires_grad_()
        shared = pair.shared_weight[group.rank].t().contiguous().requires_grad_()
        by_view = call(home)(x, stored.transpose(1, 2), group, *counts, shared_x=shared_x, shared_weight=shared.t())
        by_flag = call(home)(
            x, stored, group, *counts, shared_x=shared_x, shared_weight=shared, trans_weight=True, trans_shared_weight=True
        )
        gradients = []
        for y, shared_y, *_ in (by_view, by_flag):
            assert same_bits(y, plain[0]) and same_bits(shared_y, plain[1])
            gradients.append(torch.autograd.grad(y.float().square().sum() + shared_y.float().sum(), (stored, shared)))
        for a, b in zip(*gradients, strict=True):
            assert same_bits(a, b) and a.is_contiguous() and b.is_contiguous()

    plait.run_ranks(2, rank, timeout=120)


def test_what_is_not_asked_for_is_none() -> None:
    pair = make_pair(random_counts(2), torch.float32, False)
    arrived = to_experts(pair, pair.x)

    def rank(group: plait.Group) -> None:
        x, weight = pair.x[group.rank], pair.weight[group.rank].clone().requires_grad_()
        counts = counts_of(pair, False, group.rank)
        y, shared_y, permuted = ops.alltoallv_grouped_matmul(x, weight, group, *counts)
        assert shared_y is None and permuted is None and y.requires_grad
        _, shared_y, permuted = ops.alltoallv_grouped_matmul(x, weight, group, *counts, return_permuted=True)
        assert shared_y is None and permuted is not None and not permuted.requires_grad
        assert same_bits(permuted, arrived[group.rank])
        back, shared_y = ops.grouped_matmul_alltoallv(y, torch.eye(N).repeat(EXPERTS, 1, 1), group, counts[1], counts[0])
        assert shared_y is None and back.shape == (x.shape[0], N)

    plait.run_ranks(2, rank, timeout=120)


@HOME
def test_only_what_is_needed_is_differentiated(home: bool) -> None:
    pair = make_pair(random_counts(2), torch.float32, home)
    wanted = define(pair, home)

    def rank(group: plait.Group) -> None:
        counts = counts_of(pair, home, group.rank)
        for number in range(5):
            operands = [part[group.rank].clone() for part in pair[1:6]]
            leaf = operands[number].requires_grad_()
            x, weight, bias, shared_x, shared_weight = operands
            y, shared_y, *_ = call(home)(x, weight, group, *counts, bias=bias, shared_x=shared_x, shared_weight=shared_weight)
            (gradient,) = torch.autograd.grad([y, shared_y], [leaf], [pair.dy[group.rank], pair.dshared_y[group.rank]])
            assert same_bits(gradient, wanted[group.rank][2 + number])

    plait.run_ranks(2, rank, timeout=120)


def test_there_and_back_with_a_layer_between() -> None:
    """The second operator reads what the first wrote, and its own result lies in the window: still one gradient per token."""
    pair = make_pair(random_counts(3), torch.float32, False)
    down = [torch.randn(EXPERTS, N, K) for _ in range(3)]

    def run(group: plait.Group, fused: bool) -> list[Tensor]:
        x, weight = pair.x[group.rank].clone().requires_grad_(), pair.weight[group.rank].clone().requires_grad_()
        out, arrive = counts_of(pair, False, group.rank)
        first, *_ = ops.alltoallv_grouped_matmul(x, weight, group, out, arrive, fused=fused)
        second, _ = ops.grouped_matmul_alltoallv(torch.relu(first), down[group.rank], group, arrive, out, fused=fused)
        third, *_ = ops.alltoallv_grouped_matmul(second, weight, group, out, arrive, fused=fused)
        return [third.detach(), *torch.autograd.grad(third.square().sum(), (x, weight))]

    assert_same(plait.run_ranks(3, lambda group: run(group, True)), plait.run_ranks(3, lambda group: run(group, False)))


def test_results_outlive_their_group() -> None:
    pair = make_pair(random_counts(2), torch.float32, True)
    wanted = define(pair, True)
    got = run_pair(pair, True)  # its groups are gone now
    for _ in range(3):
        run_pair(make_pair(random_counts(2), torch.float32, True), True)
    assert_same(got, wanted)


@HOME
def test_opcheck(home: bool) -> None:
    operator = torch.ops.plait.grouped_matmul_alltoallv if home else torch.ops.plait.alltoallv_grouped_matmul

    def body(group: plait.Group) -> None:
        for rows in ([3, 0], [0, 0]):
            counts = torch.tensor(rows)
            leaves = [torch.randn(shape, requires_grad=True) for shape in ((sum(rows), K), (2, K, N), (2, N), (3, KS), (KS, NS))]
            for num_results in (sum(rows), -1):
                settings = (num_results, group.handle, False, False, not home, True)
                torch.library.opcheck(operator.default, (*leaves, counts, counts, *settings))
            torch.library.opcheck(
                operator.default, (*leaves[:2], None, None, None, counts, counts, -1, group.handle, False, False, not home, False)
            )

    plait.run_ranks(1, body)


@HOME
@pytest.mark.parametrize("as_tensors", [False, True])
def test_compiled_without_graph_breaks(home: bool, as_tensors: bool) -> None:
    torch._dynamo.reset()
    compilations = CompileCounterWithBackend("aot_eager")
    (group,) = plait.run_ranks(1, lambda group: group)
    weight, bias = torch.randn(3, K, N, requires_grad=True), torch.randn(3, N, requires_grad=True)

    def run(x: Tensor, counts: Tensor | list[int]) -> Tensor:
        y: Tensor = call(home)(x * 2, weight, group, counts, counts, bias=bias)[0]
        return y * 3

    compiled = torch.compile(run, fullgraph=True, backend=compilations)
    rows = [[4, 2, 0], [0, 0, 6], [1, 3, 2]]
    for some in rows if as_tensors else rows[:1]:
        x = torch.randn(6, K, requires_grad=True)
        counts = torch.tensor(some) if as_tensors else some
        eager, fast = run(x, counts), compiled(x, counts)
        assert same_bits(eager, fast)
        for a, b in zip(*(torch.autograd.grad(y.sum(), (x, weight, bias)) for y in (eager, fast)), strict=True):
            assert same_bits(a, b)
    assert compilations.frame_count == 1


@HOME
def test_autocast(home: bool) -> None:
    pair = make_pair(random_counts(2), torch.float32, home)

    def rank(group: plait.Group) -> None:
        x, weight, counts = pair.x[group.rank], pair.weight[group.rank], counts_of(pair, home, group.rank)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(home)(x, weight, group, *counts)[0]
        assert same_bits(y, call(home)(x.bfloat16(), weight.bfloat16(), group, *counts)[0])

    plait.run_ranks(2, rank, timeout=120)


@HOME
def test_counts_that_disagree_are_one_error_on_all_ranks(home: bool) -> None:
    counts = torch.tensor([[1, 2, 0, 1], [2, 0, 3, 1]])
    pair = make_pair(counts, torch.float32, home)

    def rank(group: plait.Group) -> plait.Error:
        send, recv = counts_of(pair, home, group.rank)
        if group.rank == 1:  # the total stays
            recv = [recv[1], recv[0], *recv[2:]]
        with pytest.raises(plait.Error) as caught:
            call(home)(pair.x[group.rank], pair.weight[group.rank], group, send, recv)
        return caught.value

    for error in plait.run_ranks(2, rank, timeout=60):
        assert error.rank is not None and "rank 0" in str(error) and "rank 1" in str(error) and "expert" in str(error)


X, WEIGHT = torch.ones(2, K), torch.ones(1, K, N)


@HOME
@pytest.mark.parametrize(
    ("x", "weight", "send", "recv", "named"),
    [
        (X.double(), WEIGHT, [1, 1], [1, 1], "x"),
        (X[0], WEIGHT, [1, 1], [1, 1], "x"),
        (X, WEIGHT[0], [1, 1], [1, 1], "weight"),
        (X, WEIGHT.bfloat16(), [1, 1], [1, 1], "bf16"),
        (X[:, :-1], WEIGHT, [1, 1], [1, 1], f"{K - 1}"),
        (X, WEIGHT, [1, 1, 0], [1, 1], "send_counts has 3"),
        (X, WEIGHT, [3, -1], [1, 1], "-1"),
        (X, WEIGHT, [2, 1], [1, 1], "3"),
        (X, WEIGHT, torch.tensor([1.0, 1.0]), [1, 1], "send_counts"),
    ],
)
def test_a_wrong_argument_of_one_rank_stops_all(
    home: bool, x: Tensor, weight: Tensor, send: list[int] | Tensor, recv: list[int], named: str
) -> None:
    def rank(group: plait.Group) -> plait.Error:
        operands = (x, weight, group, send, recv) if group.rank == 1 else (X, WEIGHT, group, [1, 1], [1, 1])
        with pytest.raises(plait.Error) as caught:
            call(home)(*operands)
        return caught.value

    errors = plait.run_ranks(2, rank, timeout=60)
    assert [error.code for error in errors] == ["aborted", "invalid argument"] and errors[0].rank == 1
    assert all(named in str(error) for error in errors)


def test_the_two_operators_do_not_meet() -> None:
    def rank(group: plait.Group) -> plait.Error:
        with pytest.raises(plait.Error) as caught:
            call(group.rank == 1)(X, WEIGHT, group, [1, 1], [1, 1])
        return caught.value

    for error in plait.run_ranks(2, rank, timeout=60):
        assert error.rank is not None and "grouped_matmul_alltoallv" in str(error) and "alltoallv_grouped_matmul" in str(error)
