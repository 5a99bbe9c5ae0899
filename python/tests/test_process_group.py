"""Group.from_process_group: groups over the ranks of torch.distributed."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_processes
from torch import Tensor

import plait
from plait import _process_group

one_at_a_time = threading.Lock()  # ranks as threads have one random state


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_without_torch_distributed() -> None:
    with pytest.raises(plait.InvalidArgument, match="init_process_group"):
        plait.Group.from_process_group()


def test_what_is_no_process_group(alone: None) -> None:
    with pytest.raises(plait.InvalidArgument, match="not one of its ranks"):
        plait.Group.from_process_group(dist.GroupMember.NON_GROUP_MEMBER)  # type: ignore[arg-type]
    with pytest.raises(plait.InvalidArgument, match="'world'"):
        plait.Group.from_process_group("world")  # type: ignore[arg-type]


def test_one_group_for_all_who_ask_until_the_process_group_goes(alone: None) -> None:
    process_group = dist.new_group([0])
    group = plait.Group.from_process_group(process_group)
    assert group is plait.Group.from_process_group(process_group) and group.process_group is process_group
    assert group is not plait.Group.from_process_group()
    alive = weakref.ref(group)
    dist.destroy_process_group(process_group)
    with pytest.raises(plait.InvalidArgument, match="destroyed"):
        plait.Group.from_process_group(process_group)
    del group, process_group
    gc.collect()
    assert alive() is None


def test_after_a_failure_the_next_call_makes_a_new_group(alone: None) -> None:
    group = plait.Group.from_process_group()
    group.abort("enough")
    again = plait.Group.from_process_group()
    assert again is not group
    again.barrier()


def layer_of(group: plait.Group) -> list[Tensor]:
    """y and the gradients of this rank: tokens and experts of a rank depend on its place in the group alone."""
    with one_at_a_time:
        torch.manual_seed(3)
        experts = plait.nn.Experts(group.size * 2, 8, 6, group, dispatcher="mc2")
        x = torch.randn(group.size, 5, 8)[group.rank].requires_grad_()
        routing = plait.ops.route(torch.randn(group.size, 5, group.size * 2)[group.rank], 2)
    y = experts(x, routing.expert_ids, routing.weights)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, experts.gate_up, experts.down])]


def sub_groups_in_any_order() -> dict[str, Any]:
    rank = dist.get_rank()
    world = plait.Group.from_process_group()
    backwards = dist.new_group([2, 1, 0], sort_ranks=False)
    pair = dist.new_group([0, 2])
    reversed_group = plait.Group.from_process_group(backwards)
    result = {"world": (world.rank, world.engine, layer_of(world)), "backwards": (reversed_group.rank, layer_of(reversed_group))}
    if rank == 1:
        with pytest.raises(plait.InvalidArgument, match="not one of its ranks"):
            plait.Group.from_process_group(pair)
    else:
        pair_group = plait.Group.from_process_group(pair)
        result["pair"] = (pair_group.rank, layer_of(pair_group))
    named = plait.init("beside")
    named.barrier()
    assert named is not world and (named.rank, named.size) == (rank, 3)
    # A failure of all, and a new start.
    if rank == 1:
        world.abort("no more")
    with pytest.raises(plait.Error, match="no more") as caught:
        world.barrier()
    assert caught.value.rank == 1
    again = plait.Group.from_process_group()
    again.barrier()
    return result


def test_sub_groups_in_any_order(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    results = run_processes(3, sub_groups_in_any_order, tmp_path)
    assert set(os.listdir("/dev/shm")) <= before
    wanted = {size: plait.run_ranks(size, layer_of) for size in (2, 3)}
    for rank, result in enumerate(results):
        assert result["world"][:2] == (rank, "shm") and result["backwards"][0] == 2 - rank
        assert all(map(torch.equal, result["world"][2], wanted[3][rank]))
        assert all(map(torch.equal, result["backwards"][1], wanted[3][2 - rank]))
    for place, rank in enumerate((0, 2)):
        assert results[rank]["pair"][0] == place
        assert all(map(torch.equal, results[rank]["pair"][1], wanted[2][place]))


def refused_groups() -> dict[str, Any]:
    rank = dist.get_rank()
    here = _process_group._machine
    if rank == 1:
        _process_group._machine = lambda: "another machine"
    with pytest.raises(plait.Error, match="do not exist yet") as elsewhere:
        plait.Group.from_process_group()
    _process_group._machine = here
    late = None
    if rank == 0:
        with pytest.raises(plait.Error) as caught:
            plait.Group.from_process_group(timeout=0.2)
        late = (caught.value.code, caught.value.rank, str(caught.value))
    dist.barrier()
    plait.Group.from_process_group().barrier()  # which none of it spoils
    return {"elsewhere": (elsewhere.value.code, elsewhere.value.rank), "late": late}


def test_other_machines_and_late_ranks_are_named(tmp_path: Path) -> None:
    first, second = run_processes(2, refused_groups, tmp_path)
    assert first["elsewhere"] == second["elsewhere"] == ("unavailable", 1)
    code, rank, text = first["late"]
    assert (code, rank) == ("timeout", 1) and "rank 1 of the process group" in text


def test_a_child_of_fork_is_told_to_make_a_group_of_its_own(alone: None) -> None:
    group = plait.Group.from_process_group()
    group.barrier()
    child = os.fork()
    if child == 0:
        try:
            plait.Group.from_process_group().barrier()
        except plait.InvalidArgument as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_torchrun_with_torch_distributed_initialised(tmp_path: Path) -> None:
    """Both ways to a group, also side by side, and one rank that ends early."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import torch.distributed as dist, plait\n"
        "dist.init_process_group('gloo')\n"
        "groups = [plait.init(), plait.Group.from_process_group(), plait.init('second')]\n"
        "for group in groups:\n"
        "    group.barrier()\n"
        "assert [g.rank for g in groups] == [dist.get_rank()] * 3 and {g.engine for g in groups} == {'shm'}\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
