"""The package around the operators: import without Torch, information, errors, the command line, documentation."""

import doctest
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plait

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_version() -> None:
    assert plait.__version__ == (REPOSITORY / "VERSION").read_text().strip()


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    plait.info()
    shown = capsys.readouterr().out
    assert plait.__version__ in shown and "usable, chosen" in shown and "PLAIT_THREADS" in shown


def test_without_torch() -> None:
    hide = "import sys; sys.modules['torch'] = None; import plait; plait.info(); "
    assert run("-c", hide).returncode == 0
    refused = run("-c", hide + "plait.nn")
    assert refused.returncode == 1 and "torch" in refused.stderr
    loaded = run("-c", "import sys, plait; print('torch' in sys.modules)")
    assert loaded.stdout.strip() == "False"


def test_a_malformed_environment_is_an_error_that_names_it() -> None:
    code = "import os; os.environ['PLAIT_THREADS'] = 'many'; import torch, plait; plait.ops.relu2(torch.ones(1, 1))"
    refused = run("-c", code)
    assert refused.returncode == 1 and "InvalidArgument" in refused.stderr and "PLAIT_THREADS" in refused.stderr


def test_errors_keep_what_they_know_when_pickled() -> None:
    error = plait.Error("late", "timeout", 2, "dispatch", 7)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.rank, copy.stage, copy.expert) == ("late", "timeout", 2, "dispatch", 7)
    assert issubclass(plait.InvalidArgument, (plait.Error, ValueError))


def test_the_command_line() -> None:
    version = run("-m", "plait", "--version")
    assert version.returncode == 0 and plait.__version__ in version.stdout
    assert run("-m", "plait", "no-such-command").returncode == 2
    tiny = run("-m", "plait", "verify", "--model", "tiny", "--ranks", "2", "--engine", "shm")
    assert tiny.returncode == 0, tiny.stdout + tiny.stderr


def test_there_is_no_other_attribute() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = plait.nothing  # type: ignore[attr-defined]


OPERATORS = ["activation", "alltoallv_gmm", "fused_expert", "grouped_matmul", "layer", "moe", "permute", "router"]
MODULES = ["nn._experts", "nn._moe", "parallel._gradients", "parallel._optimizer_state", "parallel._state_dict"]
DOCUMENTED = ["__init__", "_group", "_last_run", *MODULES, *(f"ops._{name}" for name in OPERATORS)]


@pytest.mark.parametrize("module", [f"plait.{name}" for name in DOCUMENTED])
def test_examples_in_docstrings(module: str) -> None:
    import torch

    loaded = __import__(module, fromlist=["_"])
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(loaded, extraglobs={"plait": plait, "torch": torch}, optionflags=flags)
    assert result.failed == 0 and result.attempted > 0


def test_examples_in_the_documentation() -> None:
    """Every Python block of docs/pytorch.md runs, top to bottom in one namespace; its last comments are asserted by the blocks themselves."""
    blocks = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "docs" / "pytorch.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/pytorch.md", "exec"), namespace)
