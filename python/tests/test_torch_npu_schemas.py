"""The stand-in's operators have the schemas of torch_npu, in the dispatcher and, where its wheel is at hand, in the package itself."""

import os
import zipfile
from collections.abc import Iterator

import pytest
import torch

from plait.compat import torch_npu as compat
from plait.compat.torch_npu._library import NAMES, OPERATORS
from plait.compat.torch_npu._schemas import SCHEMAS

WHEEL = os.environ.get("PLAIT_TORCH_NPU_WHEEL", "")


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


def overload_of(schema: str) -> torch._ops.OpOverload:
    packet, _, overload = schema.split("(")[0].partition(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.npu, packet), overload or "default")
    return found


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.split("(")[0])
def test_registered_as_in_the_table(schema: str) -> None:
    found = overload_of(schema)
    assert found._schema == torch._C.parse_schema(f"npu::{schema}")
    # A schema compares equal without defaults; as text it does not.
    assert str(found._schema) == str(torch._C.parse_schema(f"npu::{schema}"))
    for key in ("CPU", "Meta", "AutogradCPU"):
        assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(found.name(), key), key


def test_one_table_and_the_names_of_the_module() -> None:
    import torch_npu

    assert {schema.split("(")[0] for schema in SCHEMAS} == set(OPERATORS) and len(SCHEMAS) == len(OPERATORS) == 31
    for name in NAMES:
        assert getattr(torch_npu, name) is getattr(torch.ops.npu, name)


@pytest.mark.skipif(not WHEEL, reason="PLAIT_TORCH_NPU_WHEEL names no wheel of torch-npu (pip download --no-deps torch-npu==2.14.0)")
def test_the_wheel_has_the_same_schemas() -> None:
    with zipfile.ZipFile(WHEEL) as wheel:
        library = wheel.read("torch_npu/lib/libtorch_npu.so")
    different = [schema for schema in SCHEMAS if library.count(b"\0" + schema.encode() + b"\0") != 1]
    assert not different
