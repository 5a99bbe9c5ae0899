"""The process-group backend "hccl": that of gloo for tensors on the CPU, with what code for torch_npu expects besides."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plait._errors import Error, InvalidArgument
from plait.compat.torch_npu._comm import name_process_group
from plait.compat.torch_npu._undo import Undo

_NAME = "hccl"
# Registries of torch.distributed.Backend with an entry for each backend.
_REGISTRIES = ("backend_type_map", "backend_capability")


class HcclProcessGroup(dist.ProcessGroup):
    """What torch.distributed takes for the process group itself, so that its methods see the calls before gloo does."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta):
        super().__init__(rank, size)  # type: ignore[call-arg]  # the only form that a Python class can extend
        kind = dist.ProcessGroup.BackendType.GLOO
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._set_default_backend(kind)
        for device in ("cpu", "npu"):
            self._register_backend(torch.device(device), kind, gloo)
        self._sends: list[tuple[Any, list[Tensor]]] = []

    def _get_backend(self, device: torch.device) -> Any:
        """This group for "npu", so that get_hccl_comm_name is found."""
        return self if device.type == "npu" else super()._get_backend(device)

    def get_hccl_comm_name(self, rankid: int, init_comm: bool = True) -> str:
        """The name for the argument `hcom` of operators, equal on all ranks.

        Args:
            rankid: the global rank of this process.
            init_comm: of no concern here: the first operator joins the ranks.
        """
        own = dist.get_global_rank(self, self.rank())
        if rankid != own:
            raise InvalidArgument(f"get_hccl_comm_name: rank {rankid}; it is the global rank of the process that asks, {own}")
        return name_process_group(self)

    @property
    def supports_splitting(self) -> bool:
        return False

    def all_gather_single(self, output: Tensor, input: Tensor, *options: Any) -> Any:
        """Any shape of the output with as many elements as all inputs: gloo wants that of the inputs side by side."""
        return super().all_gather_single(_flat(output), input.reshape(-1), *options)

    def _allgather_base(self, output: Tensor, input: Tensor, *options: Any) -> Any:
        return self.all_gather_single(output, input, *options)

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Any:
        """The message arrives even if its handle is dropped, which with gloo would take it back."""
        self._sends = [pending for pending in self._sends if not pending[0].is_completed()]
        work = super().send(tensors, dst, tag)
        self._sends.append((work, tensors))
        return work


def _flat(output: Tensor) -> Tensor:
    if not output.is_contiguous():
        raise InvalidArgument(f"all_gather_into_tensor: the output has strides {output.stride()}; it is contiguous")
    return output.view(-1)


def add_backend(undo: Undo) -> None:
    backend = dist.Backend
    if _NAME in backend.backend_list:
        raise Error("torch_npu.install: there is a process-group backend 'hccl' already", "unavailable")
    undo.callback(_remove_backend)
    backend.register_backend(_NAME, HcclProcessGroup, devices=["cpu", "npu"])


def _remove_backend() -> None:
    backend: Any = dist.Backend
    for registry in _REGISTRIES:
        getattr(backend, registry).pop(_NAME, None)
    backend._plugins.pop(_NAME.upper(), None)
    for device, name in list(backend.default_device_backend_map.items()):
        if name == _NAME:
            del backend.default_device_backend_map[device]
    if _NAME in backend.backend_list:
        backend.backend_list.remove(_NAME)
    if hasattr(backend, _NAME.upper()):
        delattr(backend, _NAME.upper())


def living_groups() -> int:
    """Process groups of the backend that were not destroyed."""
    if not dist.is_initialized():
        return 0
    return sum(isinstance(group, HcclProcessGroup) for group in torch.distributed.distributed_c10d._world.pg_map)
