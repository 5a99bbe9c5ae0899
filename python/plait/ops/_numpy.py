"""The operators that need no ranks, on NumPy arrays: what `plait.ops` has where PyTorch is missing. Without gradients.

Arguments, results, refusals and bits are those of the functions of the same name for PyTorch; arrays are float32 or float16.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plait import _core
from plait._errors import InvalidArgument
from plait.ops._shapes import num_kept_rows

Array = npt.NDArray[Any]


class Routing(NamedTuple):
    """As the `Routing` for PyTorch."""

    expert_ids: Array
    weights: Array
    scores: Array
    load_balancing_loss: np.float32
    z_loss: np.float32


def _as_ids(expert_ids: Array) -> Array:
    """What int32 cannot hold stays outside [0, E), so that it is refused, not wrapped."""
    if expert_ids.dtype != np.int64:
        return expert_ids
    limits = np.iinfo(np.int32)
    return np.clip(expert_ids, limits.min, limits.max).astype(np.int32)


def grouped_matmul(
    x: Array,
    weight: Array,
    group_list: Array | Sequence[int] | Sequence[Sequence[int]],
    *,
    group_list_type: int = 1,
    group_type: int = 0,
    bias: Array | None = None,
    accumulate_into: Array | None = None,
    out: Array | None = None,
    fused: bool = True,
) -> Array:
    """One matrix per group of rows (group_type 0), or the gradient of the matrices (group_type 2).

    Example:
        >>> grouped_matmul(np.ones((4, 1), np.float32), np.float32([[[10]], [[20]]]), [2, 1]).ravel().tolist()
        [10.0, 10.0, 20.0, 0.0]
    """
    rows = np.asarray(group_list, dtype=np.int64)
    if group_type == 0 and accumulate_into is None:
        y = np.empty((*x.shape[:1], *weight.shape[-1:]), x.dtype) if out is None else out
        _core.grouped_matmul(x, weight, rows, group_list_type, bias, y, fused)
        return y
    if group_type != 2 or bias is not None:
        raise InvalidArgument(f"grouped_matmul: group_type={group_type}; it is 0, without accumulate_into, or 2, without bias")
    target = out if accumulate_into is None else accumulate_into
    dw = np.empty((len(rows), *x.shape[:1], *weight.shape[-1:]), x.dtype) if target is None else target
    _core.grouped_matmul_k(x.T, weight, rows, group_list_type, dw, accumulate_into is not None, fused)
    return dw


def permute(
    x: Array,
    expert_ids: Array | None = None,
    *,
    routing_map: Array | None = None,
    num_out_rows: int = 0,
    num_experts: int | None = None,
    sentinel: bool = False,
) -> tuple[Array, Array]:
    """Tokens in expert order, and where each entry went.

    Example:
        >>> rows, position = permute(np.float32([[10], [20]]), np.array([[1, 0], [0, 1]]))
        >>> rows.ravel().tolist(), position.tolist()
        ([10.0, 20.0, 10.0, 20.0], [2, 0, 1, 3])
    """
    if expert_ids is None:
        if routing_map is None:
            raise InvalidArgument("permute: give either expert_ids or routing_map")
        position = np.empty(int(routing_map.sum()), np.int32)
        _core.sort_by_map(routing_map, position)
    else:
        expert_ids = _as_ids(expert_ids)
        position = np.empty(expert_ids.size, np.int32)
        _core.sort_by_expert(expert_ids, num_experts or max(int(expert_ids.max(initial=0)) + 1, 1), sentinel, position)
    rows = np.zeros((num_kept_rows(len(position), num_out_rows), *x.shape[1:]), x.dtype)
    if expert_ids is None:
        _core.permute_map(x, routing_map, position, rows)
    else:
        _core.permute(x, position, expert_ids.shape[-1], rows)
    return rows, position


def unpermute(
    rows: Array,
    position: Array,
    weights: Array | None = None,
    *,
    k: int | None = None,
    expert_ids: Array | None = None,
    num_experts: int | None = None,
    routing_map: Array | None = None,
) -> Array:
    """The weighted sum of each token's rows.

    Example:
        >>> rows, position = permute(np.float32([[10], [20]]), np.array([[1, 0], [0, 1]]))
        >>> unpermute(rows, position, np.float32([[1, 2], [3, 4]])).ravel().tolist()
        [30.0, 140.0]
    """
    weights = None if weights is None else weights.astype(np.float32, copy=False)
    if routing_map is not None:
        y = np.empty((len(routing_map), *rows.shape[1:]), rows.dtype)
        _core.unpermute_map(rows, routing_map, position, weights, y)
        return y
    known = expert_ids if expert_ids is not None else weights
    k = known.shape[-1] if k is None and known is not None else k
    if not k:
        raise InvalidArgument(f"unpermute: k={k}; it is at least 1, and needed where neither weights nor expert_ids tell")
    y = np.empty((len(position) // k, *rows.shape[1:]), rows.dtype)
    ids = None if expert_ids is None else _as_ids(expert_ids)
    _core.unpermute(rows, position, k, weights, ids, num_experts or 0, y)
    return y


def route(
    logits: Array,
    top_k: int,
    *,
    score: str = "softmax",
    bias: Array | None = None,
    norm_topk: bool = False,
    scaling: float = 1.0,
    n_group: int = 1,
    topk_group: int = 1,
) -> Routing:
    """Chooses k experts for each token, and their weights.

    Example:
        >>> routing = route(np.zeros((1, 8), np.float32), 2, norm_topk=True)
        >>> routing.expert_ids.tolist(), routing.weights.tolist()
        ([[0, 1]], [[0.5, 0.5]])
    """
    config = _core.RouterConfig(logits.shape[-1], top_k, score, norm_topk, scaling, n_group, topk_group)
    chosen = (*logits.shape[:1], max(top_k, 0))
    ids, weights, scores = np.empty(chosen, np.int32), np.empty(chosen, np.float32), np.empty(logits.shape, np.float32)
    load_balancing, z = _core.route(config, logits, bias, ids, weights, scores)
    return Routing(ids, weights, scores, np.float32(load_balancing), np.float32(z))


def _activate(kind: str, h: Array, columns_per_result: int, interleaved: bool = False, limit: float = 0.0, alpha: float = 0.0) -> Array:
    act = np.empty((*h.shape[:-1], h.shape[-1] // columns_per_result), h.dtype)
    _core.activation_forward(_core.Activation(kind, interleaved, limit, alpha), h, act)
    return act


def swiglu(h: Array, *, interleaved: bool = False) -> Array:
    """silu(gate) * up.

    Example:
        >>> swiglu(np.float32([[0, 1, 5, 2]])).shape
        (1, 2)
    """
    return _activate("swiglu", h, 2, interleaved)


def swiglu_clamped(h: Array, *, interleaved: bool = False, limit: float = 7.0, alpha: float = 1.702) -> Array:
    """(up + 1) * gate * sigmoid(alpha * gate), clamped as in gpt-oss."""
    return _activate("swiglu_clamped", h, 2, interleaved, limit, alpha)


def geglu_tanh(h: Array, *, interleaved: bool = False) -> Array:
    """gelu(gate) * up with the tanh form of gelu."""
    return _activate("geglu_tanh", h, 2, interleaved)


def relu2(h: Array) -> Array:
    """relu(h) squared."""
    return _activate("relu2", h, 1)
