"""Trainings of examples/train_moe.py: the same losses whatever the dispatcher, and those of transformers' own experts in one process."""

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("transformers", "5.24", reason="transformers 5.24 or later is not installed")

import plait.hf  # noqa: E402, F401

pytestmark = pytest.mark.usefixtures("one_torch_thread")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_moe.py"
STEPS = 60 if os.environ.get("PLAIT_TEST_FULL") == "1" else 10
MODELS = ["qwen3_5_moe", "qwen3_moe", "mixtral"]


@cache
def example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("train_moe", EXAMPLE)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@cache
def curve(name: str, dtype: torch.dtype, experts: str) -> list[float]:
    """In one process."""
    return example().train(example().make_model(name, dtype, experts), STEPS)


@cache
def curve_on_ranks(name: str, dtype: torch.dtype, dispatcher: str) -> list[float]:
    return example().train_on_ranks(example().make_model(name, dtype), STEPS, 4, dispatcher)


def gap(curve: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(curve, other, strict=True))


def mean_gap(curve: list[float], other: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(curve, other, strict=True)) / len(curve)


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_eager_experts_and_fall(name: str) -> None:
    eager = curve(name, torch.float32, "eager")
    assert eager[-1] < eager[0] - 0.3
    for ours in (curve(name, torch.float32, "plait"), curve_on_ranks(name, torch.float32, "alltoall")):
        assert gap(ours[:10], eager[:10]) < 1e-5
        # Where two experts score alike, a rounding may choose the other one, which all later steps carry on.
        assert gap(ours, eager) < 1e-3


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_do_not_depend_on_the_dispatcher(name: str, dtype: torch.dtype) -> None:
    assert curve_on_ranks(name, dtype, "alltoall") == curve_on_ranks(name, dtype, "mc2")


@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_losses_are_within_the_spread_of_transformers(name: str) -> None:
    """Against itself, eager against grouped_mm; and, where a choice of experts that a rounding has turned has parted the curves, as close to
    float32 as eager is."""
    eager, grouped = (curve(name, torch.bfloat16, experts) for experts in ("eager", "grouped_mm"))
    exact = curve(name, torch.float32, "eager")
    spread = max(gap(eager[:10], grouped[:10]), 1e-3)
    for ours in (curve(name, torch.bfloat16, "plait"), curve_on_ranks(name, torch.bfloat16, "mc2")):
        assert min(gap(ours[:10], eager[:10]), gap(ours[:10], grouped[:10])) < 1.5 * spread
        assert mean_gap(ours, exact) < 1.2 * mean_gap(eager, exact)


def test_the_program_runs_as_ranks_that_are_processes(tmp_path: Path) -> None:
    """As torchrun starts it."""
    common = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": tmp_path.name, "MASTER_PORT": str(os.getpid())}
    common |= {"OMP_NUM_THREADS": "1", "PLAIT_THREADS": "1"}
    command = [sys.executable, str(EXAMPLE), "--model", "mixtral", "--steps", "2", "--dispatcher", "mc2"]
    ranks = [
        subprocess.Popen(command, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    losses = example().train(example().make_model("mixtral"), 2)
    assert [process.returncode for process in ranks] == [0, 0] and told[1] == ""
    assert [float(word) for word in told[0].split()[3::4]] == pytest.approx(losses, abs=1e-5)
