"""permute and unpermute: tokens into expert order and back."""

from torch import Tensor

from plait._errors import InvalidArgument
from plait.ops._common import as_ids, require_dims
from plait.ops._permute_ids import permute_ids, unpermute_ids
from plait.ops._permute_map import permute_map, unpermute_map


def permute(
    x: Tensor,
    expert_ids: Tensor | None = None,
    *,
    routing_map: Tensor | None = None,
    num_out_rows: int = 0,
    num_experts: int | None = None,
    tree: bool = False,
    sentinel: bool = False,
) -> tuple[Tensor, Tensor]:
    """Copies tokens into expert order, once per chosen expert.

    Args:
        x: (T,H).
        expert_ids: (T,k) int32 or int64. Or instead:
        routing_map: (T,E) bool: one entry per true element, token by token.
        num_out_rows: 0: all rows; n > 0: the first n; n < 0: all but the last -n. Rows that are dropped give no gradient.
        num_experts: E; ids outside [0, E) are refused. None: one more than the largest id.
        tree: sum dx as a tree over expert ids, as the layer does, instead of slot by slot; needs num_experts.
        sentinel: ids of E and above take no part, instead of being refused: their position is -1, and as many rows at the end are 0.
            Needs num_experts.

    Returns:
        rows: tokens in stable order of expert id, bits untouched; differentiable in x.
        position: int32, one item per entry: `rows[position[t*k + slot]] = x[t]`.

    Raises:
        plait.InvalidArgument: an id out of range, naming token, slot and value.

    Example:
        >>> rows, position = plait.ops.permute(torch.tensor([[10.0], [20.0]]), torch.tensor([[1, 0], [0, 1]]))
        >>> rows.flatten().tolist(), position.tolist()
        ([10.0, 20.0, 10.0, 20.0], [2, 0, 1, 3])
    """
    if (expert_ids is None) == (routing_map is None):
        raise InvalidArgument("permute: give either expert_ids or routing_map")
    if expert_ids is None:
        assert routing_map is not None
        if num_experts is not None or tree or sentinel:
            raise InvalidArgument("permute: num_experts, tree and sentinel belong to expert_ids, not to routing_map")
        rows, position = permute_map(x, routing_map, num_out_rows)
        return rows, position
    if (tree or sentinel) and num_experts is None:
        raise InvalidArgument("permute: tree=True and sentinel=True need num_experts, the number of all experts")
    rows, position = permute_ids(x, as_ids(expert_ids), num_out_rows, num_experts, tree, sentinel)
    return rows, position


def unpermute(
    rows: Tensor,
    position: Tensor,
    weights: Tensor | None = None,
    *,
    k: int | None = None,
    expert_ids: Tensor | None = None,
    num_experts: int | None = None,
    routing_map: Tensor | None = None,
) -> Tensor:
    """Adds up the rows of each token: `y[t] = sum over slots of rows[position[t*k + slot]] * weights[t, slot]`, in float32, rounded once.

    Args:
        rows: (number of rows, H).
        position: int32, from `permute`. Entries at or beyond the number of rows contribute nothing.
        weights: (T,k), or (T,E) with routing_map; None: all 1.
        k: experts per token; needed where neither weights nor expert_ids tell.
        expert_ids, num_experts: (T,k) and E: the sum is then the layer's tree over expert ids, in which a weight of 0 makes a row absent.
        routing_map: (T,E) bool, where `permute` had one.

    Returns:
        (T,H), of rows' type. Differentiable in rows and weights.

    Raises:
        plait.InvalidArgument: sizes that do not fit, naming both; k missing.

    Example:
        >>> rows, position = plait.ops.permute(torch.tensor([[10.0], [20.0]]), torch.tensor([[1, 0], [0, 1]]))
        >>> plait.ops.unpermute(rows, position, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).flatten().tolist()
        [30.0, 140.0]
    """
    require_dims("unpermute", "rows", rows, "(M,H)")
    if weights is not None:
        weights = weights.float()
    if routing_map is not None:
        if k is not None or expert_ids is not None or num_experts is not None:
            raise InvalidArgument("unpermute: k, expert_ids and num_experts exclude routing_map")
        return unpermute_map(rows, position, routing_map, weights)
    if (expert_ids is None) != (num_experts is None):
        raise InvalidArgument("unpermute: expert_ids and num_experts belong together")
    known = expert_ids if expert_ids is not None else weights
    if known is not None:
        require_dims("unpermute", "weights" if expert_ids is None else "expert_ids", known, "(T,k)")
        if k is not None and k != known.shape[1]:
            raise InvalidArgument(f"unpermute: k={k}, but weights or expert_ids have {known.shape[1]} columns")
        k = known.shape[1]
    if k is None or k < 1:
        raise InvalidArgument(f"unpermute: k={k}; it is at least 1, and needed where neither weights nor expert_ids tell")
    if position.shape[0] % k != 0:
        raise InvalidArgument(f"unpermute: position has {position.shape[0]} items; they are T*k with k={k}")
    return unpermute_ids(rows, position, weights, k, None if expert_ids is None else as_ids(expert_ids), num_experts or 0)
