"""plait.last_run and what PyTorch's profiler shows."""

import pytest
import torch
from torch import Tensor

import plait
from plait import ops

H, WIDTH = 16, 8


def layer(group: plait.Group, dispatcher: str = "alltoall") -> Tensor:
    """Every token of every rank goes to both experts of two ranks."""
    x, gate_up, down = torch.ones(6, H, requires_grad=True), torch.ones(1, H, 2 * WIDTH), torch.ones(1, WIDTH, H)
    return ops.moe_layer(x, torch.tensor([[0, 1]]).expand(6, 2), None, gate_up, down, group, dispatcher=dispatcher)


@pytest.mark.parametrize("dispatcher", ["alltoall", "mc2"])
def test_figures_of_the_last_calls(dispatcher: str) -> None:
    def rank(group: plait.Group) -> dict[str, plait.Run]:
        assert plait.last_run(group) == {}
        for _ in range(3):  # figures are those of one call, not of all
            layer(group, dispatcher).sum().backward()
        return plait.last_run(group)

    for number, runs in enumerate(plait.run_ranks(2, rank, timeout=120)):
        assert list(runs) == ["moe_layer", "moe_layer_backward"]
        for operation, run in runs.items():
            assert run.operation == operation and run.rank == number
            assert 0 <= run.wait_ms <= run.time_ms and 0 <= run.busy <= 1
            assert set(run.peer_wait_ms) <= {1 - number}
            assert operation in str(run)
        counters = runs["moe_layer"].counters
        # Six rows go out and six come in; their results travel the other way.
        assert (counters["rows_sent"], counters["rows_received"]) == (12, 12) and counters["bytes_sent"] >= 12 * H * 4
        assert runs["moe_layer"].stages_ms["gate_up"] > 0 and runs["moe_layer_backward"].stages_ms["backward_gate_up"] > 0
        assert counters["matmul_flops"] == 2 * 12 * (H * 2 * WIDTH + WIDTH * H)


def test_without_a_group_the_one_that_called_last() -> None:
    (first,), (second,) = (plait.run_ranks(1, lambda group: group) for _ in range(2))
    ids = torch.zeros(1, 1).int()
    for group in (first, second, first):
        ops.mc2_fused_expert(torch.ones(1, H), torch.ones(1, H, 4), None, torch.ones(1, 4, H), ids, group, activation="relu2")
        assert plait.last_run() == plait.last_run(group)
    assert list(plait.last_run()) == ["mc2_fused_expert"] and plait.last_run(first) != plait.last_run(second)


def test_the_profiler_shows_operators_and_their_stages() -> None:
    (group,) = plait.run_ranks(1, lambda group: group)
    x, weight = torch.ones(2, H, requires_grad=True), torch.ones(1, H, 2)

    def run() -> None:
        ids, gate_up, down = torch.zeros(6, 1).int(), torch.ones(1, H, 2 * WIDTH), torch.ones(1, WIDTH, H)
        y = ops.moe_layer(torch.ones(6, H, requires_grad=True), ids, None, gate_up, down, group)
        (y.sum() + ops.alltoallv_grouped_matmul(x, weight, group, [2], [2])[0].sum()).backward()

    with torch.profiler.profile() as profile:
        run()
    names = {event.name for event in profile.events()}
    operators = {"plait::moe_layer", "plait::moe_layer_backward", "plait::alltoallv_grouped_matmul"}
    assert operators <= names, names
    assert {"plait::route", "plait::gate_up", "plait::backward_gate_up", "plait::exchange_counts"} <= names, names
    run()
    with torch.profiler.profile() as profile:  # and only while it runs
        pass
    assert not any(event.name.startswith("plait::") for event in profile.events())
