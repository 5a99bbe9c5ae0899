"""Fixtures of the Python tests."""

import os
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

os.environ["PLAIT_CACHE"] = "off"  # what auto measures during a test stays there

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(1)
    torch.manual_seed(1)


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """For whole models of small tensors: threads that wait for each other on a loaded machine take longer than their work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def poison() -> Callable[..., None]:
    """Leaves NaN in the memory that results of these shapes are likely to get, so that an unwritten result shows."""

    def leave_nan(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        for _ in range(3):
            blocks = [torch.full(shape, float("nan"), dtype=dtype) for shape in shapes for _ in range(4)]
            del blocks

    return leave_nan


def bits(tensor: Tensor) -> Tensor:
    """The elements as integers, for comparisons that see signs of zero and every last bit."""
    return tensor.detach().contiguous().view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def close_to_exact(result: Tensor, exact: Tensor, magnitude: Tensor | float, terms: int) -> bool:
    """|result - exact| within the rounding of a chain of `terms` float32 products whose absolute values add up to `magnitude`, plus
    one rounding to the result's type."""
    chain = terms * 2.0**-24 / (1 - terms * 2.0**-24) * torch.as_tensor(magnitude, dtype=torch.float64)
    store = torch.finfo(result.dtype).eps / 2 * exact.abs() + torch.finfo(result.dtype).smallest_normal
    return bool(((result.double() - exact).abs() <= chain + store + 1e-30).all())
