"""Groups: ranks as threads, ranks as processes, failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import same_bits
from torch import Tensor

import plait

SCRIPT = """
import sys, torch, plait
group = plait.init(timeout=60)
torch.manual_seed(3)
experts = plait.nn.Experts(4, 8, 6, group, dispatcher="mc2")
x = torch.randn(2, 5, 8)[group.rank].requires_grad_()
routing = plait.ops.route(torch.randn(2, 5, 4)[group.rank], 2)
y = experts(x, routing.expert_ids, routing.weights)
y.square().sum().backward()
group.barrier()
torch.save([y.detach(), x.grad, experts.gate_up.grad, experts.down.grad], f"{sys.argv[1]}/{group.rank}.pt")
print(group)
"""


def test_ranks_as_threads_return_in_rank_order() -> None:
    def body(group: plait.Group) -> tuple[int, int, str]:
        group.barrier()
        return group.rank, group.size, group.engine

    assert plait.run_ranks(3, body) == [(rank, 3, "threads") for rank in range(3)]


def test_a_failing_rank_stops_the_others_and_is_what_one_sees() -> None:
    stopped: dict[int, plait.Error] = {}

    def body(group: plait.Group) -> None:
        if group.rank == 1:
            raise KeyError("mine")
        try:
            group.barrier()
        except plait.Error as error:
            stopped[group.rank] = error
            raise

    with pytest.raises(KeyError, match="mine"):
        plait.run_ranks(3, body, timeout=60)
    assert sorted(stopped) == [0, 2]
    for error in stopped.values():
        assert error.code == "aborted" and error.rank == 1 and "mine" in str(error)


def test_a_rank_that_does_not_come_is_named() -> None:
    def body(group: plait.Group) -> str:
        if group.rank == 1:
            return ""
        with pytest.raises(plait.Error) as caught:
            group.barrier()
        return f"{caught.value.code} {caught.value.rank}"

    assert plait.run_ranks(2, body, timeout=0.2) == ["timeout 1", ""]


def test_alone_without_a_launcher() -> None:
    assert repr(plait.init("alone")) == "plait.Group(rank=0, size=1, engine='threads')"


def test_a_child_of_fork_is_told_to_make_a_group_of_its_own() -> None:
    group = plait.init("parent")
    child = os.fork()
    if child == 0:
        try:
            group.barrier()
        except plait.InvalidArgument as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_contradictory_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_RANK", "3")
    monkeypatch.setenv("PLAIT_SIZE", "2")
    with pytest.raises(plait.InvalidArgument, match="PLAIT_RANK"):
        plait.init()


def results_of(folder: Path) -> list[Tensor]:
    """y, dx and the weights' gradients of all ranks."""
    return [torch.cat(parts) for parts in zip(*(torch.load(folder / f"{rank}.pt") for rank in range(2)), strict=True)]


def results_of_one_rank() -> list[Tensor]:
    """The same tokens and experts as in SCRIPT."""
    torch.manual_seed(3)
    experts = plait.nn.Experts(4, 8, 6, plait.init())
    x = torch.randn(10, 8, requires_grad=True)
    routing = plait.ops.route(torch.randn(10, 4), 2)
    y = experts(x, routing.expert_ids, routing.weights)
    y.square().sum().backward()
    assert x.grad is not None and experts.gate_up.grad is not None and experts.down.grad is not None
    return [y.detach(), x.grad, experts.gate_up.grad, experts.down.grad]


def test_processes_give_the_bits_of_one_rank(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    folders = [tmp_path / name for name in ("own", "torchrun")]
    for folder in folders:
        folder.mkdir()

    ranks = []
    for rank in range(2):
        environment = os.environ | {"PLAIT_RANK": str(rank), "PLAIT_SIZE": "2", "PLAIT_JOB": f"test-{os.getpid()}"}
        command = [sys.executable, str(script), str(folders[0])]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    shown = [process.communicate(timeout=240)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert all("engine='shm'" in text for text in shown)

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), str(folders[1])]
    assert subprocess.run(command, capture_output=True, timeout=240, check=False).returncode == 0

    wanted = results_of_one_rank()
    for folder in folders:
        assert all(same_bits(a, b) for a, b in zip(results_of(folder), wanted, strict=True))


def test_a_process_that_fails_ends_the_others_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import plait\n"
        "group = plait.init(timeout=60)\n"
        "if group.rank == 1:\n"
        "    group.abort('no more memory for this one')\n"
        "group.barrier()\n"
    )
    ranks = []
    for rank in range(2):
        environment = os.environ | {"PLAIT_RANK": str(rank), "PLAIT_SIZE": "2", "PLAIT_JOB": f"fail-{os.getpid()}"}
        ranks.append(subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True))
    for process in ranks:
        told = process.communicate(timeout=240)[1]
        assert process.returncode == 1 and "no more memory for this one" in told and "rank 1" in told
