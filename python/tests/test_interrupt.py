"""Ctrl-C while a rank waits: KeyboardInterrupt there, an error that names it elsewhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WAITING = """
import sys, torch, plait
group = plait.init(timeout=3600)
x, weight = torch.ones(2, 2), torch.ones(1, 2, 3)
plait.run_ranks(1, lambda alone: plait.ops.alltoallv_grouped_matmul(x, weight, alone, [2], [2]))  # what PyTorch imports at a first call
calls = {
    "barrier": group.barrier,
    "operator": lambda: plait.ops.alltoallv_grouped_matmul(x, weight, group, [1, 1], [1, 1]),
}
call = calls[sys.argv[1]]
if group.rank == 1:
    print("there", flush=True)
    sys.stdin.readline()
    try:
        call()
    except plait.Error as error:
        print(error.rank, error, flush=True)
    sys.exit(0)
while True:
    try:
        print("waiting", flush=True)
        call()
    except KeyboardInterrupt:
        if group.core().failed:  # else it came before the wait
            break
print("interrupted", flush=True)
"""


def start(script: Path, rank: int, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PLAIT_RANK": str(rank), "PLAIT_SIZE": "2", "PLAIT_JOB": f"interrupt-{os.getpid()}"}
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("what", ["barrier", "operator"])
def test_a_wait_ends(tmp_path: Path, what: str) -> None:
    script = tmp_path / "rank.py"
    script.write_text(WAITING)
    ranks = [start(script, rank, what) for rank in range(2)]
    try:
        waiting, other = ranks
        assert waiting.stdout is not None and other.stdout is not None
        assert other.stdout.readline() == "there\n"
        while (line := waiting.stdout.readline()) == "waiting\n":
            waiting.send_signal(signal.SIGINT)
        assert line == "interrupted\n"
        told, _ = other.communicate("\n", timeout=120)
        assert told.startswith("0 ") and "rank 0 was interrupted while it waited for rank 1" in told
        assert waiting.wait(timeout=120) == 0 and other.returncode == 0
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_the_wait_for_a_group_to_form_ends(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import plait\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        print('waiting', flush=True)\n"
        "        plait.init(timeout=3600)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "        break\n"
    )
    for rank in range(2):
        process = start(script, rank)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=120)[0].splitlines()[-1] == "interrupted"
            assert process.returncode == 0
        finally:
            process.kill()
            process.communicate()


def test_ranks_as_threads_end_with_the_main_thread(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import time, plait\n"
        "def rank(group):\n"
        "    if group.rank == 0:\n"
        "        print('there', flush=True)\n"
        "        group.barrier()\n"
        "    while not group.core().failed:\n"
        "        time.sleep(0.01)\n"
        "plait.run_ranks(2, rank, timeout=3600)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=120)[1]
    finally:
        process.kill()
        process.communicate()
