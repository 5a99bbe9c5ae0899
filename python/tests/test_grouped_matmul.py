"""grouped_matmul against float64 and against its own composed forms."""

from collections.abc import Callable

import pytest
import torch
from conftest import FLOATS, close_to_exact, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import plait
from plait.ops import grouped_matmul

Lists = dict[int, list[int] | list[list[int]]]


def per_group(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    """The definition in float64, rows beyond the list 0."""
    parts, begin = [], 0
    for g, count in enumerate(counts):
        parts.append(x[begin : begin + count].double() @ weight[g].double())
        begin += count
    parts.append(torch.zeros(x.shape[0] - begin, weight.shape[2], dtype=torch.float64))
    return torch.cat(parts)


def as_lists(counts: list[int]) -> Lists:
    ends = torch.tensor(counts).cumsum(0).tolist()
    return {0: ends, 1: counts, 2: [[g, n] for g, n in enumerate(counts) if n > 0] or [[0, 0]]}


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    k=st.integers(1, 40),
    n=st.integers(1, 40),
    tail=st.integers(0, 3),
    dtype=st.sampled_from(FLOATS),
    transposed=st.booleans(),
    list_type=st.integers(0, 2),
)
def test_forward_and_gradients_agree_with_float64(
    counts: list[int], k: int, n: int, tail: int, dtype: torch.dtype, transposed: bool, list_type: int
) -> None:
    rows, groups = sum(counts), len(counts)
    x = torch.randn(rows + tail, k, dtype=dtype, requires_grad=True)
    stored = torch.randn((groups, n, k) if transposed else (groups, k, n), dtype=dtype, requires_grad=True)
    weight = stored.transpose(1, 2) if transposed else stored
    y = grouped_matmul(x, weight, as_lists(counts)[list_type], group_list_type=list_type)
    assert close_to_exact(y, per_group(x, weight, counts), per_group(x.abs(), weight.abs(), counts), k)
    assert same_bits(y, grouped_matmul(x, weight, counts, fused=False))

    dy = torch.randn_like(y)
    dx, dstored = torch.autograd.grad(y, (x, stored), dy)
    dw = dstored.transpose(1, 2) if transposed else dstored
    back = weight.transpose(1, 2)
    assert close_to_exact(dx, per_group(dy, back, counts), per_group(dy.abs(), back.abs(), counts), n)
    assert dstored.is_contiguous()
    begin = 0
    for g, count in enumerate(counts):
        x_g, dy_g = x[begin : begin + count].double(), dy[begin : begin + count].double()
        assert close_to_exact(dw[g], x_g.t() @ dy_g, x_g.abs().t() @ dy_g.abs(), max(count, 1))
        begin += count
    assert same_bits(dw, grouped_matmul(x.detach().t(), dy, counts, group_type=2))


def test_tail_is_neither_read_nor_left_unwritten(poison: Callable[..., None]) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, 0], [0, 1], [1, 1], [inf, nan], [7, 7]], requires_grad=True)
    weight = torch.tensor([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]], requires_grad=True)
    dy = torch.tensor([[1.0, 1]] * 3 + [[nan, nan]] * 2)
    for _ in range(3):
        poison((5, 2), (2, 2, 2))
        y = grouped_matmul(x, weight, [2, 1])
        poison((5, 2), (2, 2, 2))
        dx, dw = torch.autograd.grad(y, (x, weight), dy)
        assert y.tolist() == [[1, 2], [3, 4], [12, 14], [0, 0], [0, 0]]
        assert dx.tolist() == [[3, 7], [3, 7], [11, 15], [0, 0], [0, 0]]
        assert dw.tolist() == [[[1, 1], [1, 1]]] * 2


def test_groups_without_rows(poison: Callable[..., None]) -> None:
    x, dy = torch.ones(3, 2), torch.ones(3, 2)
    poison((4, 2, 2))
    dw = grouped_matmul(x.t(), dy, [2, 0, 1, 0], group_type=2)
    assert dw.sum((1, 2)).tolist() == [8, 0, 4, 0]

    empty = torch.empty(0, 2, requires_grad=True)
    weight = torch.ones(4, 2, 2, requires_grad=True)
    poison((4, 2, 2))
    y = grouped_matmul(empty, weight, [0, 0, 0, 0])
    y.sum().backward()
    assert y.shape == (0, 2) and empty.grad is not None and empty.grad.shape == (0, 2)
    assert weight.grad is not None and weight.grad.eq(0).all() and weight.grad.shape == (4, 2, 2)

    accumulator = torch.full((4, 2, 2), 5.0)
    result = grouped_matmul(x[:1].t(), dy[:1], [1, 0, 0, 0], group_type=2, accumulate_into=accumulator)
    assert result is accumulator
    assert accumulator.flatten(1).tolist() == [[6] * 4, [5] * 4, [5] * 4, [5] * 4]

    parts = grouped_matmul(x, weight, [2, 0, 1, 0], split_item=0)
    assert [tuple(p.shape) for p in parts] == [(2, 2), (0, 2), (1, 2), (0, 2)]
    parts = grouped_matmul(x, weight, [[0, 2], [2, 1]], group_list_type=2, split_item=1)
    assert [p.shape[0] for p in parts] == [2, 0, 1, 0]
    parts = grouped_matmul(x, weight, [2, 2, 3, 3], group_list_type=0, split_item=1)
    assert [p.shape[0] for p in parts] == [2, 0, 1, 0]


