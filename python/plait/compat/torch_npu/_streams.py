"""Streams and events of the stand-in. Work is done when its call returns, so nothing is ever waited for."""

import time
from typing import Any

import torch


class Stream(torch.Stream):
    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> "Stream":
        return super().__new__(cls, device="npu")

    def __init__(self, device: Any = None, priority: int = 0, **named: Any) -> None:
        """Does not reach torch.Stream, which would take `device` for its own."""

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Event(torch.Event):
    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        return super().__new__(cls, device="npu", enable_timing=enable_timing)

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._recorded = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event's record to the other's."""
        return 1e3 * (end_event._recorded - self._recorded)

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class StreamContext:
    """`with torch.npu.stream(s):`"""

    def __init__(self, stream: Any):
        self.stream = stream

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *failure: object) -> None:
        pass
