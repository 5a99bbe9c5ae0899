"""swiglu and its variants against float64."""

from collections.abc import Callable

import pytest
import torch
from conftest import FLOATS, same_bits
from torch import Tensor
from torch.nn import functional as F

import plait
from plait import ops


def clamped(h: Tensor) -> Tensor:
    gate, up = h.chunk(2, -1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def gated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda h: function(h.chunk(2, -1)[0]) * h.chunk(2, -1)[1]


PAIRS = {
    "swiglu": (ops.swiglu, gated(F.silu)),
    "swiglu_clamped": (ops.swiglu_clamped, clamped),
    "geglu_tanh": (ops.geglu_tanh, gated(lambda g: F.gelu(g, approximate="tanh"))),
    "relu2": (ops.relu2, lambda h: F.relu(h).square()),
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(0, 6), (1, 2), (7, 66)])
def test_values_and_gradients_agree_with_float64(kind: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    function, definition = PAIRS[kind]
    h = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    exact_h = h.detach().double().requires_grad_()
    act, exact = function(h), definition(exact_h)
    da = torch.randn(act.shape).to(dtype)
    act.backward(da)
    exact.backward(da.double())
    assert h.grad is not None and exact_h.grad is not None and act.dtype == dtype
    tolerance = max(torch.finfo(dtype).eps, 3e-6)
    torch.testing.assert_close(act.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(h.grad.double(), exact_h.grad, rtol=tolerance, atol=4 * tolerance)


def test_interleaved_columns() -> None:
    h = torch.tensor([[10.0, -9, -1, 0.5, -10, 2]])
    act = ops.swiglu_clamped(h, interleaved=True)
    torch.testing.assert_close(act, torch.tensor([[-41.999719, -0.231306, -1.2174e-6]]), rtol=1e-4, atol=0)
    for function in (ops.swiglu, ops.swiglu_clamped, ops.geglu_tanh):
        halves = torch.cat([h[:, ::2], h[:, 1::2]], 1)
        assert same_bits(function(h, interleaved=True), function(halves))


def test_a_clamped_value_passes_no_gradient() -> None:
    h = torch.tensor([[10.0, -9]], requires_grad=True)
    ops.swiglu_clamped(h).sum().backward()
    assert h.grad is not None and h.grad.eq(0).all()


def test_strided_operands_and_gradients() -> None:
    h = torch.randn(8, 5).t().requires_grad_()
    act = ops.swiglu(h)
    assert same_bits(act, ops.swiglu(h.contiguous()))
    for da in (torch.ones(()).expand(5, 4), torch.randn(4, 5).t()):
        (dh,) = torch.autograd.grad(act, h, da, retain_graph=True)
        (wanted,) = torch.autograd.grad(act, h, da.contiguous(), retain_graph=True)
        assert same_bits(dh, wanted)


@pytest.mark.parametrize("h", [torch.ones(2, 3), torch.ones(4), torch.ones(2, 4).double(), torch.ones(2, 4, dtype=torch.int32)])
def test_misuse_is_refused(h: Tensor) -> None:
    with pytest.raises(plait.InvalidArgument):
        ops.swiglu(h)
