"""What whole models need of a group beside the operators: parameters and numbers from all ranks."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from plait._group import Group


@contextmanager
def together(groups: Sequence[Group]) -> Iterator[None]:
    """Around a part that all ranks of the groups go through: whoever fails in it stops the groups, so that nobody waits in vain."""
    try:
        yield
    except BaseException as failure:
        for group in groups:
            group.abort(str(failure))
        raise


def gather(group: Group, stage: str, own: Tensor, root: int | None = None) -> Tensor | None:
    """own (e, ...) of all ranks -> (R * e, ...) in rank order, on all ranks or on `root` alone. Collective."""
    own = own.detach().contiguous()
    if group.size == 1:
        return own.clone()
    whole = own.new_empty((group.size * own.shape[0], *own.shape[1:])) if root is None or root == group.rank else None
    group.core().gather(stage, _bytes(own), None if whole is None else _bytes(whole))
    return whole


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def values_of_ranks(group: Group, stage: str, value: float) -> list[float]:
    """A number of each rank, in rank order. Collective."""
    payloads = group.core().exchange(stage, struct.pack("=d", value))
    return [struct.unpack("=d", payload)[0] for payload in payloads]
