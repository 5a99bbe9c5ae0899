"""A stand-in for torch_npu on the CPU: code written for its MoE operators runs on CPU ranks without an edit.

Importing this module changes nothing. `install()` puts the stand-in in place, `uninstall()` takes it away.

Example:
    >>> import plait.compat.torch_npu
    >>> torch_npu = plait.compat.torch_npu.install()
    >>> torch_npu.npu_swiglu(torch.ones(1, 4, device="npu")).shape
    torch.Size([1, 2])
    >>> plait.compat.torch_npu.uninstall()
"""

import logging
import sys
import threading
from types import ModuleType

from plait._errors import Error
from plait.compat.torch_npu._comm import comm_name
from plait.compat.torch_npu._undo import Undo

__all__ = ["comm_name", "install", "is_installed", "uninstall"]

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_installed: tuple[ModuleType, Undo] | None = None


def is_installed() -> bool:
    return _installed is not None


def install() -> ModuleType:
    """Puts the stand-in in place. From then on, in this process, until `uninstall`:

    * `import torch_npu` gives the stand-in; its operators are torch.ops.npu.* for CPU tensors;
    * "npu" is a device whose tensors are CPU tensors, `torch.npu` its module, `.npu()` a method of tensors and modules;
    * "hccl" is a backend of torch.distributed for CPU tensors;
    * torch.histc counts integers, torch.autocast("npu") is that of the CPU.

    A second call does nothing. The name of the private backend, "npu", stays for the life of the process, as PyTorch has it.

    Returns:
        The module torch_npu.

    Raises:
        plait.Error: the real torch_npu is loaded, or something else has its name, device or backend. Nothing has changed then.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return _installed[0]
        _refuse_the_real_one()
        undo = Undo()
        with undo:
            module = _put_in_place(undo)
            _installed = module, undo.pop_all()
        _log.info("torch_npu is plait's stand-in now: operators torch.ops.npu.*, device 'npu' and backend 'hccl' on the CPU")
        return module


def uninstall() -> None:
    """Takes away all that `install` has put in place. Does nothing where it is not installed.

    Raises:
        plait.Error: process groups with the backend hccl are there: torch.distributed.destroy_process_group() comes first.
    """
    global _installed
    with _lock:
        if _installed is None:
            return
        from plait.compat.torch_npu import _backend

        living = _backend.living_groups()
        if living > 0:
            raise Error(f"torch_npu.uninstall: {living} process groups use hccl; call torch.distributed.destroy_process_group() first", "unavailable")
        undo = _installed[1]
        _installed = None
        undo.close()
        _log.info("plait's stand-in for torch_npu is gone; PyTorch keeps 'npu' as the name of its private backend")


def _refuse_the_real_one() -> None:
    import torch

    loaded = sys.modules.get("torch_npu")
    if loaded is not None:
        where = getattr(loaded, "__file__", None) or "sys.modules"
        raise Error(f"torch_npu.install: the real torch_npu is loaded ({where}); the stand-in is for processes without it", "unavailable")
    if hasattr(torch, "npu"):
        raise Error("torch_npu.install: another package provides torch.npu", "unavailable")


def _put_in_place(undo: Undo) -> ModuleType:
    from plait.compat.torch_npu import _backend, _device, _library, _module, _patches

    npu = _module.make_npu()
    _device.add_device(undo, npu)
    undo.callback(_library.define_operators()._destroy)
    _backend.add_backend(undo)
    _patches.add_patches(undo)
    module = _module.make_torch_npu(npu)
    _module.add_modules(undo, module, npu, npu.amp)
    return module
