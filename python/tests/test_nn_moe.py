"""nn.MoE: one result for any number of ranks, against float64, all conventions of the router, shared expert, auxiliary losses."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import same_bits
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import plait
from plait import ops

E, H, WIDTH, K = 8, 16, 12, 2
SPLITS = {1: [9], 2: [9, 0], 4: [2, 0, 6, 1]}  # tokens of each rank
one_at_a_time = threading.Lock()  # ranks as threads have one random state


def make_layer(group: plait.Group, **options: Any) -> plait.nn.MoE:
    with one_at_a_time:
        torch.manual_seed(5)
        layer = plait.nn.MoE(E, H, WIDTH, K, group, **options)
        for name, parameter in layer.named_parameters():
            if name.endswith("bias") and "experts" not in name:  # those of experts differ by rank and stay 0
                torch.nn.init.normal_(parameter)
        if layer.router.score_correction_bias is not None:
            torch.nn.init.normal_(layer.router.score_correction_bias, std=0.1)
    return layer


CONVENTIONS: dict[str, dict[str, Any]] = {
    "mixtral": {"norm_topk": True},
    "qwen3_5_moe": {"norm_topk": True, "shared_intermediate": 10, "shared_gate": True, "router_dtype": torch.float32},
    "deepseek_v3": {
        "score": "sigmoid",
        "norm_topk": True,
        "scaling": 2.5,
        "n_group": 4,
        "topk_group": 2,
        "score_correction": True,
        "shared_intermediate": 10,
        "router_dtype": torch.float32,
    },
    "gpt_oss": {"score": "topk_softmax", "router_bias": True, "activation": "swiglu_clamped", "interleaved": True, "expert_bias": True},
}


def run_layer(size: int, x: Tensor, dy: Tensor, options: dict[str, Any]) -> dict[str, Tensor]:
    """y and dx in token order; gradients of experts in their order, of the others summed over ranks."""
    split = SPLITS[size]

    def rank(group: plait.Group) -> dict[str, Tensor]:
        begin = sum(split[: group.rank])
        mine = slice(begin, begin + split[group.rank])
        own_x = x[mine].clone().requires_grad_()
        layer = make_layer(group, **options)
        y = layer(own_x)
        y.backward(dy[mine])
        assert own_x.grad is not None
        gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
        assert gradients.keys() == dict(layer.named_parameters()).keys()
        return {"y": y.detach(), "dx": own_x.grad} | gradients

    parts = plait.run_ranks(size, rank, timeout=120)
    joined = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        joined[name] = torch.cat(values) if name in ("y", "dx") or name.startswith("experts.") else torch.stack(values).sum(0)
    return joined


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_result_for_any_number_of_ranks(convention: str, dtype: torch.dtype) -> None:
    options = CONVENTIONS[convention] | {"dtype": dtype}
    x, dy = torch.randn(9, H).to(dtype), torch.randn(9, H).to(dtype)
    wanted = run_layer(1, x, dy, options)
    assert all(value.isfinite().all() and value.abs().max() > 0 for value in wanted.values())
    for size, dispatcher in ((2, "alltoall"), (4, "mc2"), (4, "allgather")):
        got = run_layer(size, x, dy, options | {"dispatcher": dispatcher})
        for name, value in wanted.items():
            if name in ("y", "dx") or name.startswith("experts."):
                assert same_bits(got[name], value), (size, name)
            else:  # a sum over ranks of what each has rounded
                tolerance = 1e-5 if dtype == torch.float32 else 3e-2
                torch.testing.assert_close(got[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))


def define_qwen(layer: plait.nn.MoE, x: Tensor) -> Tensor:
    """Softmax, top-k, renormalised, experts one by one, a shared expert behind a sigmoid: in x's type."""
    p = {name: value.to(x.dtype) for name, value in layer.named_parameters()}
    scores = (x @ p["router.weight"].t()).softmax(-1)
    weights, ids = scores.topk(K)
    weights = weights / weights.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for expert in range(E):
        y = y + mlp(x, p["experts.gate_up"][expert], p["experts.down"][expert]) * (weights * (ids == expert)).sum(1, keepdim=True)
    shared = mlp(x, p["shared_expert.gate_up"], p["shared_expert.down"])
    return y + torch.sigmoid(x @ p["shared_gate"]).unsqueeze(1) * shared


def mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (x @ gate_up).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ down


