"""Ranks as processes with torch.distributed over gloo: run_processes starts them on a function of a test module and gathers what it returns.

One launcher imports what they need and forks them, before anything has been computed: importing takes longer than most tests.
"""

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which the first call of a custom operator would import
import torch.distributed as dist

TIMEOUT_S = 400


def run_processes(size: int, body: Callable[..., Any], folder: Path, *arguments: str) -> list[Any]:
    """body(*arguments) on every rank, torch.distributed initialised; its results in rank order."""
    places = [folder / f"{body.__name__}-{rank}.pt" for rank in range(size)]
    command = [sys.executable, __file__, body.__module__, body.__name__, str(size), str(folder), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PLAIT_THREADS": "1"}
    launcher = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        num_failed = launcher.wait(timeout=TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
    told = "".join(file.read_text() for place in places if (file := place.with_suffix(".txt")).exists())
    assert num_failed == 0, told
    return [torch.load(place) for place in places]


def _fork_ranks(module: str, function: str, size: int, folder: Path, arguments: list[str]) -> int:
    """In the launcher: how many ranks failed. In a rank: 0, after its work."""
    _end_with_parent()
    body = getattr(importlib.import_module(module), function)
    ranks = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            _end_with_parent()
            _run_rank(body, rank, size, folder / f"{function}-{rank}.pt", arguments)
            return 0
        ranks.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in ranks)


def _end_with_parent() -> None:
    """Nobody is left where the tests are killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _run_rank(body: Callable[..., Any], rank: int, size: int, place: Path, arguments: list[str]) -> None:
    errors = os.open(place.with_suffix(".txt"), os.O_CREAT | os.O_WRONLY)
    os.dup2(errors, sys.stderr.fileno())
    dist.init_process_group("gloo", init_method=f"file://{place.parent}/{body.__name__}.store", rank=rank, world_size=size)
    torch.manual_seed(1)
    torch.save(body(*arguments), place)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(_fork_ranks(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:]))
