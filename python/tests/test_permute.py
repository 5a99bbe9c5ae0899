"""permute and unpermute against plain indexing and against each other."""

from collections.abc import Callable

import pytest
import torch
from conftest import FLOATS, close_to_exact, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import plait
from plait.ops import permute, unpermute


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(0, 12),
    k=st.integers(1, 4),
    experts=st.integers(1, 6),
    dtype=st.sampled_from(FLOATS),
    wide=st.booleans(),
    kept=st.integers(-5, 5),
)
def test_round_trip_and_gradients(tokens: int, k: int, experts: int, dtype: torch.dtype, wide: bool, kept: int) -> None:
    ids = torch.randint(0, experts, (tokens, k), dtype=torch.int64 if wide else torch.int32)
    x = torch.randn(tokens, 5, dtype=dtype, requires_grad=True)
    rows, position = permute(x, ids, num_out_rows=kept, num_experts=experts)
    order = torch.argsort(ids.flatten(), stable=True)
    total = tokens * k
    num_rows = total if kept == 0 else min(kept, total) if kept > 0 else max(total + kept, 0)
    assert same_bits(rows, x[order[:num_rows] // k])
    assert torch.equal(position.long(), torch.argsort(order, stable=True))

    weights = torch.randn(tokens, k, requires_grad=True)
    y = unpermute(rows, position, weights)
    padded = torch.cat([rows.double(), torch.zeros(total - num_rows, 5, dtype=torch.float64)])
    terms = padded[position.long()].view(tokens, k, 5) * weights.double()[..., None]
    assert close_to_exact(y, terms.sum(1), terms.abs().sum(1), k + 1)

    dy = torch.randn_like(y)
    drows, dweights = torch.autograd.grad(y, (rows, weights), dy, retain_graph=True)
    scaled = dy[order[:num_rows] // k].double() * weights.double().flatten()[order[:num_rows], None]
    assert close_to_exact(drows, scaled, scaled.abs(), 1)
    dots = (dy.double()[:, None] * padded[position.long()].view(tokens, k, 5)).sum(-1)
    torch.testing.assert_close(dweights.double(), dots, rtol=1e-5, atol=1e-5)

    (dx,) = torch.autograd.grad(rows, x, drows)
    back = torch.cat([drows.double(), torch.zeros(total - num_rows, 5, dtype=torch.float64)])[position.long()].view(tokens, k, 5)
    assert close_to_exact(dx, back.sum(1), back.abs().sum(1), k + 1)


def test_weights_belong_to_flat_entries() -> None:
    ids = torch.tensor([[1, 0], [0, 1]])
    rows, position = permute(torch.ones(2, 1), ids)
    weights = torch.tensor([[1.0, 10], [100, 1000]], requires_grad=True)
    y = unpermute(rows, position, weights)
    assert y.flatten().tolist() == [11, 1100]
    y.sum().backward()
    assert weights.grad is not None and weights.grad.eq(1).all()


def test_routing_map_with_a_different_number_of_experts_per_token() -> None:
    routing_map = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
    x = torch.tensor([[1.0], [2], [3]], requires_grad=True)
    rows, position = permute(x, routing_map=routing_map)
    assert rows.flatten().tolist() == [1, 3, 1, 3, 3]
    y = unpermute(rows, position, routing_map=routing_map)
    assert y.flatten().tolist() == [2, 0, 9]
    (dx,) = torch.autograd.grad(rows.sum(), x)
    assert dx.flatten().tolist() == [2, 0, 3]

    weights = torch.full((3, 3), 2.0, requires_grad=True)
    y = unpermute(rows.detach(), position, weights, routing_map=routing_map)
    assert y.flatten().tolist() == [4, 0, 18]
    (dweights,) = torch.autograd.grad(y.sum(), weights)
    assert dweights.tolist() == [[1, 1, 0], [0, 0, 0], [3, 3, 3]]

    rows, position = permute(x, routing_map=routing_map, num_out_rows=4)
    assert rows.flatten().tolist() == [1, 3, 1, 3] and position.shape == (5,)


@pytest.mark.parametrize("tokens", [0, 3])
def test_routing_map_without_entries(tokens: int, poison: Callable[..., None]) -> None:
    routing_map = torch.zeros(tokens, 4, dtype=torch.bool)
    x = torch.randn(tokens, 2, requires_grad=True)
    poison((tokens, 2))
    rows, position = permute(x, routing_map=routing_map)
    assert rows.shape == (0, 2) and position.shape == (0,)
    y = unpermute(rows, position, routing_map=routing_map)
    assert y.eq(0).all() and y.shape == (tokens, 2)
    y.sum().backward()
    assert x.grad is not None and x.grad.eq(0).all()


def test_the_tree_over_expert_ids_and_the_order_of_slots() -> None:
    by_expert = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    for ids, by_slot in ((torch.tensor([[0, 1, 2, 3]]), 1.0), (torch.tensor([[2, 0, 3, 1]]), 2.0)):
        _, position = permute(torch.ones(1, 1), ids)
        assert unpermute(by_expert, position, k=4).item() == by_slot
        assert unpermute(by_expert, position, expert_ids=ids, num_experts=4).item() == 0.0
        x = torch.ones(1, 1, requires_grad=True)
        for tree, wanted in ((False, by_slot), (True, 0.0)):
            rows, _ = permute(x, ids, num_experts=4, tree=tree)
            (dx,) = torch.autograd.grad(rows, x, by_expert)
            assert dx.item() == wanted


def test_sums_are_not_kept_in_bfloat16() -> None:
    rows = torch.tensor([[256.0], [1], [1]], dtype=torch.bfloat16)
    assert unpermute(rows, torch.arange(3, dtype=torch.int32), k=3).item() == 258


def test_a_weight_of_zero_keeps_its_nan_to_itself_in_the_tree() -> None:
    rows = torch.tensor([[float("nan")], [2.0]])
    position, ids = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([[0, 1]])
    assert unpermute(rows, position, torch.tensor([[0.0, 3.0]]), expert_ids=ids, num_experts=2).item() == 6


def test_gradients_of_any_stride() -> None:
    ids = torch.tensor([[1, 0], [0, 1], [1, 1]])
    x = torch.randn(6, 3).t().requires_grad_()
    weights = torch.randn(2, 3).t().requires_grad_()
    rows, position = permute(x, ids)
    y = unpermute(rows, position, weights)
    for dy in (torch.ones(()).expand(3, 6), torch.randn(6, 3).t()):
        got = torch.autograd.grad(y, (x, weights), dy, retain_graph=True)
        for a, b in zip(got, torch.autograd.grad(y, (x, weights), dy.contiguous(), retain_graph=True), strict=True):
            assert same_bits(a.contiguous(), b.contiguous())


def test_a_result_is_never_its_operand() -> None:
    x = torch.randn(3, 2)
    rows, position = permute(x, torch.zeros(3, 1, dtype=torch.int32))
    assert same_bits(rows, x) and rows.data_ptr() != x.data_ptr()
    assert unpermute(rows, position, k=1).data_ptr() != rows.data_ptr()


@pytest.mark.parametrize("value", [-1, 4, 2**32, -(2**40)])
def test_ids_out_of_range_name_token_and_slot(value: int) -> None:
    ids = torch.tensor([[0, 1], [2, value]])
    with pytest.raises(plait.InvalidArgument, match="(?s)1.*1") as caught:
        permute(torch.ones(2, 3), ids, num_experts=4)
    if abs(value) < 2**31:
        assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, ids: permute(x),
        lambda x, ids: permute(x, ids, routing_map=ids.bool()),
        lambda x, ids: permute(x, ids, tree=True),
        lambda x, ids: permute(x, ids.float()),
        lambda x, ids: permute(x, routing_map=ids),
        lambda x, ids: permute(x, ids[:1]),
        lambda x, ids: permute(x[0], ids),
        lambda x, ids: unpermute(x, ids.flatten().int()),
        lambda x, ids: unpermute(x, ids.flatten().int(), k=3),
        lambda x, ids: unpermute(x, ids.flatten().int(), torch.ones(2, 2), k=1),
        lambda x, ids: unpermute(x, ids.flatten().int(), expert_ids=ids),
    ],
)
def test_misuse_is_refused(call: Callable[[Tensor, Tensor], object]) -> None:
    with pytest.raises(plait.InvalidArgument):
        call(torch.ones(2, 3), torch.tensor([[0, 1], [1, 0]]))


def test_ids_beyond_the_experts_take_no_part() -> None:
    ids = torch.tensor([[1, 3], [9, 2], [0, 2**40]])
    x = torch.randn(3, 4, requires_grad=True)
    rows, position = permute(x, ids, num_experts=3, sentinel=True)
    assert position.tolist() == [1, -1, -1, 2, 0, -1]
    assert same_bits(rows[:3], x[[2, 0, 1]]) and rows.shape == (6, 4) and not rows[3:].any()
    y = unpermute(rows, position, k=2)
    assert same_bits(y, x)
    (dx,) = torch.autograd.grad(rows.sum(), x, retain_graph=True)
    assert same_bits(dx, torch.ones_like(x))
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert same_bits(dx, torch.ones_like(x))
    kept, _ = permute(x, ids, num_experts=3, sentinel=True, num_out_rows=2)
    assert same_bits(kept, rows[:2])
    with pytest.raises(plait.InvalidArgument, match="sentinel"):
        permute(x, ids, sentinel=True)
    with pytest.raises(plait.InvalidArgument, match="-1"):
        permute(x, ids - 2, num_experts=3, sentinel=True)
