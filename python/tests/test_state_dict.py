"""Whole weights of sharded experts: gathered on save, sliced on load, with any number of ranks, names and files of checkpoints."""

import json
import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_processes
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

import plait

E, H, WIDTH, K = 4, 8, 6, 2
one_at_a_time = threading.Lock()  # ranks as threads have one random state


def make_model(group: plait.Group, seed: int = 5, **options: Any) -> nn.Module:
    with one_at_a_time:
        torch.manual_seed(seed)
        layers = [plait.nn.MoE(E, H, WIDTH, K, group, shared_intermediate=5, **options) for _ in range(2)]
        return nn.Sequential(nn.Linear(H, H), *layers)


def alone() -> plait.Group:
    return plait.run_ranks(1, lambda group: group)[0]


def whole_model(seed: int = 5, **options: Any) -> nn.Module:
    return make_model(alone(), seed, **options)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in a)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "interleaved, biased": {"interleaved": True, "expert_bias": True},
    "ungated, bf16": {"activation": "relu2", "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_round_trip_with_any_number_of_ranks(options: dict[str, Any]) -> None:
    wanted = whole_model(**options).state_dict()
    for size in (1, 2, 4):
        saved = plait.run_ranks(size, lambda group: plait.full_state_dict(make_model(group, **options)))
        assert all(equal(whole, wanted) for whole in saved)
        for other in (1, 2, 4):

            def reload(group: plait.Group, whole: dict[str, Tensor] = saved[0]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
                through_torch, through_plait = make_model(group, 6, **options), make_model(group, 6, **options)
                through_torch.load_state_dict(whole)
                plait.load_full_state_dict(through_plait, whole)
                return plait.full_state_dict(through_torch), plait.full_state_dict(through_plait)

            for again in plait.run_ranks(other, reload):
                assert equal(again[0], wanted) and equal(again[1], wanted)


def test_expert_g_holds_g() -> None:
    def rank(group: plait.Group) -> dict[str, Tensor]:
        experts = plait.nn.Experts(E, H, WIDTH, group)
        for local, expert in enumerate(range(group.rank * E // group.size, (group.rank + 1) * E // group.size)):
            for parameter in experts.parameters():
                parameter.data[local] = expert
        return plait.full_state_dict(experts)

    for whole in plait.run_ranks(2, rank):
        for expert in range(E):
            assert (whole["gate_up"][expert] == expert).all() and (whole["down"][expert] == expert).all()


def test_on_rank_0_alone() -> None:
    first, second = plait.run_ranks(2, lambda group: plait.full_state_dict(make_model(group), rank0_only=True))
    assert equal(first, whole_model().state_dict()) and second == {}


def test_a_rank_keeps_its_own_experts_in_the_ordinary_state_dict() -> None:
    def rank(group: plait.Group) -> None:
        model = make_model(group)
        own = deepcopy(model.state_dict())
        assert own["1.experts.down"].shape[0] == E // 2
        other = make_model(group, 6)
        other.load_state_dict(own)
        assert equal(dict(other.state_dict()), dict(own))
        with pytest.raises(plait.InvalidArgument, match="1.experts.gate_up has 2 experts; whole weights have all 4"):
            plait.load_full_state_dict(other, own)

    plait.run_ranks(2, rank)
    with pytest.raises(RuntimeError, match="size mismatch for 1.experts.gate_up"):
        whole_model().load_state_dict(plait.run_ranks(2, lambda group: make_model(group).state_dict())[0])


def test_a_copied_model_saves_and_loads_too() -> None:
    def rank(group: plait.Group) -> None:
        model = deepcopy(make_model(group))
        model.load_state_dict(whole_model(7).state_dict())
        assert equal(plait.full_state_dict(model), dict(whole_model(7).state_dict()))

    plait.run_ranks(2, rank)


def test_names_of_checkpoints() -> None:
    """The parts of an expert are what its linear layers would hold."""
    torch.manual_seed(1)
    for options in OPTIONS.values():
        experts = plait.nn.MoE(E, H, WIDTH, K, alone(), **{"expert_bias": False} | options).experts
        listed = plait.full_state_dict(experts, per_expert=True)
        x = torch.randn(3, H).to(experts.down.dtype)
        gated = options.get("activation") != "relu2"
        names = ["gate_proj", "up_proj", "down_proj"] if gated else ["up_proj", "down_proj"]
        kinds = ["weight", "bias"] if options.get("expert_bias") else ["weight"]
        assert sorted(listed) == sorted(f"{g}.{name}.{kind}" for g in range(E) for name in names for kind in kinds)
        for g in range(E):

            def project(rows: Tensor, name: str, g: int = g, listed: dict[str, Tensor] = listed) -> Tensor:
                return nn.functional.linear(rows, listed[f"{g}.{name}.weight"], listed.get(f"{g}.{name}.bias"))

            up = project(x, "up_proj")
            act = nn.functional.silu(project(x, "gate_proj")) * up if gated else up.relu().square()
            y = experts(x, torch.full((3, 1), g))
            torch.testing.assert_close(y, project(act, "down_proj"), rtol=2e-2, atol=2e-2 if y.dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("names", [{}, {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}])
def test_experts_one_by_one_load_too(names: dict[str, str]) -> None:
    wanted = whole_model()
    listed = {}
    for key, value in plait.full_state_dict(wanted, per_expert=True).items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        listed[key] = value

    def rank(group: plait.Group) -> None:
        models = make_model(group, 6), make_model(group, 6)
        models[0].load_state_dict(listed)
        plait.load_full_state_dict(models[1], listed)
        assert all(equal(plait.full_state_dict(model), dict(wanted.state_dict())) for model in models)

    plait.run_ranks(2, rank)


def test_incomplete_and_foreign_names() -> None:
    model, whole = whole_model(), plait.full_state_dict(whole_model(), per_expert=True)
    incomplete = {key: value for key, value in whole.items() if key != "1.experts.2.up_proj.weight"}
    with pytest.raises(plait.InvalidArgument, match="1.experts.2.up_proj.weight is missing"):
        plait.load_full_state_dict(model, incomplete)
    changed = {key: value for key, value in whole.items() if key != "0.weight"} | {"0.height": torch.ones(1)}
    with pytest.raises(plait.InvalidArgument, match=r"missing: 0\.weight\. unexpected: 0\.height"):
        plait.load_full_state_dict(model, changed)
    assert plait.load_full_state_dict(model, changed, strict=False) == (["0.weight"], ["0.height"])


def test_models_on_the_meta_device() -> None:
    def rank(group: plait.Group) -> None:
        with torch.device("meta"):
            experts = plait.nn.Experts(E, H, WIDTH, group)
        whole = plait.full_state_dict(plait.nn.Experts(E, H, WIDTH, alone()))
        plait.load_full_state_dict(experts, whole, assign=True)
        assert not experts.down.is_meta and equal(plait.full_state_dict(experts), whole)
        # Parameters that came by assignment are experts as well.
        experts.down.grad = torch.ones_like(experts.down)
        assert plait.clip_grad_norm_(experts.parameters(), 1e9).item() == pytest.approx((E * WIDTH * H) ** 0.5)

    plait.run_ranks(1, rank)


@pytest.fixture
def safetensors() -> Any:
    return pytest.importorskip("safetensors.torch")


def save_shards(safetensors: Any, folder: Path, tensors: dict[str, Tensor]) -> None:
    """As transformers writes them: two files and an index."""
    keys = sorted(tensors)
    shards = {"model-1.safetensors": keys[::2], "model-2.safetensors": keys[1::2]}
    for file, names in shards.items():
        safetensors.save_file({name: tensors[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("per_expert", [False, True])
def test_safetensors_shards(safetensors: Any, tmp_path: Path, per_expert: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = whole_model()
    save_shards(safetensors, tmp_path, plait.full_state_dict(wanted, per_expert=per_expert))

    def load(path: Path) -> Callable[[plait.Group], None]:
        def rank(group: plait.Group) -> None:
            model = make_model(group, 6)
            plait.load_full_state_dict(model, path)
            assert equal(plait.full_state_dict(model), dict(wanted.state_dict()))

        return rank

    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        plait.run_ranks(2, load(path))
    (tmp_path / "model.safetensors.index.json").unlink()
    plait.run_ranks(4, load(tmp_path))


def test_only_this_ranks_experts_are_read(safetensors: Any, tmp_path: Path) -> None:
    from plait.parallel._sources import SafetensorsSource

    rows = [0]

    class Counting(SafetensorsSource):
        def read(self, key: str, rows_wanted: slice | None = None) -> Tensor:
            value = super().read(key, rows_wanted)
            rows[0] += value.numel() if "experts" in key and "shared" not in key else 0
            return value

    save_shards(safetensors, tmp_path, plait.full_state_dict(whole_model()))
    read = plait.parallel._state_dict._own_state(plait.run_ranks(4, make_model)[1], Counting(tmp_path))
    assert rows[0] == sum(value.numel() for key, value in read[0].items() if ".experts." in key) == 2 * 3 * H * WIDTH


def test_paths_without_files(safetensors: Any, tmp_path: Path) -> None:
    with pytest.raises(plait.InvalidArgument, match="no safetensors file"):
        plait.load_full_state_dict(whole_model(), tmp_path)
    with pytest.raises(plait.InvalidArgument, match="no safetensors file"):
        plait.load_full_state_dict(whole_model(), tmp_path / "nowhere.safetensors")


def test_a_rank_that_does_not_save_is_named() -> None:
    def rank(group: plait.Group) -> str:
        model = make_model(group)
        if group.rank == 1:
            return ""
        with pytest.raises(plait.Error) as caught:
            plait.full_state_dict(model)
        return f"{caught.value.code} {caught.value.rank}"

    assert plait.run_ranks(2, rank, timeout=0.3) == ["timeout 1", ""]


def through_distributed_checkpoint(folder: str) -> dict[str, Any]:
    """Saves with two ranks; loads with two ranks and with each rank alone."""
    group = plait.Group.from_process_group()
    dcp.save(plait.sharded_state_dict(make_model(group)), checkpoint_id=folder)
    model = make_model(group, 6)
    dcp.load(plait.sharded_state_dict(model), checkpoint_id=folder)
    # torch's own way to load whole weights slices them, too.
    other = make_model(group, 7)
    set_model_state_dict(other, whole_model().state_dict(), options=StateDictOptions(full_state_dict=True))
    state = whole_model(8).state_dict()
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return {"pair": plait.full_state_dict(model), "alone": dict(state), "torch": plait.full_state_dict(other)}


def test_torch_distributed_checkpoint(tmp_path: Path) -> None:
    wanted = dict(whole_model().state_dict())
    for saved in run_processes(2, through_distributed_checkpoint, tmp_path, str(tmp_path / "checkpoint")):
        assert all(equal(dict(state), wanted) for state in saved.values())


def test_optimizer_state_round_trip() -> None:
    """Two steps, the second after saving and loading with another number of ranks, are two steps of one process."""
    x = torch.randn(8, H)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, group: plait.Group) -> None:
        optimizer.zero_grad()
        mine = slice(group.rank * 8 // group.size, (group.rank + 1) * 8 // group.size)
        model(x[mine]).square().sum().backward()
        optimizer.step()

    def make(group: plait.Group, seed: int = 5) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make_model(group, seed).requires_grad_(False)
        experts = plait.expert_parameters(model)
        for parameter in experts.values():  # the others would need their gradients summed over ranks
            parameter.requires_grad_()
        downs = [p for name, p in experts.items() if name.endswith("down")]
        others = [p for name, p in experts.items() if not name.endswith("down")]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": downs, "lr": 0.01}]
        return model, torch.optim.AdamW(groups, lr=0.1)

    def first(group: plait.Group) -> tuple[Any, Any]:
        model, optimizer = make(group)
        step(model, optimizer, group)
        return plait.full_state_dict(model), plait.full_optimizer_state_dict(model, optimizer, rank0_only=True)

    def second(group: plait.Group) -> dict[str, Tensor]:
        model, optimizer = make(group, 6)
        plait.load_full_state_dict(model, weights)
        plait.load_full_optimizer_state_dict(model, optimizer, state)
        step(model, optimizer, group)
        return plait.full_state_dict(model)

    model, optimizer = make(alone())
    for _ in range(2):
        step(model, optimizer, alone())
    (weights, state), (_, nothing) = plait.run_ranks(2, first)
    assert nothing == {} and state["state"]["1.experts.down"]["exp_avg"].shape == (E, WIDTH, H)
    for size in (1, 2, 4):
        assert all(equal(whole, dict(model.state_dict())) for whole in plait.run_ranks(size, second))
    with pytest.raises(plait.InvalidArgument, match="the state is of"):
        other = torch.optim.AdamW(model.parameters())
        plait.load_full_optimizer_state_dict(model, other, state)
    with pytest.raises(plait.InvalidArgument, match="not the model's"):
        plait.full_optimizer_state_dict(model, torch.optim.SGD([torch.ones(2, requires_grad=True)]))


def test_a_group_of_threads_is_refused_for_dtensors() -> None:
    with pytest.raises(plait.InvalidArgument, match="from_process_group"):
        plait.sharded_state_dict(whole_model())
