"""Errors of the core as exceptions."""


class Error(RuntimeError):
    """A call failed. The text shows the value, the rule and what to do.

    Attributes:
        code: what kind of failure, as in "invalid argument", "resource exhausted", "timeout", "peer lost", "aborted", "unavailable",
            "interrupted", "internal".
        rank: the rank that caused it, or None.
        stage: what was going on, as in "dispatch", or None.
        expert: the expert concerned, or None.
    """

    def __init__(self, message: str, code: str = "internal", rank: int | None = None, stage: str | None = None, expert: int | None = None):
        super().__init__(message)
        self.code = code
        self.rank = rank
        self.stage = stage
        self.expert = expert


class InvalidArgument(Error, ValueError):
    """A value that the named rule forbids. Also a ValueError."""

    def __init__(self, message: str, code: str = "invalid argument", rank: int | None = None, stage: str | None = None, expert: int | None = None):
        super().__init__(message, code, rank, stage, expert)


def make_error(code: str, message: str, rank: int, stage: str, expert: int) -> Error:
    """The exception for a status of the core (called by the module _core)."""
    kind = InvalidArgument if code == "invalid argument" else Error
    return kind(message, code, rank if rank >= 0 else None, stage or None, expert if expert >= 0 else None)
