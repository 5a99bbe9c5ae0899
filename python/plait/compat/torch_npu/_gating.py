"""npu_moe_gating_top_k and its relatives: scores, choice of experts, weights."""

from typing import Any

import torch
from torch import Tensor

from plait.compat.torch_npu._operator import Operator, invalid, require_absent

_NAME = "npu_moe_gating_top_k"
_SOFTMAX, _SIGMOID = 0, 1


def _check_gating(x: Tensor, k: int, k_group: int, group_count: int, renorm: int, norm_type: int, group_select_mode: int) -> None:
    require_absent(_NAME, renorm=renorm or None)
    if x.dim() != 2:
        raise invalid(_NAME, f"x has {x.dim()} dimensions; it is (T,E)")
    if norm_type not in (_SOFTMAX, _SIGMOID) or group_select_mode not in (0, 1):
        raise invalid(_NAME, f"norm_type={norm_type}, group_select_mode={group_select_mode}; both are 0 or 1")
    if group_count < 1 or x.shape[1] % group_count != 0 or not 1 <= k_group <= group_count:
        raise invalid(_NAME, f"group_count={group_count} of {x.shape[1]} experts, k_group={k_group}; groups are equal, 1 <= k_group <= group_count")
    if not 1 <= k <= x.shape[1] // group_count * k_group:
        raise invalid(_NAME, f"k={k}, but {k_group} of {group_count} groups leave {x.shape[1] // group_count * k_group} experts")


