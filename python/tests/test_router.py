"""route against float64 and against known cases."""

import math

import pytest
import torch
from conftest import FLOATS
from torch import Tensor

import plait
from plait.ops import route

INF, NAN = float("inf"), float("nan")


def definition(logits: Tensor, ids: Tensor, score: str, norm_topk: bool, scaling: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights and both losses for a choice that is given."""
    ids = ids.long()
    num_tokens, num_experts = logits.shape
    scores = torch.sigmoid(logits) if score == "sigmoid" else torch.softmax(logits, -1)
    weights = scores.gather(1, ids)
    if score == "topk_softmax":
        weights = torch.softmax(logits.gather(1, ids), -1)
    elif norm_topk:
        weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if score == "sigmoid" else 0))
    shares = torch.bincount(ids.flatten(), minlength=num_experts) / ids.numel()
    means = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return weights * scaling, num_experts * (shares * means).sum(), logits.logsumexp(-1).square().mean()


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "topk_softmax"])
@pytest.mark.parametrize("norm_topk", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("num_experts", "k"), [(1, 1), (3, 3), (7, 5), (257, 17)])
def test_weights_losses_and_gradients(score: str, norm_topk: bool, dtype: torch.dtype, num_experts: int, k: int) -> None:
    logits = torch.randn(9, num_experts, dtype=dtype, requires_grad=True)
    routing = route(logits, k, score=score, norm_topk=norm_topk, scaling=2.5)
    exact_logits = logits.detach().double().requires_grad_()
    exact = definition(exact_logits, routing.expert_ids, score, norm_topk, 2.5)
    for got, wanted in zip((routing.weights, routing.load_balancing_loss, routing.z_loss), exact, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)
    best = torch.topk(exact_logits.detach(), k).values
    assert torch.equal(exact_logits.detach().gather(1, routing.expert_ids.long()), best)
    assert not routing.scores.requires_grad

    dweights = torch.randn(9, k)
    loss = (routing.weights * dweights).sum() + 0.3 * routing.load_balancing_loss + 0.7 * routing.z_loss
    exact_loss = (exact[0] * dweights.double()).sum() + 0.3 * exact[1] + 0.7 * exact[2]
    (dlogits,), (wanted,) = torch.autograd.grad(loss, logits), torch.autograd.grad(exact_loss, exact_logits)
    tolerance = max(torch.finfo(dtype).eps, 1e-5)
    torch.testing.assert_close(dlogits.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("which", ["weights", "load_balancing_loss", "z_loss"])
def test_each_result_alone_gives_its_gradient(which: str) -> None:
    logits = torch.randn(4, 6, requires_grad=True)
    routing = route(logits, 2)
    exact_logits = logits.detach().double().requires_grad_()
    exact = dict(zip(("weights", "load_balancing_loss", "z_loss"), definition(exact_logits, routing.expert_ids, "softmax", False, 1), strict=True))
    (dlogits,) = torch.autograd.grad(getattr(routing, which).square().sum(), logits)
    (wanted,) = torch.autograd.grad(exact[which].square().sum(), exact_logits)
    torch.testing.assert_close(dlogits.double(), wanted, rtol=1e-5, atol=1e-6)


def test_groups_that_take_no_part_count_as_minus_infinity() -> None:
    bias = torch.tensor([-0.7, -0.8, -0.9, -1.0])
    routing = route(torch.zeros(1, 4), 2, score="sigmoid", bias=bias, norm_topk=True, n_group=2, topk_group=1)
    assert routing.expert_ids.tolist() == [[0, 1]] and routing.weights.tolist() == [[0.5, 0.5]]
    routing = route(torch.full((1, 4), -100.0), 2, score="sigmoid", bias=torch.full((4,), -1.0), norm_topk=True, n_group=2, topk_group=1)
    assert routing.expert_ids.tolist() == [[0, 1]] and routing.weights.isfinite().all()


def test_equal_scores_go_to_the_smaller_id() -> None:
    routing = route(torch.zeros(1, 8), 3, norm_topk=True)
    assert routing.expert_ids.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(routing.weights, torch.full((1, 3), 1 / 3))
    assert route(torch.tensor([[-0.0, 0.0, -1, -1]]), 1, score="topk_softmax").expert_ids.item() == 0


def test_extreme_but_legal_logits() -> None:
    routing = route(torch.tensor([[-INF, -INF, 1, 2]]), 3)
    assert routing.expert_ids.tolist() == [[3, 2, 0]]
    torch.testing.assert_close(routing.weights, torch.tensor([[0.7310586, 0.2689414, 0]]))
    torch.testing.assert_close(route(torch.tensor([[1000.0, 999, 0, 0]]), 2).weights, torch.tensor([[0.7310586, 0.2689414]]))


@pytest.mark.parametrize("row", [[NAN] * 4, [0, NAN, 0, 0], [0, 0, 0, INF], [-INF] * 4])
def test_logits_without_a_choice_name_the_token(row: list[float]) -> None:
    with pytest.raises(plait.InvalidArgument, match="token 1"):
        route(torch.tensor([[0.0, 1, 2, 3], row]), 2)


def test_more_experts_per_token_than_experts() -> None:
    with pytest.raises(plait.InvalidArgument, match="5.*4"):
        route(torch.zeros(1, 4), 5)
    with pytest.raises(plait.InvalidArgument, match="softmax"):
        route(torch.zeros(1, 4), 1, score="best")


def test_load_balancing_loss_of_one_call() -> None:
    for logits in ([[math.log(3), 0.0]] * 2, [[0.0, math.log(3)]] * 2):
        assert route(torch.tensor(logits), 1).load_balancing_loss.item() == pytest.approx(1.5)
    assert route(torch.zeros(2, 4), 2).load_balancing_loss.item() == 1.0


def test_no_tokens() -> None:
    logits = torch.zeros(0, 4, requires_grad=True)
    routing = route(logits, 2)
    assert routing.expert_ids.shape == (0, 2) and routing.load_balancing_loss.item() == 0 and routing.z_loss.item() == 0
    (routing.weights.sum() + routing.z_loss).backward()
    assert logits.grad is not None and logits.grad.shape == (0, 4)


def test_strided_logits_and_gradients() -> None:
    logits = torch.randn(6, 3).t().requires_grad_()
    weights = route(logits, 2).weights
    (dlogits,) = torch.autograd.grad(weights, logits, torch.ones(()).expand(3, 2), retain_graph=True)
    (wanted,) = torch.autograd.grad(weights, logits, torch.ones(3, 2))
    assert torch.equal(dlogits, wanted)
