"""Training with sharded experts beside DDP and FSDP2: one step of two ranks equals the step of one process over the whole batch."""

import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_processes
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import plait

E, H, WIDTH, K, T = 4, 8, 6, 2, 12
MAX_NORM = 0.05  # well below the norms that arise
one_at_a_time = threading.Lock()  # ranks as threads have one random state


class Block(nn.Module):
    def __init__(self, group: plait.Group, recompute: bool):
        super().__init__()
        self.norm = nn.LayerNorm(H)
        self.moe = plait.nn.MoE(E, H, WIDTH, K, group, norm_topk=True, shared_intermediate=5, shared_gate=True)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self._layer, x, use_reentrant=False) if self.recompute else self._layer(x)
        return x + y

    def _layer(self, x: Tensor) -> Tensor:
        return self.moe(self.norm(x))


def make_model(group: plait.Group, recompute: bool = False) -> nn.Sequential:
    with one_at_a_time:
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(H, H), Block(group, recompute), Block(group, recompute), nn.Linear(H, 3))


def make_batch() -> tuple[Tensor, Tensor]:
    with one_at_a_time:
        torch.manual_seed(9)
        return torch.randn(T, H), torch.randn(T, 3)


def backward(model: nn.Module, x: Tensor, wanted: Tensor, parts: int = 1) -> None:
    """The mean over the batch, in one go or added up over parts."""
    for own_x, own_wanted in zip(x.chunk(parts), wanted.chunk(parts), strict=True):
        ((model(own_x) - own_wanted).square().mean() / parts).backward()


def step(model: nn.Module, parts: int = 1, batch: tuple[Tensor, Tensor] | None = None) -> float:
    """One training step; the norm before clipping."""
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    backward(model, *(batch or make_batch()), parts)
    norm = plait.clip_grad_norm_(model, MAX_NORM).item()
    optimizer.step()
    return norm


def alone() -> plait.Group:
    return plait.run_ranks(1, lambda group: group)[0]


def with_ddp(group: plait.Group, recompute: bool) -> nn.Module:
    model = make_model(group, recompute)
    plait.exclude_experts_from_ddp(model)
    plait.scale_expert_gradients(model)
    return DistributedDataParallel(model)


def with_fsdp(group: plait.Group, recompute: bool) -> nn.Module:
    model = make_model(group, recompute)
    experts = set(plait.expert_parameters(model).values())
    plait.scale_expert_gradients(model)
    for block in (model[1], model[2]):
        fully_shard(block, ignored_params=experts)
    fully_shard(model, ignored_params=experts)
    return model


CASES: dict[str, tuple[Callable[[plait.Group, bool], nn.Module], bool, int]] = {
    "ddp": (with_ddp, False, 1),
    "ddp, recomputed, two backwards": (with_ddp, True, 2),
    "fsdp": (with_fsdp, False, 1),
    "fsdp, recomputed, two backwards": (with_fsdp, True, 2),
}


def train_two_ranks() -> dict[str, Any]:
    group = plait.Group.from_process_group()
    results = {}
    for name, (wrap, recompute, parts) in CASES.items():
        model = wrap(group, recompute)
        x, wanted = (whole.chunk(2)[group.rank] for whole in make_batch())
        norm = step(model, parts, (x, wanted))
        state = {key.removeprefix("module."): value for key, value in plait.full_state_dict(model).items()}
        # Whole weights load into FSDP's and DDP's models, too.
        again = wrap(group, recompute)
        plait.load_full_state_dict(again, {f"module.{k}": v for k, v in state.items()} if name.startswith("ddp") else state)
        reloaded = {key.removeprefix("module."): value for key, value in plait.full_state_dict(again).items()}
        assert all(torch.equal(reloaded[key], value) for key, value in state.items())
        results[name] = (norm, state)
    resume(with_fsdp(group, False), with_fsdp(group, False), group)
    return results


