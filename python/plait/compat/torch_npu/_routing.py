"""npu_moe_init_routing, npu_moe_finalize_routing, npu_moe_re_routing: rows into expert order and back, as inference stacks do it.

Entry (row, slot) is numbered in one of two ways: row by row, as row * k + slot, or slot by slot, as slot * rows + row.
"""

from typing import Any

import torch
from torch import Tensor

from plait.compat.torch_npu._operator import Operator, invalid, require_absent

_INIT = "npu_moe_init_routing_v2"
_FINALIZE = "npu_moe_finalize_routing"
_RE_ROUTING = "npu_moe_re_routing"


def _init(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, k = expert_idx.shape
    if row_idx.shape != expert_idx.shape or x.shape[0] != num_rows:
        shapes = f"x {tuple(x.shape)}, row_idx {tuple(row_idx.shape)}, expert_idx {tuple(expert_idx.shape)}"
        raise invalid("npu_moe_init_routing", f"{shapes}; they are (T,H), (T,k), (T,k)")
    experts, order = expert_idx.reshape(-1).sort(stable=True)
    entries = row_idx.reshape(-1)[order]  # slot by slot
    positions = torch.empty_like(entries).index_copy_(0, entries.long(), torch.arange(entries.numel(), dtype=entries.dtype))
    kept = entries[: min(num_rows, active_num) * k]
    return x.index_select(0, kept % num_rows if num_rows > 0 else kept), positions, experts


def _init_fake(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    num_kept = min(x.shape[0], active_num) * expert_idx.shape[1]
    return x.new_empty(num_kept, x.shape[1]), row_idx.new_empty(row_idx.numel()), expert_idx.new_empty(expert_idx.numel())


def _check_init_v2(x: Tensor, expert_idx: Tensor, first: int, end: int, drop_pad_mode: int, capacity: int, counts: bool, kind: int) -> None:
    if x.dim() != 2 or expert_idx.dim() != 2 or x.shape[0] != expert_idx.shape[0]:
        raise invalid(_INIT, f"x {tuple(x.shape)}, expert_idx {tuple(expert_idx.shape)}; they are (T,H) and (T,k)")
    if drop_pad_mode not in (0, 1) or kind not in (0, 1, 2):
        raise invalid(_INIT, f"drop_pad_mode={drop_pad_mode}, expert_tokens_num_type={kind}; they are 0 or 1, and 0 to 2")
    if (drop_pad_mode == 1 or counts) and not 0 <= first < end:
        raise invalid(_INIT, f"experts {first} to {end}: expert_num (or active_expert_range) is needed for counts and for drop_pad_mode=1")
    if drop_pad_mode == 1 and capacity < 1:
        raise invalid(_INIT, f"expert_capacity={capacity}; with drop_pad_mode=1 it is at least 1")


def _init_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: list[int] | None = None,
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_absent(_INIT, offset=offset, quant_mode=None if quant_mode == -1 else quant_mode, x_dtype=x_dtype)
    first, end = active_expert_range or (0, expert_num)
    _check_init_v2(x, expert_idx, first, end, drop_pad_mode, expert_capacity, expert_tokens_num_flag, expert_tokens_num_type)
    ids = expert_idx.reshape(-1).long()
    active = (ids >= first) & (ids < end) if end >= 0 else torch.ones_like(ids, dtype=torch.bool)
    order = torch.where(active, ids, torch.iinfo(torch.int64).max).sort(stable=True).indices[: int(active.sum())]
    if drop_pad_mode == 1:
        place, num_places = _places_by_capacity(ids[order] - first, end - first, expert_capacity), (end - first) * expert_capacity
    else:
        place, num_places = torch.arange(order.numel()), ids.numel() if active_num <= 0 else min(active_num, ids.numel())
    row_idx = torch.full((ids.numel(),), -1, dtype=torch.int32)
    if row_idx_type == 0:
        row_idx[order] = place.to(torch.int32)
    else:
        row_idx[: order.numel()] = order.to(torch.int32)
    kept = (place >= 0) & (place < num_places)
    taken, target = order[kept], place[kept]
    token = taken // expert_idx.shape[1]
    rows = x.new_zeros(num_places, x.shape[1]).index_copy_(0, target, x.index_select(0, token))
    scales = torch.zeros(num_places)
    if scale is not None:
        scales.index_copy_(0, target, scale.float().index_select(0, token))
    counts = torch.zeros((), dtype=torch.int64)
    if expert_tokens_num_flag:
        counts = _count(ids[order] - first, first, end - first, expert_num, expert_tokens_num_type)
    return rows.view(end - first, expert_capacity, -1) if drop_pad_mode == 1 else rows, row_idx, counts, scales


def _places_by_capacity(experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    """Of entries in expert order: their row among num_experts * capacity, or -1 beyond the expert's capacity."""
    starts = torch.bincount(experts, minlength=num_experts).cumsum(0).roll(1)
    starts[0] = 0
    within = torch.arange(experts.numel()) - starts[experts]
    return torch.where(within < capacity, experts * capacity + within, -1)


def _count(experts: Tensor, first: int, num_experts: int, expert_num: int, kind: int) -> Tensor:
    """Rows per expert: as ends, as counts, or as pairs (expert, count) of those that have any."""
    counts = torch.bincount(experts, minlength=num_experts)
    if kind < 2:
        return counts.cumsum(0) if kind == 0 else counts
    used = counts.nonzero().flatten()
    pairs = torch.zeros(max(expert_num, used.numel()), 2, dtype=torch.int64)
    pairs[: used.numel()] = torch.stack([used + first, counts[used]], dim=1)
    return pairs


def _init_v2_fake(
    x: Tensor,
    expert_idx: Tensor,
    *,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    active_expert_range: list[int] | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, end = active_expert_range or (0, expert_num)
    num_entries = expert_idx.numel()
    num_rows = num_entries if active_num <= 0 else min(active_num, num_entries)
    rows = x.new_empty(end - first, expert_capacity, x.shape[1]) if drop_pad_mode == 1 else x.new_empty(num_rows, x.shape[1])
    counts: tuple[int, ...] = ()
    if expert_tokens_num_flag:
        counts = (expert_num, 2) if expert_tokens_num_type == 2 else (end - first,)
    return (
        rows,
        x.new_empty(num_entries, dtype=torch.int32),
        x.new_empty(counts, dtype=torch.int64),
        x.new_empty(rows.shape[:-1].numel(), dtype=torch.float32),
    )


def _finalize(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    """(T,H): skip1 + skip2 + the sum over slots of scales * (row + bias), in float32, rounded once. Entries without a row add nothing."""
    if skip2 is not None and skip1 is None:
        raise invalid(_FINALIZE, "skip2 without skip1")
    if bias is not None and export_for_source_row is None:
        raise invalid(_FINALIZE, "bias without export_for_source_row, which tells whose it is")
    if drop_pad_mode not in (0, 1, 2, 3):
        raise invalid(_FINALIZE, f"drop_pad_mode={drop_pad_mode}; it is 0 to 3")
    slots = scales.shape[1] if scales is not None else k or 1
    rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.shape[-1])
    index = expanded_src_to_dst_row.long()
    index = index.view(slots, -1).t() if drop_pad_mode < 2 else index.view(-1, slots)  # slot by slot, or row by row
    present = (index >= 0) & (index < rows.shape[0])
    total = torch.zeros(index.shape[0], rows.shape[1])
    for skip in (skip1, skip2):
        if skip is not None:
            total += skip.float()
    for slot in range(slots):
        own = present[:, slot]
        term = rows[index[own, slot]].float()
        if bias is not None and export_for_source_row is not None:
            term = term + bias[export_for_source_row[own, slot].long()].float()
        total[own] += term if scales is None else term * scales[own, slot, None].float()
    return total.to(rows.dtype)


def _finalize_fake(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    num_tokens = scales.shape[0] if scales is not None else expanded_src_to_dst_row.shape[0] // (k or 1)
    return expanded_permuted_rows.new_empty(num_tokens, expanded_permuted_rows.shape[-1])


def _re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    *,
    per_token_scales: Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows in blocks (rank, expert) into blocks (expert, rank)."""
    require_absent(_RE_ROUTING, tokens_dtype=tokens_dtype)
    num_ranks, num_experts = expert_token_num_per_rank.shape
    counts = expert_token_num_per_rank.long()
    if int(counts.sum()) != tokens.shape[0] or bool((counts < 0).any()):
        raise invalid(_RE_ROUTING, f"expert_token_num_per_rank adds up to {int(counts.sum())} rows, but tokens has {tokens.shape[0]}")
    expert = torch.arange(num_experts).repeat(num_ranks).repeat_interleave(counts.flatten())
    source = expert.sort(stable=True).indices
    index = source if idx_type == 0 else torch.empty_like(source).index_copy_(0, source, torch.arange(source.numel()))
    per_expert = expert_token_num_per_rank.sum(0, dtype=expert_token_num_per_rank.dtype)
    if expert_token_num_type == 0:
        per_expert = per_expert.cumsum(0, dtype=per_expert.dtype)
    scales = torch.zeros(tokens.shape[0]) if per_token_scales is None else per_token_scales.index_select(0, source)
    return tokens.index_select(0, source), scales, index.to(torch.int32), per_expert


def _re_routing_fake(
    tokens: Tensor, expert_token_num_per_rank: Tensor, *, per_token_scales: Tensor | None = None, **others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scales = tokens.new_empty(tokens.shape[0], dtype=torch.float32)
    return (
        tokens.new_empty(tokens.shape),
        scales if per_token_scales is None else per_token_scales.new_empty(per_token_scales.shape),
        tokens.new_empty(tokens.shape[0], dtype=torch.int32),
        expert_token_num_per_rank.new_empty(expert_token_num_per_rank.shape[1]),
    )


OPERATORS = {
    "npu_moe_init_routing": Operator(_init, _init_fake),
    "npu_moe_init_routing_v2": Operator(_init_v2, _init_v2_fake),
    "npu_moe_finalize_routing": Operator(_finalize, _finalize_fake),
    "npu_moe_re_routing": Operator(_re_routing, _re_routing_fake),
}