def test_against_float64() -> None:
    layer = make_layer(plait.init(), norm_topk=True, shared_intermediate=10, shared_gate=True)
    x, dy = torch.randn(9, H, requires_grad=True), torch.randn(9, H)
    leaves = [x, *layer.parameters()]
    got = [layer(x), *torch.autograd.grad(layer(x), leaves, dy)]
    exact_x = x.detach().double().requires_grad_()
    exact_y = define_qwen(layer, exact_x)
    exact = [exact_y, *torch.autograd.grad(exact_y, [exact_x, *layer.parameters()], dy.double())]
    for value, wanted in zip(got, exact, strict=True):
        torch.testing.assert_close(value.double(), wanted.double(), rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


def test_auxiliary_losses_reach_the_router_alone() -> None:
    layer = make_layer(plait.init(), norm_topk=True)
    out = layer(torch.randn(3, 5, H), return_losses=True)
    assert out.y.shape == (3, 5, H) and out.expert_ids.shape == (15, K) and out.load_balancing_loss > 0.9
    (0.01 * out.load_balancing_loss + 0.001 * out.z_loss).backward()
    assert [name for name, p in layer.named_parameters() if p.grad is not None and p.grad.any()] == ["router.weight"]


def test_zero_tokens() -> None:
    layer = make_layer(plait.init(), shared_intermediate=10, shared_gate=True)
    out = layer(torch.randn(0, H), return_losses=True)
    (out.y.sum() + out.z_loss).backward()
    assert out.y.shape == (0, H) and all(p.grad is not None and not p.grad.any() for p in layer.parameters())


def test_the_shared_expert_is_added_once_whatever_the_number_of_ranks() -> None:
    def rank(group: plait.Group) -> tuple[Tensor, Tensor]:
        layer = make_layer(group, activation="relu2", shared_intermediate=1)
        assert layer.shared_expert is not None
        with torch.no_grad():
            layer.experts.down.zero_()
            layer.shared_expert.gate_up.fill_(1 / H)
            layer.shared_expert.down.fill_(1)
        y = layer(torch.ones(3, H))
        y.sum().backward()
        assert layer.shared_expert.down.grad is not None
        return y.detach(), layer.shared_expert.down.grad

    for size in (1, 2, 4):
        for y, gradient in plait.run_ranks(size, rank):
            assert torch.equal(y, torch.ones(3, H)) and torch.equal(gradient, torch.full((1, H), 3.0))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputing_the_layer_gives_the_same_bits(reentrant: bool) -> None:
    """Also where every score ties, so that only the order of ids decides."""

    def recomputed(layer: plait.nn.MoE, x: Tensor) -> Tensor:
        return checkpoint(layer, x, use_reentrant=reentrant)

    def backward(call: Callable[..., Tensor], layer: plait.nn.MoE, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        layer.zero_grad()
        call(layer, x).square().sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]  # type: ignore[list-item]

    def rank(group: plait.Group) -> None:
        layer = make_layer(group, shared_intermediate=10)
        torch.nn.init.zeros_(layer.router.weight)
        with one_at_a_time:
            x = torch.randn(17, H, generator=torch.Generator().manual_seed(group.rank))
        plain = backward(lambda layer, x: layer(x), layer, x)
        again = backward(recomputed, layer, x)
        assert all(map(same_bits, plain, again))

    plait.run_ranks(2, rank, timeout=120)


def test_autocast_leaves_the_router_in_its_type() -> None:
    layer = make_layer(plait.init(), norm_topk=True, shared_intermediate=10, shared_gate=True)
    x = torch.randn(9, H)
    plain = layer.router(x)
    with torch.autocast("cpu", torch.bfloat16):
        out, routing = layer(x, return_losses=True), layer.router(x)
    assert out.y.dtype == torch.bfloat16 and torch.equal(routing.expert_ids, plain.expert_ids) and torch.equal(routing.weights, plain.weights)


def test_the_layer_is_made_of_its_modules() -> None:
    """Router, experts and shared expert one after the other give what the layer gives, to the bit in float32."""
    layer = make_layer(plait.init(), **CONVENTIONS["deepseek_v3"])
    x = torch.randn(9, H)
    out, routing = layer(x, return_losses=True), layer.router(x)
    assert torch.equal(out.expert_ids, routing.expert_ids) and torch.equal(out.z_loss, routing.z_loss)
    assert layer.shared_expert is not None
    assert same_bits(out.y, layer.experts(x, routing.expert_ids, routing.weights) + layer.shared_expert(x))


def test_router_dtype_changes_the_logits_alone() -> None:
    router = plait.nn.Router(E, H, K, router_dtype=torch.float32, dtype=torch.bfloat16)
    x = torch.randn(9, H).bfloat16()
    assert router.logits(x).dtype == torch.float32
    exact = x.double() @ router.weight.double().t()
    torch.testing.assert_close(router.logits(x).double(), exact, rtol=1e-5, atol=1e-5)
    assert same_bits(ops.route(router.logits(x), K).weights, router(x).weights)


def test_compiled_without_graph_breaks() -> None:
    layer = make_layer(plait.init(), norm_topk=True, shared_intermediate=10)
    x = torch.randn(9, H)
    routing = layer.router(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert same_bits(compiled(x), layer(x))
    experts = torch.compile(layer.experts, fullgraph=True, backend="aot_eager")
    assert same_bits(experts(x, routing.expert_ids, routing.weights), layer.experts(x, routing.expert_ids, routing.weights))


def test_wrong_settings() -> None:
    with pytest.raises(plait.InvalidArgument, match="shared_gate"):
        plait.nn.MoE(E, H, WIDTH, K, plait.init(), shared_gate=True)
    with pytest.raises(plait.InvalidArgument, match="num_experts=7.*2 ranks"):
        plait.run_ranks(2, lambda group: plait.nn.MoE(7, H, WIDTH, K, group))
    with pytest.raises(plait.InvalidArgument, match="nothing_like_it"):
        plait.nn.MoE(E, H, WIDTH, K, plait.init(), activation="nothing_like_it")(torch.ones(1, H))
