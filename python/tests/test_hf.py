"""The experts implementation "plait" in models of transformers, against transformers' own."""

import doctest
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", "5.24", reason="transformers 5.24 or later is not installed")

import plait  # noqa: E402
import plait.hf  # noqa: E402
from plait.hf._fusable import known_activation  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SIZES: dict[str, Any] = dict(
    vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=8, max_position_embeddings=64
)
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_moe_text": dict(
        moe_intermediate_size=12,
        shared_expert_intermediate_size=8,
        num_experts=5,
        num_experts_per_tok=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "qwen3_moe": dict(intermediate_size=12, moe_intermediate_size=11, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True),
    "mixtral": dict(intermediate_size=9, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": dict(
        intermediate_size=12,
        moe_intermediate_size=10,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        head_dim=4,
    ),
    "gpt_oss": dict(intermediate_size=12, num_local_experts=4, num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"]),
}


def make_model(name: str, implementation: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    config = transformers.AutoConfig.for_model(name, **(SIZES | CONFIGS[name] | changes))
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation=implementation, attn_implementation="eager")
    with torch.no_grad():  # all values apart from 0: biases too
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def train_step(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The logits, and all parameters' gradients."""
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert any("experts" in name for name in gradients)
    return {"logits": output.logits.detach(), **gradients}


def distance(results: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference, of logits or of a parameter's gradient, relative to the largest value there."""
    assert results.keys() == wanted.keys()
    return max(float((results[n].double() - v.double()).abs().max() / v.double().abs().max().clamp(min=1e-3)) for n, v in wanted.items())


@pytest.mark.parametrize("name", CONFIGS)
def test_models_give_what_eager_gives(name: str) -> None:
    tokens = torch.randint(64, (2, 13))
    wanted = train_step(make_model(name, "eager"), tokens)
    assert distance(train_step(make_model(name, "plait"), tokens), wanted) < 2e-5


def spread(results: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Of each result the root of its mean square difference from the exact one, relative to that one's mean square."""
    return {name: float((results[name].double() - value.double()).norm() / value.double().norm()) for name, value in exact.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_in_bfloat16_the_experts_are_as_close_to_float32_as_eager_is(name: str) -> None:
    """Experts alone: whole models choose other experts where a rounding decides."""
    experts = experts_of(make_model(name, "plait", torch.bfloat16))[0]
    inputs = experts_inputs(experts, torch.bfloat16, 200)
    exact = exact_experts(experts, *inputs)
    eager = spread(run_experts(experts, "eager", *inputs), exact)
    for result, difference in spread(run_experts(experts, "plait", *inputs), exact).items():
        assert difference <= 1.1 * eager[result], (result, difference, eager[result])


def experts_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "_apply_gate") and hasattr(module, "has_gate")]


def experts_inputs(experts: Any, dtype: torch.dtype, num_tokens: int = 21, k: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Routing weights stay in float32, as Mixtral's and DeepSeek's routers hand them."""
    hidden = experts.down_proj.shape[2 if experts.is_transposed else 1]
    ids = torch.stack([torch.randperm(experts.num_experts)[:k] for _ in range(num_tokens)]) if num_tokens else torch.zeros(0, k, dtype=torch.int64)
    return torch.randn(num_tokens, hidden).to(dtype), ids, torch.rand(num_tokens, k)


def run_experts(experts: Any, implementation: str, x: Tensor, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
    experts.config._experts_implementation = implementation
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    experts.zero_grad()
    y = experts(x, ids, weights)
    assert y.shape == x.shape and (y.dtype == x.dtype or implementation != "plait")
    torch.manual_seed(11)
    y.backward(torch.randn(y.shape).to(y.dtype))
    results = {"y": y.detach(), "x": x.grad, "weights": weights.grad}
    gradients = {n: p.grad.clone() for n, p in experts.named_parameters() if p.grad is not None}
    return {n: v for n, v in (results | gradients).items() if v is not None}


def exact_experts(experts: Any, x: Tensor, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
    types = {n: p.dtype for n, p in experts.named_parameters()}
    experts.float()
    torch.manual_seed(11)
    results = run_experts(experts, "eager", x.float(), ids, weights)
    for name, parameter in experts.named_parameters():
        parameter.data = parameter.data.to(types[name])
        parameter.grad = None
    return results


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("num_tokens, k", [(0, 2), (1, 1), (21, 1), (5, 4)])
def test_no_rows_one_row_one_expert_per_token(name: str, num_tokens: int, k: int) -> None:
    experts = experts_of(make_model(name, "plait"))[0]
    inputs = experts_inputs(experts, torch.float32, num_tokens, k)
    results = run_experts(experts, "plait", *inputs)
    if num_tokens == 0:
        assert all(not results[n].any() for n, _ in experts.named_parameters())
        return
    assert distance(results, run_experts(experts, "eager", *inputs)) < 2e-5


def set_gate(experts: Any, gate: Callable[[Any, Tensor], Tensor]) -> None:
    experts._apply_gate = gate.__get__(experts)


def reglu(self: Any, h: Tensor) -> Tensor:
    gate, up = h.chunk(2, -1)
    return gate.relu() * up


@pytest.mark.parametrize("custom", [False, True])
def test_ids_beyond_the_experts_are_ignored(custom: bool) -> None:
    experts = experts_of(make_model("qwen3_moe", "plait"))[0]
    if custom:
        set_gate(experts, reglu)
    x, ids, weights = experts_inputs(experts, torch.float32)
    beyond = torch.zeros_like(ids, dtype=torch.bool)
    beyond[::3, 0] = beyond[1::4] = True
    results = run_experts(experts, "plait", x, ids.masked_fill(beyond, experts.num_experts), weights.masked_fill(beyond, float("nan")))
    wanted = run_experts(experts, "plait", x, ids, weights.masked_fill(beyond, 0.0))
    assert not results["weights"][beyond].any() and results["weights"][~beyond].all()
    wanted["weights"] = wanted["weights"].masked_fill(beyond, 0.0)
    assert distance(results, wanted) < 1e-6
    far = run_experts(experts, "plait", x, ids.masked_fill(beyond, 2**40), weights)
    assert distance(far, results) == 0


def test_what_is_fused_and_what_is_called() -> None:
    experts = {name: experts_of(make_model(name, "plait"))[0] for name in CONFIGS}
    for name, module in experts.items():
        known = known_activation(module)
        assert known is not None and known.activation == ("swiglu_clamped" if name == "gpt_oss" else "swiglu")
    set_gate(experts["gpt_oss"], reglu)
    set_gate(experts["qwen3_5_moe_text"], reglu)
    experts["qwen3_moe"].act_fn = nn.GELU()
    for name, reference in (("gpt_oss", "grouped_mm"), ("qwen3_5_moe_text", "grouped_mm"), ("qwen3_moe", "eager")):
        assert known_activation(experts[name]) is None
        inputs = experts_inputs(experts[name], torch.float32)
        assert distance(run_experts(experts[name], "plait", *inputs), run_experts(experts[name], reference, *inputs)) < 2e-5, name
    experts["qwen3_moe"].act_fn = transformers.activations.ACT2FN["gelu_pytorch_tanh"]
    inputs = experts_inputs(experts["qwen3_moe"], torch.float32)
    assert known_activation(experts["qwen3_moe"]) is not None
    assert distance(run_experts(experts["qwen3_moe"], "plait", *inputs), run_experts(experts["qwen3_moe"], "eager", *inputs)) < 2e-5


@pytest.mark.parametrize("act_fn", ["relu2", "silu"])
def test_experts_without_a_gate(act_fn: str) -> None:
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

    config = transformers.AutoConfig.for_model(
        "nemotron_h", hidden_size=16, moe_intermediate_size=12, n_routed_experts=4, mlp_hidden_act=act_fn, moe_latent_size=None
    )
    config._experts_implementation = "plait"
    experts = NemotronHExperts(config)
    for parameter in experts.parameters():
        nn.init.normal_(parameter)
    assert (known_activation(experts) is not None) == (act_fn == "relu2")
    inputs = experts_inputs(experts, torch.float32)
    assert distance(run_experts(experts, "plait", *inputs), run_experts(experts, "grouped_mm", *inputs)) < 2e-5


class _LowRank(nn.Module):
    """What PEFT puts on a parameter of experts: the module's attribute is then a new tensor each time it is read."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.a = nn.Parameter(torch.randn(weight.shape[0], weight.shape[1], 2))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], 2, weight.shape[2]))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.a @ self.b


def test_weights_that_are_no_parameters_and_weights_changed_in_place() -> None:
    experts = experts_of(make_model("qwen3_moe", "plait"))[0]
    inputs = experts_inputs(experts, torch.float32)
    before = run_experts(experts, "plait", *inputs)
    for name in ("gate_up_proj", "down_proj"):
        nn.utils.parametrize.register_parametrization(experts, name, _LowRank(getattr(experts, name)))
        experts.parametrizations[name].original.requires_grad_(False)
    assert torch.equal(run_experts(experts, "plait", *inputs)["y"], before["y"])
    with torch.no_grad():
        for name in ("gate_up_proj", "down_proj"):
            experts.parametrizations[name][0].b.normal_()
    adapted = run_experts(experts, "plait", *inputs)
    assert sum(name.startswith("parametrizations") for name in adapted) == 4 and not torch.equal(adapted["y"], before["y"])
    assert distance(adapted, run_experts(experts, "eager", *inputs)) < 2e-5
    for name in ("gate_up_proj", "down_proj"):
        nn.utils.parametrize.remove_parametrizations(experts, name)
    merged = run_experts(experts, "plait", *inputs)
    assert distance({n: merged[n] for n in ("y", "x")}, {n: adapted[n] for n in ("y", "x")}) < 1e-6
    experts.down_proj.data.mul_(2)
    assert torch.equal(run_experts(experts, "plait", *inputs)["y"], 2 * merged["y"])


def test_under_autocast_the_products_are_in_its_type() -> None:
    experts = experts_of(make_model("mixtral", "plait"))[0]
    inputs = experts_inputs(experts, torch.float32)
    wanted = run_experts(experts, "plait", *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        results = run_experts(experts, "plait", *inputs)
    assert results["y"].dtype == torch.float32 and results["down_proj"].dtype == torch.float32
    assert 1e-4 < distance(results, wanted) < 5e-2


def test_compiles_without_graph_breaks() -> None:
    model = make_model("qwen3_moe", "plait")
    experts = experts_of(model)[0]
    x, ids, weights = experts_inputs(experts, torch.float32)
    wanted = experts(x, ids, weights)
    assert torch.equal(torch.compile(experts, fullgraph=True, backend="aot_eager")(x, ids, weights), wanted)
    set_gate(experts, reglu)
    wanted = experts(x, ids, weights)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(experts, fullgraph=True, backend="aot_eager")(x, ids, weights), wanted)


def test_implementations_are_switched_at_run_time() -> None:
    model = make_model("mixtral", "eager")
    tokens = torch.randint(64, (1, 9))
    eager = model(input_ids=tokens).logits
    model.set_experts_implementation("plait")
    assert experts_of(model)[0].config._experts_implementation == "plait"
    torch.testing.assert_close(model(input_ids=tokens).logits, eager, rtol=1e-5, atol=1e-5)


def test_errors_are_those_of_the_layer_and_do_not_outlast_the_call() -> None:
    experts = experts_of(make_model("mixtral", "plait"))[0]
    x, ids, weights = experts_inputs(experts, torch.float32)
    wrong = ids.clone()
    wrong[3, 1] = -1
    with pytest.raises(plait.Error, match="-1"):
        experts(x, wrong, weights)
    assert experts(x, ids, weights).isfinite().all()


def test_threads_and_forked_children_have_groups_of_their_own() -> None:
    """Experts of one process run in a group of one rank that nobody has made."""
    experts = experts_of(make_model("mixtral", "plait"))[0]
    inputs = experts_inputs(experts, torch.float32)
    wanted = experts(*inputs)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(y, wanted) for y in pool.map(lambda _: experts(*inputs), range(16)))
    # A backward in another thread than its forward's.
    x = inputs[0].requires_grad_()
    y = experts(x, *inputs[1:])
    with ThreadPoolExecutor(1) as pool:
        pool.submit(y.sum().backward).result()
    assert x.grad is not None and x.grad.abs().min() > 0
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(experts(*inputs), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(sys.modules["plait.hf._parallelize"], extraglobs={"plait": plait})
    assert result.failed == 0 and result.attempted > 0


def test_examples_in_the_documentation() -> None:
    """The Python blocks of docs/migrate.md on transformers, top to bottom in one namespace."""
    text = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()
    section = text.split("\n## From Hugging Face transformers\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/migrate.md", "exec"), namespace)
