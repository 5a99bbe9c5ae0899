"""mc2_fused_expert: the bits of moe_layer with joined weights, forward and backward, whichever experts' weights it is given."""

from collections.abc import Callable

import pytest
import torch
from conftest import FLOATS, same_bits
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import plait
from plait import ops

fused_expert: Callable[..., Tensor] = ops.mc2_fused_expert
E, H, WIDTH, K = 4, 8, 6, 2
SHAPE = (2, 3)  # leading dimensions of x on each rank


def make_operands(size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Of all ranks: x, ids, weights and dy with the rank in front; the weights of all experts."""
    shapes = {"x": (size, *SHAPE, H), "dy": (size, *SHAPE, H), "up": (E, H, WIDTH), "gate": (E, H, WIDTH), "down": (E, WIDTH, H)}
    operands = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(size * 6)]).view(size, *SHAPE, K)
    return operands | {"ids": ids, "weights": torch.rand(size, *SHAPE, K)}


def own_experts(group: plait.Group, tensor: Tensor) -> Tensor:
    return tensor[group.rank * E // group.size : (group.rank + 1) * E // group.size]


def define(group: plait.Group, given: dict[str, Tensor]) -> list[Tensor]:
    """y and the gradients of x, expert_weights, up, gate and down of this rank's experts, by moe_layer."""
    x, weights = (given[name][group.rank].flatten(0, -2).requires_grad_() for name in ("x", "weights"))
    gate_up = own_experts(group, torch.cat([given["gate"], given["up"]], 2)).clone().requires_grad_()
    down = own_experts(group, given["down"]).clone().requires_grad_()
    y = ops.moe_layer(x, given["ids"][group.rank].flatten(0, -2), weights, gate_up, down, group)
    dx, dweights, dgate_up, ddown = torch.autograd.grad(y, (x, weights, gate_up, down), given["dy"][group.rank].flatten(0, -2))
    dgate, dup = dgate_up.chunk(2, 2)
    return [y.detach().view(*SHAPE, H), dx.view(*SHAPE, H), dweights.view(*SHAPE, K), dup.contiguous(), dgate.contiguous(), ddown]


def run(group: plait.Group, given: dict[str, Tensor], whole: bool) -> list[Tensor]:
    x, weights = (given[name][group.rank].clone().requires_grad_() for name in ("x", "weights"))
    parameters = [(given[name] if whole else own_experts(group, given[name])).clone().requires_grad_() for name in ("up", "gate", "down")]
    y = fused_expert(x, *parameters, given["ids"][group.rank], group, weights, num_experts=E if whole else None)
    gradients = torch.autograd.grad(y, (x, weights, *parameters), given["dy"][group.rank])
    if whole:
        for gradient in gradients[2:]:
            others = gradient.clone()
            own_experts(group, others).zero_()
            assert not others.any() and own_experts(group, gradient).any()
        gradients = (*gradients[:2], *(own_experts(group, gradient) for gradient in gradients[2:]))
    return [y.detach(), *gradients]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_bits_of_moe_layer(dtype: torch.dtype, size: int) -> None:
    given = make_operands(size, dtype)
    wanted = plait.run_ranks(size, lambda group: define(group, given), timeout=120)
    for whole in (False, True):
        got = plait.run_ranks(size, lambda group, whole=whole: run(group, given, whole), timeout=120)  # type: ignore[misc]
        for own, own_wanted in zip(got, wanted, strict=True):
            assert all(same_bits(a, b) for a, b in zip(own, own_wanted, strict=True))


def test_halves_of_one_matrix_get_one_gradient() -> None:
    given = make_operands(1, torch.float32)
    x, ids = given["x"][0], given["ids"][0]
    both = torch.cat([given["gate"], given["up"]], 2).requires_grad_()
    gate, up = both.chunk(2, 2)
    y = fused_expert(x, up, gate, given["down"], ids)
    wanted = ops.moe_layer(x.view(-1, H), ids.view(-1, K), None, both, given["down"])
    assert same_bits(y, wanted.view_as(y))
    for a, b in zip(torch.autograd.grad(y.sum(), both), torch.autograd.grad(wanted.sum(), both), strict=True):
        assert same_bits(a, b)


def test_without_a_gate_and_with_one_gradient() -> None:
    given = make_operands(1, torch.float32)
    up, down = given["up"], given["down"].requires_grad_()
    x, ids = given["x"][0], given["ids"][0]
    y = fused_expert(x, up, None, down, ids, activation="relu2")
    (ddown,) = torch.autograd.grad(y.sum(), down)
    wanted = ops.moe_layer(x.view(-1, H), ids.view(-1, K), None, up, down, activation="relu2")
    assert same_bits(y, wanted.view_as(y)) and same_bits(ddown, torch.autograd.grad(wanted.sum(), down)[0])
    gate = given["gate"].requires_grad_()  # up is not differentiated
    (dgate,) = torch.autograd.grad(fused_expert(x, up, gate, down, ids).sum(), gate)
    assert dgate.any()


def test_opcheck() -> None:
    (group,) = plait.run_ranks(1, lambda group: group)
    given = make_operands(1, torch.float32)
    leaves = [given[name].requires_grad_() for name in ("up", "gate", "down")]
    x, weights = given["x"][0].requires_grad_(), given["weights"][0].requires_grad_()
    # Not the comparison of a compiled with an eager call: the second result is the number of the call.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for num_experts in (0, E):
        arguments = (x, *leaves, given["ids"][0].int(), weights, group.handle, num_experts, "swiglu", 0.0, 0.0, "mc2", False, False)
        torch.library.opcheck(torch.ops.plait.mc2_fused_expert.default, arguments, test_utils=checks)


def test_compiled_without_graph_breaks() -> None:
    torch._dynamo.reset()
    compilations = CompileCounterWithBackend("aot_eager")
    (group,) = plait.run_ranks(1, lambda group: group)
    given = make_operands(1, torch.float32)
    leaves = [given[name].requires_grad_() for name in ("up", "gate", "down")]

    def layer(x: Tensor, ids: Tensor) -> Tensor:
        return fused_expert(x * 2, *leaves, ids, group)

    compiled = torch.compile(layer, fullgraph=True, backend=compilations)
    x, ids = given["x"][0].requires_grad_(), given["ids"][0]
    for some in (ids, ids.flip(2)):
        eager, fast = layer(x, some), compiled(x, some)
        assert same_bits(eager, fast)
        for a, b in zip(*(torch.autograd.grad(y.sum(), (x, *leaves)) for y in (eager, fast)), strict=True):
            assert same_bits(a, b)
    assert compilations.frame_count == 1


def test_autocast() -> None:
    given = make_operands(1, torch.float32)
    operands = [given["x"][0], given["up"], given["gate"], given["down"]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fused_expert(*operands, given["ids"][0])
    assert same_bits(y, fused_expert(*(t.bfloat16() for t in operands), given["ids"][0]))


def test_a_wrong_number_of_weights_is_one_error_on_all_ranks() -> None:
    def rank(group: plait.Group) -> plait.Error:
        experts = 3 if group.rank == 1 else 2
        up, down = torch.ones(experts, H, WIDTH), torch.ones(experts, WIDTH, H)
        with pytest.raises(plait.Error) as caught:
            ops.mc2_fused_expert(torch.ones(1, 2, H), up, up, down, torch.zeros(1, 2, K).long(), group, num_experts=E)
        return caught.value

    errors = plait.run_ranks(2, rank, timeout=60)
    assert [error.code for error in errors] == ["aborted", "invalid argument"] and errors[0].rank == 1
    assert all("3" in str(error) and "4" in str(error) for error in errors)
