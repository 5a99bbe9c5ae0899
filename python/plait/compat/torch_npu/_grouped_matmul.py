"""npu_grouped_matmul in both overloads, and npu_grouped_matmul_add."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plait import ops
from plait.compat.torch_npu._operator import Operator, invalid, require_absent

_NAME = "npu_grouped_matmul"
# Numbers that torch_npu gives to the types that a product without quantisation may have.
_FLOAT_TYPES = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}


class _Call(NamedTuple):
    """The arguments that both overloads and both kinds of kernels look at."""

    x: list[Tensor]
    weight: list[Tensor]
    bias: list[Tensor]
    rows: Tensor | Sequence[int] | None  #: the group list
    rows_type: int
    group_type: int
    one_result: bool

    @property
    def packed(self) -> bool:
        """All weights in one (G,K,N)."""
        return len(self.weight) == 1 and self.weight[0].dim() == 3


def _read(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    bias: list[Tensor] | None = None,
    scale: list[Tensor] | None = None,
    offset: list[Tensor] | None = None,
    antiquant_scale: list[Tensor] | None = None,
    antiquant_offset: list[Tensor] | None = None,
    per_token_scale: list[Tensor] | None = None,
    group_list: Tensor | Sequence[int] | None = None,
    activation_input: list[Tensor] | None = None,
    activation_quant_scale: list[Tensor] | None = None,
    activation_quant_offset: list[Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: list[int] | None = None,  # advice on tiles: of no concern here
    output_dtype: int | torch.dtype | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> _Call:
    require_absent(
        _NAME,
        scale=scale,
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        per_token_scale=per_token_scale,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
        activation_quant_offset=activation_quant_offset,
        act_type=act_type or None,
        x_dtype=x_dtype,
        weight_dtype=weight_dtype,
        scale_dtype=scale_dtype,
        per_token_scale_dtype=per_token_scale_dtype,
    )
    if not x or not weight:
        raise invalid(_NAME, f"{len(x)} of x, {len(weight)} of weight; there is at least one of each")
    if output_dtype not in (None, x[0].dtype, _FLOAT_TYPES.get(x[0].dtype)):
        require_absent(_NAME, output_dtype=output_dtype)
    kind = _group_type(group_type, group_list)
    if split_item not in (0, 1, 2, 3) or kind not in (-1, 0, 2):
        raise invalid(_NAME, f"split_item={split_item}, group_type={group_type}; split_item is 0 to 3, group_type -1, 0 or 2")
    if kind != -1 and group_list is None:
        raise invalid(_NAME, f"group_list is missing; only group_type=-1 has none, here it is {group_type}")
    return _Call(x, weight, bias or [], group_list, group_list_type or 0, kind, split_item >= 2)


def _group_type(group_type: int | None, group_list: Any) -> int:
    if group_type is not None:
        return group_type
    if isinstance(group_list, Sequence):
        return 0
    raise invalid(_NAME, "group_type is missing; it is -1, 0 or 2, and may be left out with a group_list of int only")


def _grouped_matmul(x: list[Tensor], weight: list[Tensor], **named: Any) -> list[Tensor]:
    call = _read(x, weight, **named)
    if call.group_type == 2:
        result = _k_grouped(call)
    elif call.group_type == -1 or len(x) > 1:
        result = _pairs(call)
    else:
        result = _m_grouped(call)
    # What is returned is memory of its own, also where it is a part of one product.
    return [part.clone() if part._is_view() else part for part in result]


def _pairs(call: _Call) -> list[Tensor]:
    weight = list(call.weight[0].unbind(0)) if call.packed else call.weight
    bias = list(call.bias[0].unbind(0)) if len(call.bias) == 1 and call.bias[0].dim() == 2 else call.bias
    products = ops.grouped_matmul(call.x, weight, group_type=-1, split_item=0, bias=bias or None)
    return [torch.cat(list(products))] if call.one_result else list(products)


def _m_grouped(call: _Call) -> list[Tensor]:
    assert call.rows is not None
    if call.packed:
        bias = _packed_bias(call.bias)
        y = ops.grouped_matmul(call.x[0], call.weight[0], call.rows, group_list_type=call.rows_type, bias=bias)
        return [y] if call.one_result else list(y[: _ends(call)[-1]].tensor_split(_ends(call)[:-1]))
    ends = _ends(call)
    if len(ends) != len(call.weight):
        raise invalid(_NAME, f"group_list has {len(ends)} groups, but there are {len(call.weight)} weights")
    if ends[-1] > call.x[0].shape[0]:
        raise invalid(_NAME, f"group_list adds up to {ends[-1]} rows, but x has {call.x[0].shape[0]}")
    parts = _pairs(call._replace(x=list(call.x[0][: ends[-1]].tensor_split(ends[:-1])), one_result=False))
    if not call.one_result:
        return parts
    return [torch.cat([*parts, parts[0].new_zeros(call.x[0].shape[0] - ends[-1], parts[0].shape[1])])]


def _packed_bias(bias: list[Tensor]) -> Tensor | None:
    if not bias:
        return None
    return bias[0] if len(bias) == 1 and bias[0].dim() == 2 else torch.stack(bias)


def _ends(call: _Call) -> list[int]:
    """Where the groups end, checked."""
    assert call.rows is not None
    rows: list[Any] = call.rows.tolist() if isinstance(call.rows, Tensor) else list(call.rows)
    if call.rows_type == 2:
        rows = [count for _, count in rows]
    ends = rows if call.rows_type == 0 else list(accumulate(rows))
    for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end < begin:
            raise invalid(_NAME, f"group_list gives group {group} {end - begin} rows; a group has 0 or more")
    return ends


def _k_grouped(call: _Call) -> list[Tensor]:
    assert call.rows is not None
    if len(call.x) != 1 or len(call.weight) != 1 or call.weight[0].dim() != 2 or call.bias:
        raise invalid(_NAME, "group_type=2 takes one x (K,M), one weight (M,N) and no bias")
    dw = ops.grouped_matmul(call.x[0], call.weight[0], call.rows, group_list_type=call.rows_type, group_type=2)
    return [dw] if call.one_result else list(dw.unbind(0))


def _grouped_matmul_fake(x: list[Tensor], weight: list[Tensor], **named: Any) -> list[Tensor]:
    call = _read(x, weight, **named)
    num_columns = call.weight[0].shape[-1]
    if call.group_type == 2:
        assert call.rows is not None
        num_groups = len(call.rows)
        if call.one_result:
            return [x[0].new_empty(num_groups, x[0].shape[0], num_columns)]
        return [x[0].new_empty(x[0].shape[0], num_columns) for _ in range(num_groups)]
    if call.one_result:
        return [x[0].new_empty(sum(part.shape[0] for part in x), num_columns)]
    if call.group_type == -1 or len(x) > 1:
        weights = [call.weight[0]] * len(x) if call.packed else call.weight
        return [part.new_empty(part.shape[0], matrix.shape[-1]) for part, matrix in zip(x, weights, strict=True)]
    ends = _ends(call)
    return [x[0].new_empty(end - begin, num_columns) for begin, end in zip([0, *ends], ends, strict=False)]


def _check_add(input: Tensor, x: Tensor, weight: Tensor, group_list: Tensor, transpose_x: bool, transpose_weight: bool, group_type: int) -> None:
    name = "npu_grouped_matmul_add"
    if not transpose_x or transpose_weight or group_type != 2:
        given = f"transpose_x={transpose_x}, transpose_weight={transpose_weight}, group_type={group_type}"
        raise invalid(name, f"{given}; it is the sum over groups of rows only: True, False, 2")
    wanted = group_list.shape[0] * x.shape[1] * weight.shape[1]
    if input.dtype != torch.float32 or input.numel() != wanted:
        rule = f"float32 of {group_list.shape[0]} groups of {x.shape[1]} by {weight.shape[1]}"
        raise invalid(name, f"input is {input.dtype} of {tuple(input.shape)}; here it is {rule}")


def _add_(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> Tensor:
    _check_add(input, x, weight, group_list, transpose_x, transpose_weight, group_type)
    total = input.detach().view(group_list.shape[0], x.shape[1], weight.shape[1])
    with torch.no_grad():
        ops.grouped_matmul(
            x.detach().t(), weight.detach(), group_list, group_list_type=group_list_type or 0, group_type=2, accumulate_into=total
        )
    return input


def _add(input: Tensor, *arguments: Tensor, **named: Any) -> Tensor:
    return _add_(input.clone(memory_format=torch.contiguous_format), *arguments, **named)


def _add_fake(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> Tensor:
    _check_add(input, x, weight, group_list, transpose_x, transpose_weight, group_type)
    return input.new_empty(input.shape)


def _add_fake_(input: Tensor, *arguments: Tensor, **named: Any) -> Tensor:
    _add_fake(input, *arguments, **named)
    return input


OPERATORS = {
    "npu_grouped_matmul": Operator(_grouped_matmul, _grouped_matmul_fake),
    "npu_grouped_matmul.List": Operator(_grouped_matmul, _grouped_matmul_fake),
    "npu_grouped_matmul_add": Operator(_add, _add_fake),
    "npu_grouped_matmul_add_": Operator(_add_, _add_fake_),
}
