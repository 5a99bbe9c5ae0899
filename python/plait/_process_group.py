"""Groups over the ranks of a torch.distributed process group."""

import json
import os
import socket
import time
import uuid
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from plait import _core
from plait._errors import Error, InvalidArgument

# How often a process group was joined: equal on all its ranks. It goes with the process group.
_joins: "weakref.WeakKeyDictionary[dist.ProcessGroup, int]" = weakref.WeakKeyDictionary()


class _Rank(NamedTuple):
    """What each rank tells the others through the store."""

    host: str
    machine: str
    job: str


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    return dist.get_world_size()


def resolve(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The process group meant, of which this process is a rank.

    Raises:
        plait.InvalidArgument: torch.distributed is not initialised, or this process is not in the group.
    """
    if not is_initialized():
        raise InvalidArgument("Group.from_process_group: torch.distributed is not initialised: call init_process_group first, or plait.init()")
    resolved = dist.group.WORLD if process_group is None else process_group
    if not isinstance(resolved, dist.ProcessGroup):
        member = "this process is not one of its ranks" if resolved == dist.GroupMember.NON_GROUP_MEMBER else f"it is {resolved!r}"
        raise InvalidArgument(f"Group.from_process_group: no process group: {member}")
    try:
        rank = dist.get_rank(resolved)
    except ValueError:  # torch no longer knows it
        raise InvalidArgument("Group.from_process_group: the process group was destroyed") from None
    if rank < 0:
        raise InvalidArgument(f"Group.from_process_group: rank {dist.get_rank()} is not in the group of {dist.get_process_group_ranks(resolved)}")
    return resolved


def join(process_group: dist.ProcessGroup, name: str, timeout: float | None) -> _core.RankGroup:
    """Joins, with all ranks of the process group and in its order, a group of their own. Collective over them.

    The handshake goes through the process group's store, so it works with every backend and moves nothing on a device.
    """
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    joins = _joins.get(process_group, 0)
    own = _Rank(socket.gethostname(), _machine(), uuid.uuid4().hex)
    seconds = _core.default_timeout() if timeout is None else timeout
    ranks = _exchange(process_group, f"plait/{name}/{joins}", own, seconds)
    _joins[process_group] = joins + 1
    for other, told in enumerate(ranks):
        if told.machine != ranks[0].machine:
            raise Error(
                f"Group.from_process_group: rank 0 is on {ranks[0].host}, rank {other} elsewhere, on {told.host}: groups across machines "
                "do not exist yet; take a process group of the ranks of one machine",
                "unavailable",
                other,
            )
    return _core.join_as(ranks[0].job, name, rank, size, _ranks_of_this_machine(), timeout)


def _machine() -> str:
    """Equal for processes that reach each other's memory and local sockets: one boot of one kernel, one network namespace."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.stat('/proc/self/ns/net').st_ino}"


def _ranks_of_this_machine() -> int:
    """They share the CPUs, whatever groups they are in."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if local.isdecimal() and int(local) > 0 else dist.get_world_size()


def _exchange(process_group: dist.ProcessGroup, prefix: str, own: _Rank, seconds: float) -> list[_Rank]:
    """What all ranks of the process group tell, in its order."""
    store = _get_process_group_store(process_group)
    keys = [f"{prefix}/{rank}" for rank in range(dist.get_world_size(process_group))]
    rank = dist.get_rank(process_group)
    store.set(keys[rank], json.dumps(own))
    try:
        _wait_for(store, keys, rank, seconds)
    except BaseException:
        store.delete_key(keys[rank])  # whoever comes later shall not take this rank for waiting
        raise
    ranks = [_Rank(*json.loads(store.get(key))) for key in keys]
    # All have read before any key goes.
    done = f"{prefix}/done"
    if store.add(done, 1) == len(keys):
        for key in (*keys, done):
            store.delete_key(key)
    return ranks


def _wait_for(store: Any, keys: list[str], rank: int, seconds: float) -> None:
    """In short looks, so that Ctrl-C ends the wait and that those who do not come can be named."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not store.check(keys):
        if time.monotonic() > deadline:
            missing = [other for other, key in enumerate(keys) if not store.check([key])]
            if not missing:
                return
            names = ", ".join(map(str, missing))
            raise Error(
                f"Group.from_process_group: rank {rank} waited {seconds:g} s for rank {names} of the process group, which did not call it",
                "timeout",
                missing[0],
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
