"""Groups of one rank, for calls that were given no group."""

import os
import threading

from plait import _core
from plait._group import Group

HANDLE = 0  #: how operators name the group of the calling thread; other groups have handles from 1 on

_threads = threading.local()


def alone() -> Group:
    """The calling thread's own group of one rank. A forked child, and a thread whose group was stopped by an error, get a new one."""
    kept: tuple[int, Group] | None = getattr(_threads, "kept", None)
    if kept is None or kept[0] != os.getpid():
        kept = os.getpid(), Group(_core.thread_ranks(1, None)[0])
        _threads.kept = kept
    return kept[1]


def forget() -> None:
    """The next call of this thread takes a new group."""
    _threads.kept = None