def test_odd_sizes_and_a_transposed_view() -> None:
    x = torch.tensor([[i + k for k in range(5)] for i in range(3)], dtype=torch.bfloat16)
    stored = torch.ones(2, 7, 5, dtype=torch.bfloat16)
    stored[0] = torch.eye(7, 5)
    y = grouped_matmul(x, stored.transpose(1, 2), [1, 2])
    assert y.tolist() == [[0, 1, 2, 3, 4, 0, 0], [15] * 7, [20] * 7]


def test_stride_of_zero_everywhere() -> None:
    x = torch.tensor([1.0, 2, 3, 4]).as_strided((1, 4), (0, 1)).requires_grad_()
    weight = torch.ones(4, 2).as_strided((1, 4, 2), (0, 2, 1)).requires_grad_()
    y = grouped_matmul(x, weight, [1])
    dx, dw = torch.autograd.grad(y.sum(), (x, weight))
    assert y.tolist() == [[10, 10]] and dx.tolist() == [[2] * 4]
    assert dw[0].tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_strided_operands_and_gradients_give_the_bits_of_contiguous_ones() -> None:
    base = torch.randn(6, 10)
    for x in (base[:, :5], base[:, ::2], torch.randn(5, 6).t(), base[:, :5].flip(0)):
        leaf = x.detach().requires_grad_()
        weight = torch.randn(2, 5, 6, requires_grad=True)
        y = grouped_matmul(leaf, weight, [2, 4])
        assert same_bits(y, grouped_matmul(x.contiguous(), weight, [2, 4]))
        dy = torch.randn(6, 6).t()
        got = torch.autograd.grad(y, (leaf, weight), dy, retain_graph=True)
        for a, b in zip(got, torch.autograd.grad(y, (leaf, weight), dy.contiguous()), strict=True):
            assert same_bits(a, b)


@pytest.mark.parametrize(
    ("group_list", "list_type", "words"),
    [
        ([3, 2], 0, ("3", "2", "1")),
        ([2, 5], 0, ("5", "4")),
        ([-1, 5], 1, ("-1", "0")),
        ([1, 1, 1, 1], 1, ("4", "2")),
        ([[1, 1], [0, 1]], 2, ("1", "0")),
    ],
)
def test_wrong_lists_are_refused(group_list: list[int] | list[list[int]], list_type: int, words: tuple[str, ...]) -> None:
    out = torch.full((4, 1), 3.0)
    with pytest.raises(plait.InvalidArgument) as caught:
        grouped_matmul(torch.ones(4, 1), torch.ones(2, 1, 1), group_list, group_list_type=list_type, out=out)
    assert all(word in str(caught.value) for word in words)
    assert isinstance(caught.value, ValueError) and caught.value.code == "invalid argument"
    assert out.eq(3).all()


def test_the_list_type_is_never_guessed() -> None:
    x, weight = torch.ones(4, 1), torch.tensor([[[10.0]], [[20.0]]])
    assert grouped_matmul(x, weight, [2, 2], group_list_type=0).flatten().tolist() == [10, 10, 0, 0]
    assert grouped_matmul(x, weight, [2, 2], group_list_type=1).flatten().tolist() == [10, 10, 20, 20]


def test_bias_and_its_gradient() -> None:
    x, weight = torch.randn(5, 3), torch.randn(2, 3, 4)
    bias = torch.randn(2, 4, requires_grad=True)
    y = grouped_matmul(x, weight, [3, 1], bias=bias)
    exact = per_group(x, weight, [3, 1])
    exact[:3] += bias[0].double()
    exact[3:4] += bias[1].double()
    torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=1e-6)
    dy = torch.randn_like(y)
    (dbias,) = torch.autograd.grad(y, bias, dy)
    torch.testing.assert_close(dbias, torch.stack([dy[:3].sum(0), dy[3:4].sum(0)]))