def resume(model: nn.Module, again: nn.Module, group: plait.Group) -> None:
    """Saves after a step of AdamW and loads into another model; both then take the same step."""
    x, wanted = (whole.chunk(2)[group.rank] for whole in make_batch())
    optimizers = [torch.optim.AdamW(m.parameters(), 0.1) for m in (model, again)]

    def train(m: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        backward(m, x, wanted)
        optimizer.step()

    train(model, optimizers[0])
    plait.load_full_state_dict(again, plait.full_state_dict(model))
    plait.load_full_optimizer_state_dict(again, optimizers[1], plait.full_optimizer_state_dict(model, optimizers[0]))
    for m, optimizer in zip((model, again), optimizers, strict=True):
        train(m, optimizer)
    first, second = plait.full_state_dict(model), plait.full_state_dict(again)
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_a_step_equals_that_of_one_process(tmp_path: Path) -> None:
    model = make_model(alone())
    norm = step(model)
    wanted = model.state_dict()
    before = make_model(alone()).state_dict()
    assert norm > 2 * MAX_NORM and all(not torch.equal(value, before[key]) for key, value in wanted.items())
    for results in run_processes(2, train_two_ranks, tmp_path):
        for name, (own_norm, state) in results.items():
            assert own_norm == pytest.approx(norm, rel=1e-5), name
            assert list(state) == list(wanted)
            for key, value in wanted.items():
                assert torch.allclose(state[key], value, rtol=1e-5, atol=1e-6), (name, key)


def test_scaled_gradients_are_those_of_the_mean_over_ranks() -> None:
    """One expert, one token on each of two ranks: the sum is 2, the mean 1."""

    def rank(group: plait.Group) -> tuple[float, float, float]:
        experts = plait.nn.Experts(2, 1, 1, group, activation="relu2")
        with torch.no_grad():
            experts.gate_up.fill_(1)
            experts.down.fill_(1)

        def gradient() -> float:
            experts.zero_grad()
            experts(torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32)).sum().backward()
            assert experts.down.grad is not None
            return experts.down.grad.item()

        plain = gradient()
        handle = plait.scale_expert_gradients(experts)
        scaled = gradient()
        handle.remove()
        plait.scale_expert_gradients(experts, 4)
        return plain, scaled, gradient()

    assert plait.run_ranks(2, rank) == [(2.0, 1.0, 0.5), (0.0, 0.0, 0.0)]


class Pair(nn.Module):
    def __init__(self, group: plait.Group):
        super().__init__()
        self.experts = plait.nn.Experts(2, 1, 1, group, activation="relu2")
        self.other = nn.Parameter(torch.zeros(4))


def clip(
    group: plait.Group, parameters: Callable[[nn.Module], Any], max_norm: float = 1e9, copied: bool = False, **options: Any
) -> tuple[float, Tensor, Tensor]:
    """Expert gradients with squared norms of 20 on rank 0 and 100 on rank 1, and a replicated one of 4 that counts once."""
    model = deepcopy(Pair(group)) if copied else Pair(group)
    model.experts.down.grad = torch.full((1, 1, 1), 20.0**0.5 if group.rank == 0 else 10.0)
    model.other.grad = torch.ones(4)
    norm = plait.clip_grad_norm_(parameters(model), max_norm, **options)
    return norm.item(), model.experts.down.grad, model.other.grad


@pytest.mark.parametrize("parameters", [lambda m: m, lambda m: m.parameters(), lambda m: list(m.parameters())])
def test_the_norm_of_sharded_experts(parameters: Callable[[nn.Module], Any]) -> None:
    for norm, _, _ in plait.run_ranks(2, lambda group: clip(group, parameters)):
        assert norm == pytest.approx(124**0.5)
    for norm, _, _ in plait.run_ranks(2, lambda group: clip(group, lambda m: m, copied=True)):
        assert norm == pytest.approx(124**0.5)
    for norm, _, _ in plait.run_ranks(2, lambda group: clip(group, parameters, norm_type=float("inf"))):
        assert norm == 10.0
    for norm, _, _ in plait.run_ranks(2, lambda group: clip(group, parameters, norm_type=1.0)):
        assert norm == pytest.approx(20**0.5 + 10 + 4)


def test_clipping_scales_all_gradients_alike() -> None:
    for rank, (_, expert, other) in enumerate(plait.run_ranks(2, lambda group: clip(group, lambda m: m, 1.0))):
        torch.testing.assert_close(expert.item(), (20**0.5 if rank == 0 else 10.0) / 124**0.5)
        torch.testing.assert_close(other, torch.full((4,), 1 / 124**0.5))


def test_norms_that_are_not_finite_and_models_without_gradients() -> None:
    def rank(group: plait.Group) -> float:
        model = Pair(group)
        empty = plait.clip_grad_norm_(model, 1.0).item()
        if group.rank == 1:
            model.experts.down.grad = torch.full((1, 1, 1), float("nan"))
        with pytest.raises(RuntimeError, match="cannot be clipped"):
            plait.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
        return empty

    assert plait.run_ranks(2, rank) == [0.0, 0.0]


def test_a_rank_that_does_not_clip_is_named() -> None:
    def rank(group: plait.Group) -> str:
        model = Pair(group)
        if group.rank == 1:
            return ""
        with pytest.raises(plait.Error) as caught:
            plait.clip_grad_norm_(model, 1.0)
        return f"{caught.value.code} {caught.value.rank}"

    assert plait.run_ranks(2, rank, timeout=0.3) == ["timeout 1", ""]
