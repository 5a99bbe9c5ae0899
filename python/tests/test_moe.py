"""moe: the whole layer in one operator, against its definition in float64 and against the composed operators, on any number of ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import FLOATS, same_bits
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import plait
from plait import ops

T, E, H, WIDTH, SHARED, K = 9, 4, 8, 6, 5, 2
EXPERTS = ("gate_up", "gate_up_bias", "down", "down_bias")  # a rank has its own part
REPLICATED = ("router_weight", "router_bias", "shared_gate_up", "shared_down", "shared_gate")
SPLITS = {1: [T], 2: [T, 0], 4: [2, 0, 6, 1]}
LOAD_BALANCING, Z = 0.3, 0.02  # coefficients

Values = dict[str, Tensor]
moe: Callable[..., ops.MoeOutput] = ops.moe
moe_layer: Callable[..., Tensor] = ops.moe_layer
route: Callable[..., ops.Routing] = ops.route


def make_values(dtype: torch.dtype) -> Values:
    shapes = {
        "x": (T, H),
        "router_weight": (E, H),
        "router_bias": (E,),
        "gate_up": (E, H, 2 * WIDTH),
        "gate_up_bias": (E, 2 * WIDTH),
        "down": (E, WIDTH, H),
        "down_bias": (E, H),
        "shared_gate_up": (H, 2 * SHARED),
        "shared_down": (SHARED, H),
        "shared_gate": (H,),
        "dy": (T, H),
    }
    values = {name: torch.randn(shape).to(dtype) / 2 for name, shape in shapes.items()}
    return values | {"router_bias": values["router_bias"].float(), "choice_bias": torch.randn(E) / 9}


def swiglu(h: Tensor) -> Tensor:
    gate, up = h.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def define(values: Values) -> Values:
    """In float64, with the same choice of experts: y, the losses, and the gradients of y * dy plus the losses."""
    v = {name: value.double().requires_grad_(name not in ("dy", "choice_bias")) for name, value in values.items()}
    logits = v["x"] @ v["router_weight"].t() + v["router_bias"]
    scores = logits.softmax(1)
    ids = (scores + v["choice_bias"]).topk(K, 1).indices
    chosen = scores.gather(1, ids)
    weights = chosen / chosen.sum(1, keepdim=True) * 2.5
    y = swiglu(v["x"] @ v["shared_gate_up"]) @ v["shared_down"] * torch.sigmoid(v["x"] @ v["shared_gate"]).unsqueeze(1)
    for expert in range(E):
        out = swiglu(v["x"] @ v["gate_up"][expert] + v["gate_up_bias"][expert]) @ v["down"][expert] + v["down_bias"][expert]
        y = y + out * (weights * (ids == expert)).sum(1, keepdim=True)
    share = torch.bincount(ids.flatten(), minlength=E) / ids.numel()
    load_balancing, z = E * (share * scores.mean(0)).sum(), logits.logsumexp(1).square().mean()
    names = [name for name, value in v.items() if value.requires_grad]
    gradients = torch.autograd.grad((y * v["dy"]).sum() + LOAD_BALANCING * load_balancing + Z * z, [v[name] for name in names])
    return {"y": y.detach(), "load_balancing": load_balancing.detach(), "z": z.detach()} | dict(zip(names, gradients, strict=True))


def leaves_of(values: Values, group: plait.Group, split: list[int]) -> Values:
    begin, experts = sum(split[: group.rank]), E // group.size
    leaves = {"x": values["x"][begin : begin + split[group.rank]]}
    leaves |= {name: values[name][group.rank * experts : (group.rank + 1) * experts] for name in EXPERTS}
    leaves |= {name: values[name] for name in REPLICATED}
    return {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}


def call(leaves: Values, group: plait.Group | None, **options: Any) -> ops.MoeOutput:
    operands = [leaves[name] for name in ("x", "router_weight", "gate_up", "down")]
    others = {name: leaf for name, leaf in leaves.items() if name not in ("x", "router_weight", "gate_up", "down")}
    return moe(*operands, group, top_k=K, norm_topk=True, scaling=2.5, **others, **options)


def run(values: Values, split: list[int], **options: Any) -> list[Values]:
    def rank(group: plait.Group) -> Values:
        leaves = leaves_of(values, group, split)
        out = call(leaves, group, choice_bias=values["choice_bias"], **options)
        begin = sum(split[: group.rank])
        loss = (out.y.float() * values["dy"][begin : begin + split[group.rank]].float()).sum()
        loss = loss + LOAD_BALANCING * out.load_balancing_loss + Z * out.z_loss
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        return {"y": out.y.detach(), "load_balancing": out.load_balancing_loss.detach(), "z": out.z_loss.detach()} | gradients

    return plait.run_ranks(len(split), rank, timeout=120)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_layer_in_float64(dtype: torch.dtype) -> None:
    values = make_values(dtype)
    (got,) = run(values, SPLITS[1])
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 6e-3}[dtype]
    wanted = define(values)
    assert set(got) == set(wanted)
    for name, exact in wanted.items():
        torch.testing.assert_close(got[name].double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()), msg=name)
        assert exact.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dispatcher", ["eager", "alltoall", "allgather", "mc2", "auto"])
def test_the_bits_depend_neither_on_dispatcher_nor_on_ranks(dtype: torch.dtype, dispatcher: str) -> None:
    values = make_values(dtype)
    (whole,) = run(values, SPLITS[1])
    for split in SPLITS.values():
        parts = run(values, split, dispatcher=dispatcher, recompute=len(split) == 2)
        for name in ("y", *EXPERTS):
            assert same_bits(torch.cat([part[name] for part in parts]), whole[name]), (name, split)
        for name in REPLICATED if len(split) == 1 else ():
            assert same_bits(parts[0][name], whole[name]), name
        if len(split) == 2:  # the second rank has no tokens
            assert same_bits(parts[0]["x"], whole["x"]) and not any(parts[1][name].any() for name in ("load_balancing", "z", *REPLICATED))


def test_the_bits_of_the_composed_operators() -> None:
    values = make_values(torch.bfloat16)
    names = ("x", "router_weight", *EXPERTS)
    out = call({name: values[name] for name in names}, None, choice_bias=values["choice_bias"])
    logits = ops.grouped_matmul(values["x"], values["router_weight"].t().unsqueeze(0), [T])
    routing = route(logits, K, bias=values["choice_bias"], norm_topk=True, scaling=2.5)
    assert torch.equal(out.expert_ids, routing.expert_ids)
    biases = {name: values[name] for name in ("gate_up_bias", "down_bias")}
    y = moe_layer(values["x"], routing.expert_ids, routing.weights, values["gate_up"], values["down"], **biases)
    assert same_bits(out.y, y)
    assert same_bits(out.load_balancing_loss, routing.load_balancing_loss) and same_bits(out.z_loss, routing.z_loss)


@pytest.mark.parametrize(("score", "settings"), [("sigmoid", {"n_group": 2, "topk_group": 1}), ("topk_softmax", {})])
def test_other_routers(score: str, settings: dict[str, int]) -> None:
    values = make_values(torch.float32)
    out = call({name: values[name] for name in ("x", "router_weight", "gate_up", "down")}, None, score=score, **settings)
    logits = ops.grouped_matmul(values["x"], values["router_weight"].t().unsqueeze(0), [T])
    routing = route(logits, K, score=score, norm_topk=True, scaling=2.5, **settings)
    assert torch.equal(out.expert_ids, routing.expert_ids)
    assert same_bits(out.y, moe_layer(values["x"], routing.expert_ids, routing.weights, values["gate_up"], values["down"]))


def test_logits_in_float32() -> None:
    values = make_values(torch.bfloat16)
    names = ("x", "router_weight", "gate_up", "down")
    out = call({name: values[name] for name in names}, None, router_dtype=torch.float32)
    logits = ops.grouped_matmul(values["x"].float(), values["router_weight"].float().t().unsqueeze(0), [T])
    routing = route(logits, K, norm_topk=True, scaling=2.5)
    assert same_bits(out.z_loss, routing.z_loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = call({name: values[name].float() for name in names}, None)
    assert same_bits(cast.y, out.y) and same_bits(cast.z_loss, out.z_loss)
    with pytest.raises(plait.InvalidArgument, match="router_dtype"):
        call({name: values[name] for name in names}, None, router_dtype=torch.float16)


def test_losses_of_either_sign_and_alone() -> None:
    values = make_values(torch.float32)
    (group,) = plait.run_ranks(1, lambda group: group)
    leaves = leaves_of(values, group, [T])
    out = call(leaves, group)
    (up,) = torch.autograd.grad(out.load_balancing_loss * 0.5, leaves["router_weight"])
    (down,) = torch.autograd.grad(call(leaves, group).load_balancing_loss * -0.5, leaves["router_weight"])
    assert up.any() and same_bits(up, -down)


ACCUMULATED = ("gate_up", "down", "shared_gate_up", "shared_down")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_added_to_what_is_there(dtype: torch.dtype) -> None:
    values = make_values(dtype)
    wanted = plait.run_ranks(2, lambda group: gradients_of(leaves_of(values, group, [5, 4]), group, values, [5, 4], {}))

    def rank(group: plait.Group) -> None:
        leaves = leaves_of(values, group, [5, 4])
        buffers = {name: torch.zeros(leaves[name].shape) for name in ACCUMULATED}
        gradients = gradients_of(leaves, group, values, [5, 4], buffers)
        for name, gradient in wanted[group.rank].items():
            if name not in ACCUMULATED:
                assert same_bits(gradient, gradients[name]), name
            else:
                assert gradients[name] is None and same_bits(buffers[name].to(dtype), gradient), name
        once = {name: buffer.clone() for name, buffer in buffers.items()}
        gradients_of(leaves, group, values, [5, 4], buffers)
        for name, buffer in buffers.items():
            torch.testing.assert_close(buffer, 2 * once[name])

    plait.run_ranks(2, rank, timeout=120)


def gradients_of(leaves: Values, group: plait.Group, values: Values, split: list[int], buffers: Values) -> dict[str, Any]:
    y = call(leaves, group, accumulate_into=buffers).y
    begin = sum(split[: group.rank])
    given = torch.autograd.grad(y, list(leaves.values()), values["dy"][begin : begin + split[group.rank]], allow_unused=bool(buffers))
    return dict(zip(leaves, given, strict=True))


def test_accumulating_in_moe_layer() -> None:
    values = make_values(torch.float32)
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(T)])
    gate_up, down = values["gate_up"].requires_grad_(), values["down"].requires_grad_()
    wanted = torch.autograd.grad(moe_layer(values["x"], ids, None, gate_up, down).sum(), (gate_up, down))
    buffer = torch.ones(gate_up.shape)
    y = moe_layer(values["x"], ids, None, gate_up, down, accumulate_into={"gate_up": buffer})
    y.sum().backward()
    assert gate_up.grad is None and down.grad is not None and same_bits(down.grad, wanted[1])
    torch.testing.assert_close(buffer, wanted[0] + 1)
    with pytest.raises(plait.InvalidArgument, match="up_gate.*gate_up, down"):
        moe_layer(values["x"], ids, None, gate_up, down, accumulate_into={"up_gate": buffer})
    wrong = moe_layer(values["x"], ids, None, gate_up, down, accumulate_into={"gate_up": buffer.bfloat16()})
    with pytest.raises(plait.InvalidArgument, match="f32"):
        wrong.sum().backward()


def run_opcheck(group: plait.Group, values: Values, accumulators: list[Tensor | None]) -> None:
    weights = [values[name] for name in ("router_weight", "router_bias", "choice_bias", *EXPERTS, "shared_gate_up", "shared_down", "shared_gate")]
    for t in (values["x"], *weights):
        t.requires_grad_(t is not values["choice_bias"])
    settings = (group.handle, K, "softmax", True, 2.5, 1, 1, False, "swiglu", False, 0.0, 0.0, "alltoall", "exact", False)
    # Not the comparison of a compiled with an eager call: the last result is the number of the call.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.plait.moe.default, (values["x"], *weights, *settings, *accumulators), test_utils=checks)


def test_opcheck() -> None:
    (group,) = plait.run_ranks(1, lambda group: group)
    run_opcheck(group, make_values(torch.float32), [None] * 4)
    values = make_values(torch.bfloat16)
    run_opcheck(group, values, [torch.zeros(values[name].shape) for name in ACCUMULATED])


def test_compiled_without_graph_breaks() -> None:
    torch._dynamo.reset()
    compilations = CompileCounterWithBackend("aot_eager")
    (group,) = plait.run_ranks(1, lambda group: group)
    leaves = leaves_of(make_values(torch.float32), group, [T])

    def layer(x: Tensor) -> Tensor:
        out = call(leaves | {"x": x * 2}, group)
        return out.y.square().sum() + out.load_balancing_loss * 3 + out.z_loss

    compiled = torch.compile(layer, fullgraph=True, backend=compilations)
    for x in (leaves["x"], leaves["x"].detach().flip(0).requires_grad_()):
        losses = layer(x), compiled(x)
        assert same_bits(*losses)
        inputs = [x, *list(leaves.values())[1:]]
        for a, b in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
            assert same_bits(a, b)
    assert compilations.frame_count == 1


def test_accumulators_cannot_be_compiled_and_that_is_said() -> None:
    torch._dynamo.reset()
    values = make_values(torch.float32)
    leaves = {name: values[name].requires_grad_() for name in ("x", "router_weight", "gate_up", "down")}
    buffers = {"gate_up": torch.zeros(values["gate_up"].shape)}
    with pytest.raises(Exception, match="accumulate_into cannot be compiled"):
        torch.compile(lambda: call(leaves, None, accumulate_into=buffers).y, fullgraph=True, backend="aot_eager")()


def test_an_error_on_one_rank_is_one_on_all_and_names_it() -> None:
    values = make_values(torch.float32)

    def rank(group: plait.Group) -> plait.Error:
        leaves = leaves_of(values, group, [5, 4])
        x = leaves["x"].detach().clone()
        if group.rank == 1:
            x[2, 3] = float("nan")
        with pytest.raises(plait.Error) as caught:
            call(leaves | {"x": x}, group)
        return caught.value

    errors = plait.run_ranks(2, rank, timeout=60)
    assert [error.rank for error in errors] == [1, 1] and all("token 2" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"router_weight": torch.ones(E, H - 1)}, "router weight"),
        ({"router_weight": torch.ones(E + 1, H)}, "router weight"),
        ({"shared_down": torch.ones(SHARED + 1, H)}, "shared"),
        ({"shared_gate": torch.ones(1, H)}, "shared gate"),
        ({"gate_up": torch.ones(E, H)}, "gate_up"),
    ],
)
def test_wrong_shapes(change: Values, named: str) -> None:
    values = make_values(torch.float32)
    names = ("x", "router_weight", "gate_up", "down", "shared_gate_up", "shared_down", "shared_gate")
    with pytest.raises(plait.InvalidArgument, match=named):
        call({name: values[name] for name in names} | change, None)
