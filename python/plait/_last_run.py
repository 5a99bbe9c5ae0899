"""What the last calls did: times, counters, waits."""

from dataclasses import dataclass

from plait._group import Group, groups


@dataclass(frozen=True)
class Run:
    """One call of an operator on this rank. Times are in milliseconds."""

    operation: str  #: as "moe_layer" or "moe_layer_backward"
    rank: int
    time_ms: float  #: from begin to end, on this rank
    wait_ms: float  #: of it, time in which this rank could do nothing but wait for others
    stages_ms: dict[str, float]  #: time per stage, as "dispatch", "gate_up"; stages that took none are left out
    peer_wait_ms: dict[int, float]  #: waits by the rank waited for; where several were late, each of them counts
    counters: dict[str, int]  #: rows_sent, bytes_sent, bytes_copied, exchanges, matmul_flops, tiles, chains_late, ...

    @property
    def busy(self) -> float:
        """The share of the time in which this rank had work: 1 where every exchange was hidden behind matmuls, or there was none."""
        return 1.0 - self.wait_ms / self.time_ms if self.time_ms > 0 else 1.0

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {time:.3f}" for name, time in sorted(self.stages_ms.items(), key=lambda item: -item[1]))
        return f"{self.operation} on rank {self.rank}: {self.time_ms:.3f} ms, {100 * self.busy:.1f} % busy; ms per stage: {stages}"


def last_run(group: Group | None = None) -> dict[str, Run]:
    """The last call of each collective operator: forward and backward apart.

    Args:
        group: None: the group that made the latest call in this process.

    Returns:
        Operator -> `Run`, in the order of the calls; empty before the first one. In a process with several ranks each has figures of its own.

    Example:
        >>> y = plait.ops.moe_layer(torch.ones(1, 2), torch.zeros(1, 1).int(), None, torch.ones(1, 2, 2), torch.ones(1, 1, 2))
        >>> run = plait.last_run()["moe_layer"]
        >>> run.rank, run.counters["rows_sent"], run.busy
        (0, 0, 1.0)
    """
    if group is not None:
        return _runs_of(group)[1]
    return max((_runs_of(other) for other in groups()), key=lambda runs: runs[0], default=(0, {}))[1]


def _runs_of(group: Group) -> tuple[int, dict[str, Run]]:
    """When the latest call ended, and all of them."""
    runs: dict[str, Run] = {}
    latest = 0
    for operation, (begin, end, stages, counters, peers) in sorted(group.calls().items(), key=lambda item: item[1][1]):
        latest = end
        runs[operation] = Run(
            operation,
            group.rank,
            (end - begin) / 1e6,
            counters["wait_ns"] / 1e6,
            {name: time / 1e6 for name, time in stages.items() if time > 0},
            {rank: time / 1e6 for rank, time in enumerate(peers) if time > 0},
            {name: value for name, value in counters.items() if name != "wait_ns"},
        )
    return latest, runs
