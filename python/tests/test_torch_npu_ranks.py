"""Code written for torch_npu's operators, on ranks that are processes: the example's step, and what the backend hccl adds to gloo."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_processes
from torch import Tensor

import plait
from plait import ops
from plait.compat import torch_npu as compat

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "npu_style_moe.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("npu_style_moe", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def restart(folder: str, backend: str | None) -> Any:
    """The ranks meet anew, with another backend."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}.store", rank=rank, world_size=size)
    return dist.distributed_c10d._get_default_group()


def step_rank(folder: str) -> dict[str, Any]:
    """The example's step and plait's own layer on the same numbers."""
    compat.install()
    example, world = load_example(), restart(folder, "hccl")
    results = example.step(world)
    x, ids, probs, gate_up, down = example.parameters(dist.get_rank(), dist.get_world_size())
    leaves = [tensor.requires_grad_() for tensor in (x, probs, gate_up, down)]
    y = ops.moe_layer(x, ids, probs, gate_up, down, plait.Group.from_process_group(), dispatcher="mc2")
    own = (y.detach(), *torch.autograd.grad(y.square().sum(), leaves))
    return {"npu": results[1:], "own": own, "fused": one_call(world, ids, *(leaf.detach() for leaf in leaves))}


def one_call(world: Any, ids: Tensor, x: Tensor, probs: Tensor, gate_up: Tensor, down: Tensor) -> list[Tensor]:
    """mc2_fused_expert with the weights of all experts, and with those of this rank by the name of the communicator."""
    import torch_npu

    gate, up = gate_up.chunk(2, -1)
    whole = [torch.empty(dist.get_world_size(), *part.shape) for part in (up, gate, down)]
    for everything, part in zip(whole, (up, gate, down), strict=True):
        dist.all_gather_into_tensor(everything, part.contiguous())
    call = torch_npu.npu.mc2_fused_expert
    tokens, chosen, weights = (tensor.view(2, -1, tensor.shape[-1]) for tensor in (x, ids, probs))
    name = world._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank())
    num_experts = up.shape[0] * dist.get_world_size()
    return [
        call(tokens, *(part.flatten(0, 1) for part in whole), chosen, group=world, expert_weights=weights).flatten(0, 1),
        call(tokens, up, gate, down, chosen, group=name, expert_weights=weights, num_experts=num_experts).flatten(0, 1),
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_example_equals_plaits_layer(ranks: int, tmp_path: Path) -> None:
    for part in run_processes(ranks, step_rank, tmp_path, str(tmp_path)):
        # The two add up a token's experts in other orders, slot by slot and as a tree.
        assert len(part["npu"]) == len(part["own"]) == 5
        for got, wanted in zip(part["npu"], part["own"], strict=True):
            assert wanted.abs().max() > 0
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        for got in part["fused"]:
            assert torch.equal(got, part["own"][0])


def backend_rank(folder: str) -> bool:
    """The needs of such code beyond gloo, and groups of some ranks in another order."""
    compat.install()
    restart(folder, "hccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "hccl"
    table = torch.empty(size, 3, dtype=torch.int64, device="npu")
    dist.all_gather_into_tensor(table, torch.arange(3) + rank)
    assert table.tolist() == [[0 + r, 1 + r, 2 + r] for r in range(size)]
    dist.barrier()
    if rank == 0:
        dist.isend(torch.full((1000,), 7.0), 1)  # the handle is dropped
    elif rank == 1:
        message = torch.zeros(1000)
        dist.recv(message, 0)
        assert message.eq(7).all()
    use_groups(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).to("npu"))
    model(torch.ones(1, 3) * rank).sum().backward()
    assert model.module.weight.grad.eq(1.5).all()  # the mean of 0, 1, 2, 3
    del model
    with pytest.raises(plait.Error, match="destroy_process_group"):
        compat.uninstall()
    dist.barrier()
    restart(folder, "gloo")
    compat.uninstall()
    restart(folder, None)  # PyTorch chooses the backend as if it had never heard of "npu"
    dist.barrier()
    return dist.get_backend_config() == "cpu:gloo"


def use_groups(rank: int) -> None:
    import torch_npu

    groups: list[Any] = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    group = groups[0] if rank in (0, 2) else groups[1]
    members = dist.get_process_group_ranks(group)
    name = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    # Both ranks send their number to the group's first one, which multiplies by 10.
    first = members[0] == rank
    y = torch_npu.npu_alltoallv_gmm(torch.tensor([[float(rank)]]), torch.tensor([[[10.0]]]), name, 2, [1, 0], [1, 1] if first else [0, 0])[0]
    assert y.flatten().tolist() == ([10.0 * member for member in members] if first else [])
    with pytest.raises(plait.InvalidArgument, match="global rank"):
        group._get_backend(torch.device("npu")).get_hccl_comm_name(rank + 1)


def test_the_backend(tmp_path: Path) -> None:
    assert run_processes(4, backend_rank, tmp_path, str(tmp_path)) == [True] * 4


def test_the_example_as_a_program() -> None:
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ran = subprocess.run([sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0 and "1 ranks" in ran.stdout, ran.stderr
