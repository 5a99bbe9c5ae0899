"""Plait's operators for PyTorch: custom operators `torch.ops.plait.*` with autograd and fake kernels.

Tensors are on the CPU and are float32, bfloat16 or float16; products are summed in float32 and rounded once. Any strides are accepted.
Without PyTorch the operators that need no ranks take NumPy arrays.
Sizes: T tokens, H hidden size, E experts, k experts per token, G groups of rows, M rows.
"""

from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401

    _has_torch = True
except ModuleNotFoundError:
    _has_torch = False

if TYPE_CHECKING or _has_torch:
    from plait.ops._activation import geglu_tanh, relu2, swiglu, swiglu_clamped
    from plait.ops._alltoallv_gmm import alltoallv_grouped_matmul, grouped_matmul_alltoallv
    from plait.ops._fused_expert import mc2_fused_expert
    from plait.ops._grouped_matmul import grouped_matmul
    from plait.ops._layer import moe_layer
    from plait.ops._moe import MoeOutput, moe
    from plait.ops._permute import permute, unpermute
    from plait.ops._router import Routing, route
else:
    try:
        from plait.ops._numpy import Routing, geglu_tanh, grouped_matmul, permute, relu2, route, swiglu, swiglu_clamped, unpermute
    except ModuleNotFoundError as error:
        raise ImportError("plait.ops needs PyTorch 2.11 or later, or NumPy for some of its functions: pip install torch") from error

__all__ = [
    "MoeOutput",
    "Routing",
    "alltoallv_grouped_matmul",
    "geglu_tanh",
    "grouped_matmul",
    "grouped_matmul_alltoallv",
    "mc2_fused_expert",
    "moe",
    "moe_layer",
    "permute",
    "relu2",
    "route",
    "swiglu",
    "swiglu_clamped",
    "unpermute",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        raise ImportError(f"plait.ops.{name} needs PyTorch 2.11 or later: pip install torch")
    raise AttributeError(f"module 'plait.ops' has no attribute '{name}'")