def test_lists_without_grouping() -> None:
    x = [torch.randn(m, k, requires_grad=True) for m, k in ((2, 3), (0, 5), (4, 1))]
    weight = [torch.randn(t.shape[1], 6, requires_grad=True) for t in x]
    bias = [torch.randn(6, requires_grad=True) for _ in x]
    y = list(grouped_matmul(x, weight, group_type=-1, bias=bias, split_item=0))
    for a, b, c, d in zip(y, x, weight, bias, strict=True):
        torch.testing.assert_close(a, b @ c + d)
    joined = grouped_matmul(x, weight, group_type=-1, bias=bias)
    assert isinstance(joined, Tensor) and same_bits(joined, torch.cat(y))
    got = torch.autograd.grad(joined.square().sum(), [*x, *weight, *bias])
    expected = torch.autograd.grad(torch.cat([b @ c + d for b, c, d in zip(x, weight, bias, strict=True)]).square().sum(), [*x, *weight, *bias])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_out_is_written_and_takes_no_part_in_autograd() -> None:
    x, weight = torch.randn(4, 3), torch.randn(2, 3, 5)
    out = torch.full((4, 5), float("nan"))
    assert grouped_matmul(x, weight, [1, 2], out=out) is out
    assert same_bits(out, grouped_matmul(x, weight, [1, 2]))
    dw = torch.full((2, 3, 4), float("nan"))
    grouped_matmul(x.t(), torch.ones(4, 4), [[0, 2]], group_list_type=2, group_type=2, out=dw)
    assert dw[1].eq(0).all() and same_bits(dw[0], x[:2].sum(0)[:, None].expand(3, 4))
    with pytest.raises(plait.InvalidArgument, match="autograd"):
        grouped_matmul(x.requires_grad_(), weight, [1, 2], out=out)


def test_gradcheck_of_both_forms() -> None:
    # Bilinear with small integers: central differences with a step of 1/4 are exact in float32.
    def integers(*shape: int) -> Tensor:
        return torch.randint(-3, 4, shape).float().requires_grad_()

    arguments = (integers(5, 3), integers(2, 3, 4), integers(2, 4))
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(lambda x, w, b: grouped_matmul(x, w, [2, 2], bias=b), arguments, eps=0.25, atol=1e-6)
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(
            lambda x, dy: grouped_matmul(x.t(), dy, [2, 2], group_type=2), (integers(5, 3), integers(5, 4)), eps=0.25, atol=1e-6
        )


def test_gradients_of_the_k_grouped_form() -> None:
    x, dy, ddw = torch.randn(5, 3, requires_grad=True), torch.randn(5, 4, requires_grad=True), torch.randn(2, 3, 4)
    got = torch.autograd.grad(grouped_matmul(x.t(), dy, [3, 1], group_type=2), (x, dy), ddw)
    parts = torch.stack([x[:3].t() @ dy[:3], x[3:4].t() @ dy[3:4]])
    for a, b in zip(got, torch.autograd.grad(parts, (x, dy), ddw), strict=True):
        torch.testing.assert_close(a, b)


def test_used_twice_in_one_graph_and_two_forwards_before_a_backward() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    weight = torch.randn(2, 3, 3, requires_grad=True)
    exact_x, exact_weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()

    def twice(multiply: Callable[[Tensor, Tensor], Tensor], a: Tensor, w: Tensor) -> Tensor:
        return multiply(multiply(a, w), w).sum()

    first = twice(lambda a, w: grouped_matmul(a, w, [1, 3]), x, weight)
    second = grouped_matmul(x, weight, [3, 1]).sum()
    (first + second).backward()
    exact = twice(lambda a, w: per_group_of(a, w, [1, 3]), exact_x, exact_weight)
    (exact + per_group_of(exact_x, exact_weight, [3, 1]).sum()).backward()
    for got, wanted in ((x, exact_x), (weight, exact_weight)):
        assert got.grad is not None and wanted.grad is not None
        torch.testing.assert_close(got.grad.double(), wanted.grad, rtol=1e-5, atol=1e-5)


def per_group_of(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    return torch.cat([part @ weight[g] for g, part in enumerate(x.split(counts))])


def test_autocast_casts_as_matmul_does() -> None:
    x, weight = torch.randn(4, 3, requires_grad=True), torch.randn(2, 3, 5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = grouped_matmul(x, weight, [2, 2])
        parts = grouped_matmul([x], [weight[0]], group_type=-1, split_item=0)
    assert y.dtype == torch.bfloat16 and parts[0].dtype == torch.bfloat16
    assert same_bits(y, grouped_matmul(x.bfloat16(), weight.bfloat16(), [2, 2]))
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize(
    "call",
    [
        lambda: grouped_matmul(torch.ones(2, 3).double(), torch.ones(1, 3, 2).double(), [2]),
        lambda: grouped_matmul(torch.ones(2, 3), torch.ones(1, 4, 2), [2]),
        lambda: grouped_matmul(torch.ones(2, 3), torch.ones(1, 3, 2).bfloat16(), [2]),
        lambda: grouped_matmul(torch.ones(2, 3), torch.ones(3, 2), [2]),
        lambda: grouped_matmul(torch.ones(2, 3), torch.ones(1, 3, 2)),
        lambda: grouped_matmul(torch.ones(2, 3), torch.ones(1, 3, 2), [2], group_list_type=3),
        lambda: grouped_matmul([torch.ones(2, 3)], torch.ones(1, 3, 2), [2]),
        lambda: grouped_matmul([torch.ones(2, 3)], [], group_type=-1),
        lambda: grouped_matmul(torch.ones(3, 2), torch.ones(2, 2), [[0, 2]], group_list_type=2, group_type=2),
    ],
)
def test_misuse_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(plait.InvalidArgument):
        call()
