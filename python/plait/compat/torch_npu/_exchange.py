"""npu_alltoallv_gmm, npu_gmm_alltoallv, and the tensor-parallel family, which says that it is not here yet."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from plait import ops
from plait.compat.torch_npu._comm import group_of_name
from plait.compat.torch_npu._operator import Operator, invalid, require_absent, unavailable


def _check(operator: str, weight: Tensor, counts: tuple[list[int], list[int]], ranks: int, shared: tuple[Tensor | None, Tensor | None]) -> None:
    if (shared[0] is None) != (shared[1] is None):
        raise invalid(operator, "mm_x and mm_weight belong together")
    for name, items in zip(("send_counts", "recv_counts"), counts, strict=True):
        if len(items) != ranks * weight.shape[0]:
            raise invalid(operator, f"{name} has {len(items)} items; they are {ranks} ranks times {weight.shape[0]} experts")


def _alltoallv_gmm(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    send_counts_tensor: Tensor | None = None,
    recv_counts_tensor: Tensor | None = None,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out_flag: bool = False,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    name = "npu_alltoallv_gmm"
    require_absent(name, send_counts_tensor=send_counts_tensor, recv_counts_tensor=recv_counts_tensor)
    _check(name, gmm_weight, (send_counts, recv_counts), ep_world_size, (mm_x, mm_weight))
    return ops.alltoallv_grouped_matmul(
        gmm_x,
        gmm_weight,
        group_of_name(name, hcom, ep_world_size),
        send_counts,
        recv_counts,
        shared_x=mm_x,
        shared_weight=mm_weight,
        trans_weight=trans_gmm_weight,
        trans_shared_weight=trans_mm_weight,
        return_permuted=permute_out_flag,
    )


def _gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    send_counts_tensor: Tensor | None = None,
    recv_counts_tensor: Tensor | None = None,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    name = "npu_gmm_alltoallv"
    require_absent(name, send_counts_tensor=send_counts_tensor, recv_counts_tensor=recv_counts_tensor)
    _check(name, gmm_weight, (send_counts, recv_counts), ep_world_size, (mm_x, mm_weight))
    return ops.grouped_matmul_alltoallv(
        gmm_x,
        gmm_weight,
        group_of_name(name, hcom, ep_world_size),
        send_counts,
        recv_counts,
        shared_x=mm_x,
        shared_weight=mm_weight,
        trans_weight=trans_gmm_weight,
        trans_shared_weight=trans_mm_weight,
    )


def _products(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    recv_counts: list[int],
    mm_x: Tensor | None,
    mm_weight: Tensor | None,
    trans_gmm_weight: bool,
    trans_mm_weight: bool,
) -> tuple[Tensor, Tensor | None]:
    """Results of either operator by their shapes."""
    y = gmm_x.new_empty(sum(recv_counts), gmm_weight.shape[1 if trans_gmm_weight else 2])
    if mm_x is None or mm_weight is None:
        return y, None
    return y, mm_x.new_empty(mm_x.shape[0], mm_weight.shape[0 if trans_mm_weight else 1])


def _alltoallv_gmm_fake(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out_flag: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    y, shared_y = _products(gmm_x, gmm_weight, recv_counts, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight)
    return y, shared_y, gmm_x.new_empty(sum(recv_counts), gmm_x.shape[1]) if permute_out_flag else None


def _gmm_alltoallv_fake(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    return _products(gmm_x, gmm_weight, recv_counts, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight)


def _not_here(operator: str) -> Callable[..., Any]:
    def kernel(*arguments: Any, **named: Any) -> Any:
        raise unavailable(operator, "a tensor-parallel product with communication")

    return kernel


def _all_reduce_fake(x1: Tensor, x2: Tensor, hcom: str, **others: Any) -> Tensor:
    return x1.new_empty(*x1.shape[:-1], x2.shape[1])


def _all_gather_fake(
    input: Tensor, x2: Tensor, hcom: str, world_size: int, *, gather_index: int = 0, gather_output: bool = True, **others: Any
) -> tuple[Tensor, Tensor]:
    gathered = input if gather_index == 0 else x2
    y = input.new_empty(input.shape[0] * (world_size if gather_index == 0 else 1), x2.shape[1])
    return y, input.new_empty((gathered.shape[0] * world_size, gathered.shape[1]) if gather_output else 0)


def _reduce_scatter_fake(input: Tensor, x2: Tensor, hcom: str, world_size: int, **others: Any) -> Tensor:
    return input.new_empty(input.shape[0] // world_size, x2.shape[1])


OPERATORS = {
    "npu_alltoallv_gmm": Operator(_alltoallv_gmm, _alltoallv_gmm_fake),
    "npu_gmm_alltoallv": Operator(_gmm_alltoallv, _gmm_alltoallv_fake),
    "npu_mm_all_reduce_base": Operator(_not_here("npu_mm_all_reduce_base"), _all_reduce_fake),
    "npu_all_gather_base_mm": Operator(_not_here("npu_all_gather_base_mm"), _all_gather_fake),
    "npu_mm_reduce_scatter_base": Operator(_not_here("npu_mm_reduce_scatter_base"), _reduce_scatter_fake),
}
