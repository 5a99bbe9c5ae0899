"""Expert parallelism of transformers models with Plait: as transformers' own implementation, and by plait.hf.parallelize."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_processes
from torch import Tensor

pytest.importorskip("transformers", "5.24", reason="transformers 5.24 or later is not installed")

import torch.distributed as dist  # noqa: E402
from test_hf import CONFIGS, distance, experts_of, make_model, reglu, set_gate, train_step  # noqa: E402

import plait  # noqa: E402
import plait.hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

# Experts that 4 ranks divide.
DIVISIBLE: dict[str, dict[str, Any]] = {"qwen3_5_moe_text": {"num_experts": 8}, "qwen3_moe": {"num_experts": 8}}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    return make_model(name, "plait", dtype, **DIVISIBLE.get(name, {}))


def batch(size: int, length: int = 9) -> Tensor:
    return torch.randint(64, (size, length), generator=torch.Generator().manual_seed(5))


def wanted_of(name: str, size: int) -> dict[str, Tensor]:
    """Of one process with all ranks' tokens: the ranks' losses are means over equally many tokens."""
    model = make_model(name, "eager", **DIVISIBLE.get(name, {}))
    return train_step(model, batch(size))


def whole_results(group: plait.Group, model: Any, results: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts' gradients of all ranks put together."""
    experts = plait.expert_parameters(model)
    return {n: v if n not in experts else torch.cat(gathered(group, v)) for n, v in results.items()}


def gathered(group: plait.Group, own: Tensor) -> list[Tensor]:
    from plait.parallel._collectives import gather

    whole = gather(group, "test", own)
    assert whole is not None
    return list(whole.chunk(group.size))


def run_parallelized(models: list[Any], dispatcher: str) -> list[dict[str, Tensor]]:
    tokens = batch(len(models))

    def rank(group: plait.Group) -> dict[str, Tensor]:
        model = plait.hf.parallelize(models[group.rank], group, dispatcher=dispatcher)
        output = model(input_ids=tokens[[group.rank]], labels=tokens[[group.rank]])
        output.loss.backward()
        plait.hf.reduce_gradients(model)
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return whole_results(group, model, {"logits": output.logits.detach(), **gradients})

    return plait.run_ranks(len(models), rank, timeout=120)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [2, 4])
def test_parallelized_models_give_what_one_process_gives(name: str, size: int) -> None:
    wanted = wanted_of(name, size)
    model = model_of(name)
    by_dispatcher = {d: run_parallelized([copy.deepcopy(model) for _ in range(size)], d) for d in ("alltoall", "mc2")}
    for ranks in by_dispatcher.values():
        for rank, results in enumerate(ranks):
            own = wanted | {"logits": wanted["logits"][[rank]]}
            assert distance(results, own) < 5e-5
            assert all(torch.equal(results[n], ranks[0][n]) for n in results if n != "logits")
    for unfused, fused in zip(*by_dispatcher.values(), strict=True):
        assert all(torch.equal(unfused[n], fused[n]) for n in unfused)


def test_a_rank_whose_tokens_give_a_parameter_no_gradient() -> None:
    model = model_of("qwen3_moe")
    models = [copy.deepcopy(model) for _ in range(2)]
    tokens = batch(2)

    def rank(group: plait.Group) -> dict[str, Tensor | None]:
        own = plait.hf.parallelize(models[group.rank], group)
        own.unused = torch.nn.Parameter(torch.ones(2))
        own.of_rank_0 = torch.nn.Parameter(torch.ones(2))
        loss = own(input_ids=tokens[[group.rank]], labels=tokens[[group.rank]]).loss
        (loss if group.rank == 1 else loss + own.of_rank_0.sum()).backward()
        plait.hf.reduce_gradients(own)
        return {"unused": own.unused.grad, "of_rank_0": own.of_rank_0.grad}

    for gradients in plait.run_ranks(2, rank, timeout=60):
        assert gradients["unused"] is None
        assert gradients["of_rank_0"] is not None and gradients["of_rank_0"].tolist() == [0.5, 0.5]


