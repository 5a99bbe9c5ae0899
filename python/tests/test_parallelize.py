"""parallelize and shard_experts: configuration, patterns, modules of other libraries."""

import logging
import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import same_bits
from torch import Tensor, nn
from torch.nn import functional

import plait

E, H, WIDTH, K = 4, 8, 6, 2
one_at_a_time = threading.Lock()  # ranks as threads have one random state


class PackedExperts(nn.Module):
    """As in transformers: a loop over packed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(E, 2 * WIDTH, H))
        self.down_proj = nn.Parameter(torch.randn(E, H, WIDTH))
        self.act_fn = nn.SiLU()

    def expert(self, g: int, x: Tensor) -> Tensor:
        gate, up = functional.linear(x, self.gate_up_proj[g]).chunk(2, -1)
        return functional.linear(self.act_fn(gate) * up, self.down_proj[g])

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        y = torch.zeros_like(hidden_states)
        for g in range(E):
            y = y + self.expert(g, hidden_states) * (top_k_weights * (top_k_index == g)).sum(-1, keepdim=True)
        return y


class GptOssExperts(PackedExperts):
    """Transposed, interleaved, with biases and a gate of its own."""

    is_transposed, is_concatenated = True, False

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj = nn.Parameter(torch.randn(E, H, 2 * WIDTH))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(E, 2 * WIDTH))
        self.down_proj = nn.Parameter(torch.randn(E, WIDTH, H))
        self.down_proj_bias = nn.Parameter(torch.randn(E, H))
        self.alpha, self.limit = 1.5, 2.0

    def _apply_gate(self, h: Tensor) -> Tensor:
        gate, up = h[..., ::2].clamp(max=self.limit), h[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * self.alpha)

    def expert(self, g: int, x: Tensor) -> Tensor:
        act = self._apply_gate(x @ self.gate_up_proj[g] + self.gate_up_proj_bias[g])
        return act @ self.down_proj[g] + self.down_proj_bias[g]


class UngatedExperts(PackedExperts):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.up_proj = nn.Parameter(torch.randn(E, WIDTH, H))
        self.down_proj = nn.Parameter(torch.randn(E, H, WIDTH))

    def act_fn(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.relu().square()

    def expert(self, g: int, x: Tensor) -> Tensor:
        return functional.linear(self.act_fn(functional.linear(x, self.up_proj[g])), self.down_proj[g])


class MLP(nn.Module):
    def __init__(self, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), bias: bool = False):
        super().__init__()
        for name, sizes in zip(names, ((H, WIDTH), (H, WIDTH), (WIDTH, H)), strict=True):
            setattr(self, name, nn.Linear(*sizes, bias=bias))
        self.names = names
        self.act_fn = nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.act_fn(gate(x)) * up(x))


class ListedExperts(nn.ModuleList):
    """A list that computes, as in some models."""

    def __init__(self, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"), bias: bool = False) -> None:
        super().__init__(MLP(names, bias) for _ in range(E))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        y = torch.zeros_like(hidden_states)
        for g, expert in enumerate(self):
            y = y + expert(hidden_states) * (top_k_weights * (top_k_index == g)).sum(-1, keepdim=True)
        return y


KINDS: dict[str, Callable[[], nn.Module]] = {
    "packed": PackedExperts,
    "gpt_oss": GptOssExperts,
    "ungated": UngatedExperts,
    "list": ListedExperts,
    "mixtral list": lambda: ListedExperts(("w1", "w3", "w2"), bias=True),
}


class Block(nn.Module):
    def __init__(self, experts: nn.Module):
        super().__init__()
        self.gate = nn.Linear(H, E, bias=False)
        self.experts = experts

    def forward(self, x: Tensor) -> Tensor:
        weights, ids = self.gate(x).softmax(-1).topk(K)
        return x + self.experts(x, ids, weights)


class Layer(nn.Module):
    def __init__(self, experts: nn.Module):
        super().__init__()
        self.mlp = Block(experts)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class Model(nn.Module):
    def __init__(self, kind: str = "packed") -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(KINDS[kind]()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


PLAN = {"apply_modules": ["layers.{*}.mlp.experts"]}


def make_model(kind: str = "packed", seed: int = 3) -> Model:
    with one_at_a_time:
        torch.manual_seed(seed)
        return Model(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_of_all_kinds_compute_what_they_did(kind: str) -> None:
    x, dy = torch.randn(9, H), torch.randn(9, H)
    whole = make_model(kind)
    y = whole(x)
    y.backward(dy)
    wanted = {name: p.grad for name, p in whole.named_parameters()}

    def rank(group: plait.Group) -> Tensor:
        mine = slice(group.rank * 9 // group.size, (group.rank + 1) * 9 // group.size)
        model = plait.parallelize(make_model(kind), PLAN | {"dispatcher": "mc2"}, group)
        own = model(x[mine])
        own.backward(dy[mine])
        assert sorted(plait.full_state_dict(model)) == sorted(whole.state_dict())
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in plait.full_state_dict(model).items())
        with torch.no_grad():
            for parameter in plait.expert_parameters(model).values():
                assert parameter.grad is not None
                parameter.copy_(parameter.grad)
        gradients = plait.full_state_dict(model)
        for name, gradient in wanted.items():
            if ".experts." in name:
                torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-4)
        return own.detach()

    for size in (1, 2, 4):
        torch.testing.assert_close(torch.cat(plait.run_ranks(size, rank, timeout=120)), y.detach(), rtol=1e-4, atol=1e-4)


def test_one_result_whatever_the_number_of_ranks() -> None:
    x = torch.randn(8, H)

    def rank(group: plait.Group) -> Tensor:
        mine = slice(group.rank * 8 // group.size, (group.rank + 1) * 8 // group.size)
        experts = plait.shard_experts(make_model().layers[0].mlp.experts, group)  # type: ignore[union-attr,arg-type]
        return experts(x[mine], torch.tensor([[0, 3]] * 8)[mine], torch.tensor([[0.5, 0.25]] * 8)[mine]).detach()

    wanted = plait.run_ranks(1, rank)[0]
    for size in (2, 4):
        assert same_bits(torch.cat(plait.run_ranks(size, rank)), wanted)


def test_a_copy_of_a_sharded_model_computes_on_its_own() -> None:
    model = plait.parallelize(make_model(), PLAN, plait.init())
    copy = deepcopy(model)
    x = torch.randn(3, H)
    assert torch.equal(copy(x), model(x))
    for parameter in plait.expert_parameters(copy).values():
        parameter.data.zero_()
    assert torch.equal(copy(x), x) and not torch.equal(model(x), x)


def test_weights_load_under_their_own_names() -> None:
    def rank(group: plait.Group) -> None:
        for kind in ("packed", "list"):
            model, other = plait.parallelize(make_model(kind), PLAN, group), make_model(kind, 4)
            plait.load_full_state_dict(model, other.state_dict())
            assert all(torch.equal(value, other.state_dict()[name]) for name, value in plait.full_state_dict(model).items())
            model.load_state_dict(make_model(kind).state_dict())
            assert all(torch.equal(value, make_model(kind).state_dict()[name]) for name, value in plait.full_state_dict(model).items())

    plait.run_ranks(2, rank)


YAML = """\
parallel:
  expert_parallel_size: 2
  tensor_parallel_size: 1
  ep_plan:
    apply_modules:
      - layers.{*}.mlp.experts
    dispatcher: mc2
    use_npu_fused_ops: true
