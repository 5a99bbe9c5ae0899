"""The functions of `torch.npu`: one device for each rank of the machine, which is its CPUs and their memory."""

import contextlib
import os
import resource
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from plait import ops
from plait._errors import InvalidArgument
from plait._group import Group
from plait.compat.torch_npu._comm import group_of_name
from plait.compat.torch_npu._streams import Event, Stream, StreamContext

__all__ = ["Event", "Stream", "StreamContext"]  # what is taken over from elsewhere; all functions of this file belong to torch.npu too

_current = 0


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """There is nothing to start."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """Ranks of this machine as the launcher tells them (LOCAL_WORLD_SIZE), at least 1."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(local), 1) if local.isdecimal() else 1


def _index(device: Any) -> int:
    if device is None:
        return _current
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _current if index is None else index


def set_device(device: Any) -> None:
    global _current
    index = _index(device)
    if index < 0:
        raise InvalidArgument(f"torch.npu.set_device: device {index}; it is 0 or more")
    _current = index


def current_device() -> int:
    """As `set_device` left it."""
    return _current


class device:
    """`with torch.npu.device(i):`"""

    def __init__(self, device: Any):
        self._index = _index(device)

    def __enter__(self) -> None:
        self._before = _current
        set_device(self._index)

    def __exit__(self, *failure: object) -> None:
        set_device(self._before)


def synchronize(device: Any = None) -> None:
    """Work is done when its call returns."""


def get_device_name(device: Any = None) -> str:
    return "plait (CPU)"


def get_device_properties(device: Any = None) -> Any:
    return SimpleNamespace(name=get_device_name(), total_memory=mem_get_info()[1], multi_processor_count=torch.get_num_threads())


def get_device_capability(device: Any = None) -> None:
    return None


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    return True


def utilization(device: Any = None) -> int:
    return 0


_default_stream: Stream | None = None


def default_stream(device: Any = None) -> Stream:
    global _default_stream
    if _default_stream is None:
        _default_stream = Stream()
    return _default_stream


def current_stream(device: Any = None) -> Stream:
    return default_stream()


def set_stream(stream: Any) -> None:
    """All streams are alike."""


def stream(stream: Any) -> StreamContext:
    return StreamContext(stream)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes available and in all, of the machine."""
    with open("/proc/meminfo") as lines:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024


def memory_allocated(device: Any = None) -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def max_memory_allocated(device: Any = None) -> int:
    """Their maximum since the process began: no reset."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated


def memory_stats(device: Any = None) -> dict[str, int]:
    return {"allocated_bytes.all.current": memory_allocated(), "allocated_bytes.all.peak": max_memory_allocated()}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    return f"resident {memory_allocated()} bytes, at most {max_memory_allocated()} bytes"


def _nothing(*arguments: Any, **named: Any) -> None:
    """A wish that has no meaning here."""


empty_cache = reset_peak_memory_stats = reset_max_memory_allocated = reset_max_memory_cached = reset_accumulated_memory_stats = _nothing
set_compile_mode = set_option = set_mm_bmm_format_nd = set_sync_debug_mode = set_per_process_memory_fraction = _nothing


def manual_seed(seed: int) -> None:
    """The generator is the CPU's, which torch.manual_seed has just seeded when it calls this."""
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    torch.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    return torch.default_generator.initial_seed()


def get_rng_state(device: Any = None) -> Tensor:
    return torch.default_generator.get_state()


def set_rng_state(new_state: Tensor, device: Any = None) -> None:
    torch.default_generator.set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    set_rng_state(new_states[0])


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


def is_autocast_enabled() -> bool:
    return torch.is_autocast_enabled("cpu")


def set_autocast_enabled(enable: bool) -> None:
    torch.set_autocast_enabled("cpu", enable)


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("cpu", dtype)


@contextlib.contextmanager
def autocast(enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> Iterator[None]:
    """torch.npu.amp.autocast: that of the CPU, where the tensors are."""
    with torch.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled):
        yield


def mc2_fused_expert(
    x: Tensor,
    weights_up: Tensor,
    weights_gate: Tensor,
    weights_down: Tensor,
    expert_ids: Tensor,
    group: Any = None,
    expert_weights: Tensor | None = None,
    num_experts: int | None = None,
) -> Tensor:
    """The routed experts of an MoE layer in one call: down(silu(gate(x)) * up(x)) of each chosen expert, added up. Differentiable.

    Collective over the group: every rank calls it with tokens of its own.

    Args:
        x: (batch, seq, hidden).
        weights_up, weights_gate: (E, hidden, intermediate), of all experts: each rank takes its own part. Or, with num_experts, the e
            experts of this rank.
        weights_down: (E or e, intermediate, hidden).
        expert_ids: (batch, seq, topk), in [0, E).
        group: a process group of torch.distributed, the name of a communicator, or a plait.Group; None: all ranks.
        expert_weights: (batch, seq, topk), or None: all 1.
        num_experts: E, where the weights are those of this rank's experts.

    Returns:
        (batch, seq, hidden).

    Raises:
        plait.Error: on all ranks, naming the rank that failed and why.
    """
    total = weights_up.shape[0] if num_experts is None else num_experts
    return ops.mc2_fused_expert(
        x, weights_up, weights_gate, weights_down, expert_ids, _resolve_group(group), expert_weights, num_experts=total
    )


def _resolve_group(group: Any) -> Group | None:
    if isinstance(group, Group):
        return group
    if isinstance(group, str):
        return group_of_name("mc2_fused_expert", group)
    if group is None and not torch.distributed.is_initialized():
        return None
    return Group.from_process_group(group)
