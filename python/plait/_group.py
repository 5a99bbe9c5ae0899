"""Groups: ranks that call collective operators together."""

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from plait import _core
from plait._errors import Error, InvalidArgument

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Result = TypeVar("Result")

_handles = itertools.count(1)
_groups: "weakref.WeakValueDictionary[int, Group]" = weakref.WeakValueDictionary()
# One group for each process group, for all who ask; gone with the process group.
_of_process_group: "weakref.WeakKeyDictionary[ProcessGroup, Group]" = weakref.WeakKeyDictionary()
_of_process_group_lock = threading.Lock()


class Group:
    """R ranks that call the same collective operators in the same order, one thread per rank. Made by `init`, `from_process_group` or
    `run_ranks`.

    After the first error the group is stopped: every rank's call raises an error that names the rank that failed. A new group works.
    A group does not work in a child of fork().
    """

    def __init__(self, core: _core.RankGroup):
        self._core = core
        self._process = os.getpid()
        self.handle = next(_handles)  #: how operators name this group
        self._process_group: weakref.ref[ProcessGroup] | None = None
        _groups[self.handle] = self

    @classmethod
    def from_process_group(cls, process_group: "ProcessGroup | None" = None, *, timeout: float | None = None) -> "Group":
        """The group of the ranks of a torch.distributed process group, in its order, over any backend.

        The first call is collective over the ranks of the process group, whose store carries the handshake. Later calls return the same
        group, so that all layers share one; it goes with the process group. After a failure of the group the next call, on all ranks,
        makes a new one.

        Args:
            process_group: as from torch.distributed.new_group or DeviceMesh.get_group; None: all ranks.
            timeout: as for `init`; counts where the group is made.

        Raises:
            plait.InvalidArgument: torch.distributed is not initialised, or this process is not in the process group.
            plait.Error: ranks that did not come, or that are on another machine, naming them.

        Example:
            >>> import torch.distributed as dist
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> group = plait.Group.from_process_group()
            >>> group is plait.Group.from_process_group(dist.group.WORLD)
            True
            >>> dist.destroy_process_group()
        """
        from plait import _process_group

        resolved = _process_group.resolve(process_group)
        with _of_process_group_lock:
            group = _of_process_group.get(resolved)
            if group is None or (group._process == os.getpid() and group._core.failed):
                group = cls(_process_group.join(resolved, "process group", timeout))
                group._process_group = weakref.ref(resolved)
                _of_process_group[resolved] = group
        return group

    @property
    def process_group(self) -> "ProcessGroup | None":
        """The torch.distributed process group that the group was made from, while it exists."""
        return self._process_group() if self._process_group is not None else None

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""
        return self._core.rank

    @property
    def size(self) -> int:
        """R."""
        return self._core.size

    @property
    def engine(self) -> str:
        """How the ranks reach each other: "threads" of one process or "shm", processes of one machine."""
        return self._core.engine

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window memory in use: rows on their way, and what backward of pending calls needs of it."""
        return self._core.window_bytes

    def barrier(self) -> None:
        """Returns when all ranks have called it.

        Raises:
            plait.Error: a rank did not come in time, or has failed; names that rank.
        """
        self.core().barrier("barrier")

    def core(self) -> _core.RankGroup:
        """The group for the core's calls.

        Raises:
            plait.InvalidArgument: this process is a child of the one that made the group.
        """
        if self._process != os.getpid():
            raise InvalidArgument(f"{self} belongs to process {self._process}: after fork() make a new group")
        return self._core

    def calls(self) -> "dict[str, _core.Call]":
        """What `plait.last_run` is made of."""
        return self._core.calls()

    def abort(self, why: str) -> None:
        """Stops the group: present and future calls of all ranks raise an error with this text and this rank."""
        self._core.abort(why)

    def __deepcopy__(self, memo: object) -> "Group":
        """A copied module calls together with the same ranks."""
        return self

    def __repr__(self) -> str:
        return f"plait.Group(rank={self.rank}, size={self.size}, engine='{self.engine}')"


def groups() -> list[Group]:
    """All that live in this process."""
    return list(_groups.values())


def group_of(handle: int) -> Group:
    """The group that an operator was called with."""
    group = _groups.get(handle)
    if group is None:
        raise InvalidArgument(f"group {handle} is gone: keep the plait.Group as long as operators use it")
    return group


def init(name: str = "main", *, timeout: float | None = None) -> Group:
    """Joins the group `name` of this job: as the rank that torchrun, mpirun or srun gave this process, or PLAIT_RANK of PLAIT_SIZE.

    All ranks are processes of this machine. Without such variables the group has the ranks of torch.distributed where that is initialised,
    otherwise one rank.

    Args:
        name: equal on all ranks; groups of other names are apart.
        timeout: seconds after which a wait on another rank ends with an error that names it; None: PLAIT_TIMEOUT.

    Raises:
        plait.Error: ranks that did not come, naming them; contradictory variables.

    Example:
        >>> plait.init("example")
        plait.Group(rank=0, size=1, engine='threads')
    """
    core = _core.join(name, timeout)
    if core.size == 1 and "torch.distributed" in sys.modules:
        from plait import _process_group

        if _process_group.is_initialized():
            core = _process_group.join(_process_group.resolve(None), name, timeout)
    return Group(core)


def run_ranks(size: int, body: Callable[[Group], Result], *, timeout: float | None = None) -> list[Result]:
    """Runs body(group) as `size` ranks, each in a thread of its own, and returns their results in rank order.

    For tests and small experiments: all ranks are in this process. An exception in one rank stops the group, and is raised here.

    Example:
        >>> plait.run_ranks(2, lambda group: group.rank * 10)
        [0, 10]
    """
    ranks = [Group(core) for core in _core.thread_ranks(size, timeout)]
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}

    def run(group: Group) -> None:
        try:
            results[group.rank] = body(group)
        except BaseException as failure:
            failures[group.rank] = failure
            group.abort(f"{type(failure).__name__}: {failure}")

    threads = [threading.Thread(target=run, args=(group,), name=f"plait rank {group.rank}") for group in ranks]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as failure:  # Ctrl-C, or no more threads
        for group in ranks:
            group.abort(f"{type(failure).__name__} in the main thread")
        for thread in threads:
            if thread.is_alive():
                thread.join()
        raise
    if failures:
        # Ranks that were stopped by another one have less to tell than that one.
        own = [rank for rank, failure in sorted(failures.items()) if not (isinstance(failure, Error) and failure.code == "aborted")]
        raise failures[own[0] if own else min(failures)]
    return [results[rank] for rank in range(size)]