def _check_numbers(operator: str, x: Tensor) -> None:
    bad = torch.isnan(x).any(-1) | (x == float("inf")).any(-1) | (x == float("-inf")).all(-1)
    if bool(bad.any()):
        raise invalid(operator, f"x of token {int(bad.flatten().nonzero()[0])} has a NaN or +inf, or nothing but -inf")


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As torch.topk along the last dimension, equal values in the order of their indices."""
    ordered, indices = values.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :k], indices[..., :k]


def _limit_to_groups(choice: Tensor, k_group: int, group_count: int, group_select_mode: int) -> Tensor:
    """-inf outside the best groups."""
    grouped = choice.unflatten(-1, (group_count, -1))
    value = grouped.max(-1).values if group_select_mode == 0 else _largest(grouped, 2)[0].sum(-1)
    allowed = torch.zeros_like(value, dtype=torch.bool).scatter_(-1, _largest(value, k_group)[1], True)
    return grouped.masked_fill(~allowed[..., None], float("-inf")).flatten(-2)


def _gating(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_gating(x, k, k_group, group_count, renorm, norm_type, group_select_mode)
    _check_numbers(_NAME, x)
    scores = x.float().sigmoid() if norm_type == _SIGMOID else x.float().softmax(-1)
    if (input_ids is None) != (tid2eid is None):
        raise invalid(_NAME, "input_ids and tid2eid belong together")
    if input_ids is not None and tid2eid is not None:
        experts = tid2eid[input_ids.long()].long()
    else:
        choice = scores if bias is None else scores + bias.float()
        experts = _largest(_limit_to_groups(choice, k_group, group_count, group_select_mode), k)[1]
    weights = scores.gather(-1, experts)
    if norm_type == _SIGMOID:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (weights * routed_scaling_factor).to(x.dtype), experts.to(torch.int32), scores


def _gating_fake(x: Tensor, k: int, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    shape = (x.shape[0], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32), x.new_empty(x.shape, dtype=torch.float32)


def _gating_backward(
    x_norm: Tensor,
    grad_y: Tensor,
    expertIdx: Tensor,  # noqa: N803 (the schema has this name)
    *,
    renorm: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Tensor:
    require_absent("npu_moe_gating_top_k_backward", renorm=renorm or None)
    experts = expertIdx.long()
    gradient = grad_y.float() * routed_scaling_factor
    if norm_type == _SIGMOID:
        chosen = x_norm.gather(-1, experts)
        total = chosen.sum(-1, keepdim=True) + eps
        gradient = gradient / total - (gradient * chosen).sum(-1, keepdim=True) / total.square()
    dscores = torch.zeros_like(x_norm).scatter_add_(-1, experts, gradient)
    if norm_type == _SIGMOID:
        return (dscores * x_norm * (1 - x_norm)).to(grad_y.dtype)
    return (x_norm * (dscores - (dscores * x_norm).sum(-1, keepdim=True))).to(grad_y.dtype)


def _gating_backward_fake(x_norm: Tensor, grad_y: Tensor, expertIdx: Tensor, **named: Any) -> Tensor:  # noqa: N803
    return grad_y.new_empty(x_norm.shape)


def _save_gating(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.settings = {"norm_type": inputs[9], "routed_scaling_factor": inputs[11], "eps": inputs[12]}
    ctx.save_for_backward(output[2], output[1])
    ctx.mark_non_differentiable(output[1], output[2])


def _differentiate_gating(ctx: Any, grad_y: Tensor, *_others: Any) -> tuple[Any, ...]:
    scores, experts = ctx.saved_tensors
    return torch.ops.npu.npu_moe_gating_top_k_backward(scores, grad_y, experts, **ctx.settings), *[None] * 12


def _check_softmax(operator: str, x: Tensor, finished: Tensor | None, k: int) -> None:
    if x.dim() not in (2, 3) or not 1 <= k <= x.shape[-1]:
        raise invalid(operator, f"x is of {tuple(x.shape)}, k={k}; x has two or three dimensions, the last of at least k experts")
    if finished is not None and finished.shape != x.shape[:-1]:
        raise invalid(operator, f"finished is of {tuple(finished.shape)}; it is of {tuple(x.shape[:-1])}")


def _mark_finished(experts: Tensor, finished: Tensor | None, num_experts: int) -> Tensor:
    """Rows that are finished name no expert: E."""
    experts = experts.to(torch.int32)
    return experts if finished is None else experts.masked_fill(finished.bool()[..., None], num_experts)


def _softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    weights, experts, _ = _softmax_v2(x, k=k, finished=finished)
    num_rows = x.shape[:-1].numel()
    # Entry (row, slot) has the number slot * rows + row: slot by slot, as npu_moe_init_routing and _finalize_routing count.
    row_idx = torch.arange(num_rows * k, dtype=torch.int32).view(k, num_rows).t().reshape(weights.shape).contiguous()
    return weights, experts, row_idx


def _softmax_fake(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    _check_softmax("npu_moe_gating_top_k_softmax", x, finished, k)
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.int32)


def _softmax_v2(
    x: Tensor, *, k: int = 1, finished: Tensor | None = None, renorm: int | None = 0, output_softmax: bool | None = False
) -> tuple[Tensor, Tensor, Tensor]:
    _check_softmax("npu_moe_gating_top_k_softmax", x, finished, k)
    _check_numbers("npu_moe_gating_top_k_softmax", x)
    scores = x.float().softmax(-1)
    weights, experts = _largest(x.float() if renorm else scores, k)
    if renorm:
        weights = weights.softmax(-1)
    kept = scores if output_softmax and not renorm else scores.new_empty(0)
    return weights.to(x.dtype), _mark_finished(experts, finished, x.shape[-1]), kept


def _softmax_v2_fake(
    x: Tensor, *, k: int = 1, finished: Tensor | None = None, renorm: int | None = 0, output_softmax: bool | None = False
) -> tuple[Tensor, Tensor, Tensor]:
    _check_softmax("npu_moe_gating_top_k_softmax_v2", x, finished, k)
    shape = (*x.shape[:-1], k)
    kept = x.shape if output_softmax and not renorm else (0,)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32), x.new_empty(kept, dtype=torch.float32)


OPERATORS = {
    "npu_moe_gating_top_k": Operator(_gating, _gating_fake, _differentiate_gating, _save_gating),
    "npu_moe_gating_top_k_backward": Operator(_gating_backward, _gating_backward_fake),
    "npu_moe_gating_top_k_softmax": Operator(_softmax, _softmax_fake),
    "npu_moe_gating_top_k_softmax_v2": Operator(_softmax_v2, _softmax_v2_fake),
}
