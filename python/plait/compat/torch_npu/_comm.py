"""Names of communicators: what operators with an argument `hcom` are given, and the groups that they stand for."""

import re
import weakref
from typing import TYPE_CHECKING

from plait._errors import InvalidArgument
from plait._group import Group, group_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_process_groups: "weakref.WeakValueDictionary[str, ProcessGroup]" = weakref.WeakValueDictionary()


def name_process_group(process_group: "ProcessGroup") -> str:
    """Equal on all its ranks."""
    name = f"plait_hccl_{process_group.group_name}"
    _process_groups[name] = process_group
    return name


def comm_name(group: Group) -> str:
    """The name under which operators with an argument `hcom` find a plait.Group, for groups that torch.distributed does not know.

    Groups of torch.distributed have theirs as in torch_npu: `group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)`.

    Example:
        >>> plait.compat.torch_npu.comm_name(plait.init("named"))
        'plait_group_...'
    """
    return f"plait_group_{group.handle}"


def group_of_name(operator: str, hcom: str, num_ranks: int | None = None) -> Group:
    """The group with this name. The first call for a group of torch.distributed is collective over its ranks.

    Raises:
        plait.InvalidArgument: there is no such group, or it has another size.
    """
    match = re.fullmatch(r"plait_group_(\d+)", hcom)
    process_group = _process_groups.get(hcom)
    if match is None and process_group is None:
        known = ", ".join(sorted(_process_groups)) or "none"
        raise InvalidArgument(f"{operator}: hcom='{hcom}' names no group; names come from get_hccl_comm_name of an hccl backend. Known: {known}")
    group = group_of(int(match[1])) if match is not None else Group.from_process_group(process_group)
    if num_ranks is not None and num_ranks != group.size:
        raise InvalidArgument(f"{operator}: the group of hcom has {group.size} ranks, but the call says {num_ranks}")
    return group
