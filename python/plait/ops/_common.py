"""What the operators share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from plait import _alone, _core
from plait._errors import InvalidArgument
from plait._group import group_of


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


def is_transposed(weight: Tensor) -> bool:
    """Of a (G,K,N) or (K,N) view: what it views is stored (G,N,K) or (N,K)."""
    return weight.stride(-2) == 1 and weight.stride(-1) != 1


def empty_gradient(weight: Tensor) -> Tensor:
    """In the layout of the weight: the gradient of a transposed view is one too, so that what it views gets a contiguous one."""
    if weight.dim() > 1 and is_transposed(weight):
        return weight.new_empty(weight.transpose(-1, -2).shape).transpose(-1, -2)
    return weight.new_empty(weight.shape)


@contextmanager
def collective(group: int) -> Iterator[_core.RankGroup]:
    """The core's group for one call together with its other ranks. Whatever fails here stops the group, so that none waits for this rank."""
    ranks = _alone.alone() if group == _alone.HANDLE else group_of(group)
    try:
        core = ranks.core()
        core.profiled = torch.autograd._profiler_enabled()
        yield core
    except BaseException as failure:
        ranks.abort(str(failure))
        if group == _alone.HANDLE:
            _alone.forget()
        raise


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
