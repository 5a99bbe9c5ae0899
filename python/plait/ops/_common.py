"""What the operators share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from plait._errors import InvalidArgument


def array(tensor: Tensor) -> Tensor:
    """The tensor as the core can read or write it: without its graph, without a lazy sign."""
    return tensor.detach().resolve_neg()


def optional_array(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else array(tensor)


def require_dims(operation: str, name: str, tensor: Tensor, shape: str) -> None:
    """`shape` as in "(T,k)"."""
    wanted = shape.count(",") + 1
    if tensor.dim() != wanted:
        raise InvalidArgument(f"{operation}: {name} has {tensor.dim()} dimensions; it is {shape}")


def unused(like: Tensor) -> Tensor:
    """What a backward operator returns in place of a gradient that nobody needs."""
    return like.new_empty(0)


def cast_like_matmul(*tensors: Tensor | None) -> Sequence[Tensor | None]:
    """Under torch.autocast for the CPU: floating tensors in its type, as torch.matmul does."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return [t.to(dtype) if t is not None and t.is_floating_point() else t for t in tensors]


def as_ids(expert_ids: Tensor) -> Tensor:
    """int64 ids as int32; the core refuses other types. What int32 cannot hold stays outside [0, E), so that it is refused, not wrapped."""
    if expert_ids.dtype != torch.int64:
        return expert_ids
    limits = torch.iinfo(torch.int32)
    return expert_ids.clamp(limits.min, limits.max).to(torch.int32)