def test_what_cannot_be_sharded_is_named_and_left_alone() -> None:
    group = plait.run_ranks(1, lambda g: g)[0]
    model = model_of("mixtral")
    set_gate(experts_of(model)[1], reglu)
    with pytest.raises(plait.InvalidArgument, match=r"model\.layers\.1\.mlp\.experts"):
        plait.hf.parallelize(model, group)
    assert not plait.expert_parameters(model)
    with pytest.raises(plait.InvalidArgument, match="Linear"):
        plait.hf.parallelize(torch.nn.Linear(2, 2), group)
    with pytest.raises(plait.InvalidArgument, match="0 groups"):
        plait.hf.reduce_gradients(model)

    def rank(group: plait.Group) -> None:
        with pytest.raises(plait.InvalidArgument, match="num_experts=6.* 4 ranks"):
            plait.hf.parallelize(make_model("qwen3_moe", "plait", num_experts=6), group)

    plait.run_ranks(4, rank)


def registered_rank(name: str, kind: str) -> dict[str, dict[str, Tensor]]:
    """As DistributedConfig does it, for a model that was built from a config; by name of the implementation."""
    from torch.distributed.device_mesh import init_device_mesh

    size = dist.get_world_size()
    ep_mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("ep",))
    # Ranks that share a batch are a tensor-parallel mesh; of ranks with their own batches each is one alone.
    tp_mesh = ep_mesh if kind == "shared batch" else init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "tp"))["tp"]
    tokens = batch(size) if kind == "shared batch" else batch(size)[[dist.get_rank()]]
    return {i: registered_step(i, name, kind, tokens, ep_mesh, tp_mesh) for i in ("all_to_all", "plait", "plait_mc2")}


def registered_step(implementation: str, name: str, kind: str, tokens: Tensor, ep_mesh: Any, tp_mesh: Any) -> dict[str, Tensor]:
    from torch.distributed.tensor import DTensor
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    model = model_of(name)
    if kind == "custom gate":
        for experts in experts_of(model):
            set_gate(experts, reglu)
    apply_expert_parallelism(model, ep_mesh, tp_mesh, model._expand_parallel_plan(model.ep_plan), ep_implementation=implementation)
    results = train_step(model, tokens)
    return {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in results.items()}


@pytest.mark.parametrize("name, kind", [("qwen3_moe", "own batches"), ("gpt_oss", "shared batch"), ("mixtral", "custom gate")])
def test_registered_implementation_gives_what_all_to_all_gives(name: str, kind: str, tmp_path: Path) -> None:
    for results in run_processes(2, registered_rank, tmp_path, name, kind):
        assert distance(results["plait"], results["all_to_all"]) < 5e-5
        assert all(torch.equal(results["plait_mc2"][n], v) for n, v in results["plait"].items())


def pretrained_rank(saved: str) -> dict[str, dict[str, Tensor]]:
    """Experts by expert parallelism, everything else by FSDP2."""
    from torch.distributed.tensor import DTensor
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    size = dist.get_world_size()
    results = {}
    for implementation in ("all_to_all", "plait"):
        how = DistributedConfig(fsdp_size=size, ep_size=size, ep_implementation=implementation)
        model = AutoModelForCausalLM.from_pretrained(saved, distributed_config=how, experts_implementation="plait")
        step = train_step(model, batch(size)[[dist.get_rank()]])
        results[implementation] = {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in step.items()}
    return results


def test_with_distributed_config_a_loaded_model_gives_what_one_process_gives(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate, which transformers needs to place a loaded model, is not installed")
    model = model_of("qwen3_moe")
    model.save_pretrained(tmp_path / "saved")
    wanted = wanted_of("qwen3_moe", 2)
    for rank, results in enumerate(run_processes(2, pretrained_rank, tmp_path, str(tmp_path / "saved"))):
        assert distance(results["plait"], results["all_to_all"]) < 5e-5
        assert distance(results["plait"], wanted | {"logits": wanted["logits"][[rank]]}) < 5e-5


def test_names_are_registered() -> None:
    from transformers.distributed.expert_parallel import EPImplementationInterface

    names = set(EPImplementationInterface())
    assert {"plait", "plait_alltoall", "plait_mc2", "plait_allgather"} <= names
    assert EPImplementationInterface()["plait"] is plait.hf.PlaitEP