model:
  model_id: qwen3_5_moe
  use_grouped_expert_matmul: true
data:
  path: somewhere
"""


def test_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "plan.yaml"
    path.write_text(YAML)

    def rank(group: plait.Group) -> list[str]:
        return list(plait.expert_parameters(plait.parallelize(make_model(), path, group)))

    with caplog.at_level(logging.INFO, "plait"):
        names = plait.run_ranks(2, rank)
    assert names == [[f"layers.{i}.mlp.experts.{name}" for i in range(2) for name in ("gate_up_proj", "down_proj")]] * 2
    assert "2 modules of experts sharded over 2 ranks, dispatcher mc2" in caplog.text
    with pytest.raises(plait.InvalidArgument, match="expert_parallel_size is 2, but the group has 1 ranks"):
        plait.parallelize(make_model(), str(path), plait.init())


FAULTS = {
    "dispacher: mc2": ':8: "dispacher" is not a key of parallel.ep_plan; did you mean "dispatcher"?',
    "dispatcher: mc3": ":8: dispatcher: 'mc3' is not allowed. Allowed: ",
    "use_npu_fused_ops: flase": ":8: use_npu_fused_ops: 'flase' is not allowed. Allowed: true or false.",
    "expert_parallel_size: 2": ':8: "expert_parallel_size" is not a key of parallel.ep_plan; it belongs under parallel',
    "model_path: x": ':8: "model_path" is not a key of parallel.ep_plan. Allowed: ',
    "apply_modules: 3": ':8: "apply_modules" is given twice; the first time on line 5',
}


@pytest.mark.parametrize("line", FAULTS)
def test_faults_of_a_file_name_the_line(line: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "plan.yaml"
    path.write_text(YAML.replace("dispatcher: mc2\n    use_npu_fused_ops: true", f"#\n    {line}"))
    with pytest.raises(plait.InvalidArgument) as caught:
        plait.parallelize(make_model(), path, plait.init())
    assert f"{path}{FAULTS[line]}" in str(caught.value)


def test_all_faults_at_once(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "plan.yaml"
    path.write_text(
        "parallel:\n  expert_parallel_size: four\n  ep_plan:\n    apply_modules: []\n    dispacher: mc2\nmodels:\n  use_grouped_expert_matmul: 1\n"
    )
    with pytest.raises(plait.InvalidArgument) as caught:
        plait.parallelize(make_model(), path, plait.init())
    told = str(caught.value)
    assert "4 faults" in told and all(f"plan.yaml:{line}:" in told for line in (2, 4, 5, 6)) and 'did you mean "model"' in told


@pytest.mark.parametrize("text", ["", "parallel: [", "- a\n", "parallel:\n  ep_plan: mc2\n", "parallel: {}\n", "\tparallel:\n"])
def test_files_that_say_nothing(text: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "plan.yaml").write_text(text)
    for path in (tmp_path / "plan.yaml", tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(plait.InvalidArgument, match=str(path)):
            plait.parallelize(make_model(), path, plait.init())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"apply_modules": ["layers.{*}.mlp.expert"]}, r'"layers.{\*}.mlp.expert" matches no module; nearest: layers.{\*}.mlp.experts'),
    ({"apply_modules": ["layers.{*}.mlp.experts", "layers.7.mlp.experts"]}, r'"layers.7.mlp.experts" matches no module; nearest: layers'),
    ({"apply_modules": ["layers.{*}.mlp.gate"]}, r"layers.0.mlp.gate \(Linear\) is no module of experts"),
    ({"apply_modules": ["layers.{*}.mlp.experts"], "dispatcher": "mc2", "use_npu_fused_ops": False}, "use_npu_fused_ops is false"),
    ({"parallel": {"ep_plan": {"dispatcher": "mc2"}}}, "apply_modules is missing"),
    ({"parallel": {"ep_plan": PLAN}, "model": {"use_grouped_expert_matmul": False, "dispatcher": "mc2"}}, "belongs under parallel.ep_plan"),
    ({"apply_modules": "layers.{*}.mlp.experts"}, "Allowed: a list of module names"),
]


@pytest.mark.parametrize(("config", "told"), REFUSED)
def test_refused_plans_change_nothing(config: dict[str, Any], told: str) -> None:
    model = make_model()
    before = dict(model.named_modules())
    with pytest.raises(plait.InvalidArgument, match=told):
        plait.parallelize(model, config, plait.init())
    assert dict(model.named_modules()) == before and not plait.expert_parameters(model)


def test_experts_that_the_ranks_do_not_divide() -> None:
    with pytest.raises(plait.InvalidArgument, match=r"2 faults:\n  layers.0.mlp.experts: num_experts=4 is no multiple of the group's 3 ranks"):
        plait.run_ranks(3, lambda group: plait.parallelize(make_model(), PLAN, group))


def test_once_is_enough() -> None:
    model = plait.parallelize(make_model(), PLAN, plait.init())
    with pytest.raises(plait.InvalidArgument, match="sharded already"):
        plait.parallelize(model, PLAN, plait.init())


def test_a_plan_of_ones_own_and_the_loop_over_experts() -> None:
    model = plait.parallelize(make_model(), plait.EpPlan(("layers.1.mlp.experts",), "eager"), plait.init())
    assert [name.split(".")[1] for name in plait.expert_parameters(model)] == ["1", "1"]
    config = {"parallel": {"ep_plan": PLAN}, "model": {"use_grouped_expert_matmul": False}}
    x = torch.randn(3, H)
    assert torch.equal(plait.parallelize(make_model(), config, plait.init())(x), plait.parallelize(make_model(), PLAN, plait.init())(x))
    with pytest.raises(TypeError, match="dispatcher"):
        plait.parallelize(make_model(), PLAN, plait.init(), dispatcher="mc2")


class OddExperts(PackedExperts):
    def __init__(self) -> None:
        super().__init__()
        self.act_fn = nn.Tanh()  # type: ignore[assignment]


class MuteExperts(PackedExperts):
    def __init__(self) -> None:
        super().__init__()
        del self.act_fn


def test_modules_that_cannot_be_sharded() -> None:
    group = plait.init()
    with pytest.raises(plait.InvalidArgument, match=r"mine \(OddExperts\): its activation is none of swiglu, geglu_tanh"):
        plait.shard_experts(OddExperts(), group, name="mine")
    with pytest.raises(plait.InvalidArgument, match="neither act_fn nor _apply_gate"):
        plait.shard_experts(MuteExperts(), group)
    with pytest.raises(plait.InvalidArgument, match="a plain list"):
        plait.shard_experts(nn.ModuleList(MLP() for _ in range(E)), group)
    uneven = ListedExperts()
    uneven[1] = MLP(bias=True)
    with pytest.raises(plait.InvalidArgument, match="expert 1 has parameters"):
        plait.shard_experts(uneven, group)
    odd = PackedExperts()
    odd.down_proj = nn.Parameter(torch.ones(E, H, WIDTH + 1))
    with pytest.raises(plait.InvalidArgument, match="do not fit together"):
        plait.shard_experts(odd, group)
