"""Plait's operators for PyTorch: custom operators `torch.ops.plait.*` with autograd and fake kernels.

Tensors are on the CPU and are float32, bfloat16 or float16; products are summed in float32 and rounded once. Any strides are accepted.
Sizes: T tokens, H hidden size, E experts, k experts per token, G groups of rows, M rows.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("plait.ops needs PyTorch 2.11 or later: pip install torch") from error

from plait.ops._activation import geglu_tanh, relu2, swiglu, swiglu_clamped
from plait.ops._grouped_matmul import grouped_matmul
from plait.ops._layer import moe_layer
from plait.ops._permute import permute, unpermute
from plait.ops._router import Routing, route

__all__ = ["Routing", "geglu_tanh", "grouped_matmul", "moe_layer", "permute", "relu2", "route", "swiglu", "swiglu_clamped", "unpermute"]
