"""The operators of the npu namespace: values, gradients, results that nobody asked for, shapes without values, refusals."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import FLOATS, same_bits
from torch import Tensor
from torch.nn.functional import silu

import plait
from plait import ops
from plait.compat import torch_npu as compat
from plait.compat.torch_npu._library import OPERATORS

npu = torch.ops.npu
T, H, E, K = 5, 4, 3, 2
IDS = torch.tensor([[1, 0], [2, 1], [0, 2], [2, 0], [1, 2]])
MAP = torch.zeros(T, E, dtype=torch.bool).scatter_(1, IDS, True)


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def counts(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def entries() -> Tensor:
    """sorted_indices of IDS."""
    return ops.permute(torch.zeros(T, 1), IDS)[1]


# Arguments by name; a lambda, so that every test has tensors of its own. "; " parts several samples of an operator.
SAMPLES: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "npu_grouped_matmul": lambda: (([floats(T, H)], [floats(E, H, 2)]), {"group_list": counts(2, 2, 4), "group_type": 0, "split_item": 3}),
    "npu_grouped_matmul; separate weights, list of results": lambda: (
        ([torch.randn(T, H)], [torch.randn(H, 2) for _ in range(E)]),
        {"group_list": [2, 2, 5], "split_item": 0, "bias": [torch.randn(2) for _ in range(E)]},
    ),
    "npu_grouped_matmul; pairs": lambda: (([torch.randn(2, 3), torch.randn(4, 1)], [torch.randn(3, 2), torch.randn(1, 5)]), {"group_type": -1}),
    "npu_grouped_matmul; gradient of the weight": lambda: (
        ([torch.randn(T, H).t()], [torch.randn(T, 2)]),
        {"group_list": counts(1, 4), "group_list_type": 1, "group_type": 2, "split_item": 2},
    ),
    "npu_grouped_matmul_add": lambda: ((torch.randn(2, H, 3), torch.randn(T, H), torch.randn(T, 3), counts(2, 5)), {}),
    "npu_moe_token_permute": lambda: ((floats(T, H), IDS), {}),
    "npu_moe_token_permute; fewer rows": lambda: ((floats(T, H), IDS[:, 0], -2), {}),
    "npu_moe_token_permute_grad": lambda: ((torch.randn(T, H), torch.randn(T * K, H), IDS, entries()), {}),
    "npu_moe_token_permute_grad_v2": lambda: ((torch.randn(7, H), entries(), T, torch.float32, K), {}),
    "npu_moe_token_unpermute": lambda: ((floats(T * K, H), entries(), torch.rand(T, K).requires_grad_()), {}),
    "npu_moe_token_unpermute; one entry each": lambda: ((floats(T, H), torch.randperm(T).int()), {}),
    "_npu_moe_token_unpermute": lambda: ((floats(T * K, H), entries(), torch.rand(T, K).requires_grad_()), {}),
    "npu_moe_token_unpermute_grad": lambda: ((torch.randn(T * K, H), torch.randn(T, H), entries(), torch.rand(T, K)), {}),
    "npu_moe_token_unpermute_grad_v2": lambda: ((torch.randn(T, H), torch.randperm(T).int(), 9, torch.float32), {}),
    "npu_moe_token_permute_with_routing_map": lambda: (
        (floats(T, H), MAP),
        {"probs": torch.rand(T, E).requires_grad_(), "num_out_tokens": T * K},
    ),
    "npu_moe_token_permute_with_routing_map; padded, without probs": lambda: (
        (floats(T, H), MAP.to(torch.int8)),
        {"num_out_tokens": 13, "drop_and_pad": True},
    ),
    "npu_moe_token_permute_with_routing_map_grad": lambda: (
        (torch.randn(T * K, H), torch.rand(T * K), ops.permute(torch.zeros(T, 1), routing_map=MAP)[1], MAP, E, T, False),
        {},
    ),
    "npu_moe_token_unpermute_with_routing_map": lambda: (
        (floats(T * K, H), ops.permute(torch.zeros(T, 1), routing_map=MAP)[1], [T, H]),
        {"probs": torch.rand(T, E).requires_grad_(), "routing_map": MAP},
    ),
    "_npu_moe_token_unpermute_with_routing_map": lambda: ((floats(T * K, H), torch.randperm(T * K).int(), [T, H]), {}),
    "npu_moe_token_unpermute_with_routing_map_grad": lambda: (
        (torch.randn(T, H), torch.randperm(T * K).int(), torch.zeros(T * K).int(), None, None, None, False, [T, H]),
        {},
    ),
    "npu_swiglu": lambda: ((floats(2, 6, 3), 1), {}),
    "npu_swiglu_backward": lambda: ((torch.randn(2, 3), torch.randn(2, 6)), {}),
    "npu_moe_gating_top_k": lambda: (
        (floats(T, 6), 2),
        {"bias": torch.randn(6), "k_group": 1, "group_count": 2, "group_select_mode": 1, "norm_type": 1, "routed_scaling_factor": 2.5},
    ),
    "npu_moe_gating_top_k; softmax": lambda: ((floats(T, 6), 3), {"out_flag": True}),
    "npu_moe_gating_top_k_backward": lambda: ((torch.rand(T, 6), torch.randn(T, 2), IDS.int()), {"norm_type": 1}),
    "npu_moe_gating_top_k_softmax": lambda: ((torch.randn(2, 3, 6), torch.tensor([[False, True, False]] * 2), 2), {}),
    "npu_moe_gating_top_k_softmax_v2": lambda: ((torch.randn(T, 6),), {"k": 2, "output_softmax": True}),
    "npu_moe_init_routing": lambda: ((torch.randn(T, H), torch.arange(T * K).int().view(K, T).t(), IDS.int(), 3), {}),
    "npu_moe_init_routing_v2": lambda: (
        (torch.randn(T, H), IDS.int()),
        {"expert_num": E, "expert_tokens_num_flag": True, "expert_tokens_num_type": 2, "active_expert_range": [1, 3]},
    ),
    "npu_moe_finalize_routing": lambda: (
        (torch.randn(T * K, H), torch.randn(T, H), None, torch.randn(E, H), torch.rand(T, K), torch.randperm(T * K).int(), IDS.int()),
        {},
    ),
    "npu_moe_re_routing": lambda: ((torch.randn(6, H), torch.tensor([[1, 2], [2, 1]])), {}),
}


def operator_of(sample: str, arguments: dict[str, Any]) -> torch._ops.OpOverload:
    packet = getattr(npu, sample.split(";")[0])
    return packet.List if isinstance(arguments.get("group_list"), list) else packet.default  # type: ignore[no-any-return]


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample: str) -> None:
    """Schema, autograd, shapes without values, and a compiled against an eager call."""
    positional, named = SAMPLES[sample]()
    # A result that aliases an argument or has a derivative that nobody wrote would be found here.
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if OPERATORS[sample.split(";")[0]].backward is not None:
        checks.append("test_aot_dispatch_static")
    torch.library.opcheck(operator_of(sample, named), positional, named, test_utils=tuple(checks))


def test_every_operator_has_a_sample() -> None:
    elsewhere = {
        "npu_alltoallv_gmm", "npu_gmm_alltoallv", "npu_mm_all_reduce_base", "npu_all_gather_base_mm", "npu_mm_reduce_scatter_base",
        "npu_grouped_matmul.List", "npu_grouped_matmul_add_",
    }  # fmt: skip
    assert set(OPERATORS) - elsewhere == {sample.split(";")[0] for sample in SAMPLES}


@pytest.mark.parametrize("dtype", FLOATS)
def test_permute_and_unpermute_are_plaits(dtype: torch.dtype) -> None:
    x, probs = floats(T, H, dtype=dtype), torch.rand(T, K).requires_grad_()
    rows, order = npu.npu_moe_token_permute(x, IDS)
    wanted, position = ops.permute(x, IDS)
    assert same_bits(rows, wanted) and order.tolist() == position.tolist() and order.dtype == torch.int32
    y = npu.npu_moe_token_unpermute(rows * 2, order, probs=probs)
    y_wanted = ops.unpermute(wanted * 2, position, probs)
    assert same_bits(y, y_wanted)
    dy = torch.randn_like(y)
    for a, b in zip(torch.autograd.grad(y, (x, probs), dy), torch.autograd.grad(y_wanted, (x, probs), dy), strict=True):
        assert same_bits(a, b)


def test_dropped_rows_and_marks_in_place_of_ids() -> None:
    x = floats(3, 2)
    ids = torch.tensor([[0], [torch.iinfo(torch.int32).max], [1]])
    rows, order = npu.npu_moe_token_permute(x, ids, num_out_tokens=2)
    assert order.tolist() == [0, 2, 1] and same_bits(rows, x[[0, 2]])
    y = npu.npu_moe_token_unpermute(rows, order)
    assert y[1].tolist() == [0, 0]
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert dx.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_a_probability_of_zero_leaves_a_nan_out() -> None:
    rows = torch.tensor([[1.0], [float("nan")]])
    assert npu.npu_moe_token_unpermute(rows, counts(0, 1), torch.tensor([[2.0, 0.0]])).tolist() == [[2.0]]


@pytest.mark.parametrize("padded", [False, True])
def test_the_pair_with_a_routing_map(padded: bool) -> None:
    x, probs, weights = floats(T, H), torch.rand(T, E).requires_grad_(), torch.rand(T, E).requires_grad_()
    capacity = 4
    rows, row_probs, order = npu.npu_moe_token_permute_with_routing_map(
        x, MAP, probs=probs, num_out_tokens=capacity * E if padded else T * K, drop_and_pad=padded
    )
    y = npu.npu_moe_token_unpermute_with_routing_map(rows, order, [T, H], probs=weights, routing_map=MAP, drop_and_pad=padded)
    # Row by row, from the definition: an expert takes its tokens in order, and others behind them where it has room.
    if padded:
        tokens = torch.cat([torch.cat([column.nonzero(), (~column).nonzero()])[:capacity, 0] for column in MAP.t()])
        experts = torch.arange(E).repeat_interleave(capacity)
        assert order.tolist() == tokens.tolist()
    else:
        experts, tokens = MAP.t().nonzero(as_tuple=True)
        position = torch.zeros(T, E, dtype=torch.long).masked_scatter_(MAP, order.long())
        assert position[tokens, experts].tolist() == list(range(T * K))
    want_y = torch.zeros(T, H).index_add(0, tokens, x[tokens] * weights[tokens, experts, None])
    want = (x[tokens], probs[tokens, experts], want_y)
    drows, dprobs, dy = torch.randn_like(rows), torch.randn_like(row_probs), torch.randn_like(y)
    got_gradients = torch.autograd.grad((rows, row_probs, y), (x, probs, weights), (drows, dprobs, dy))
    for got, wanted in zip((rows, row_probs, y), want, strict=True):
        torch.testing.assert_close(got, wanted)
    for got, wanted in zip(got_gradients, torch.autograd.grad(want, (x, probs, weights), (drows, dprobs, dy)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_slots_without_a_row() -> None:
    rows = floats(3, 2)
    y = npu.npu_moe_token_unpermute_with_routing_map(rows, torch.tensor([0, -1, 2, 1], dtype=torch.int32), [2, 2])
    torch.testing.assert_close(y, torch.stack([rows[0], rows[2] + rows[1]]))
    (drows,) = torch.autograd.grad(y.sum(), rows)
    assert drows.tolist() == [[1, 1]] * 3


def test_what_was_not_asked_for_is_none() -> None:
    x = floats(T, H)
    assert npu.npu_moe_token_permute_with_routing_map(x, MAP, num_out_tokens=T * K)[1] is None
    assert npu.npu_moe_token_unpermute_grad(torch.randn(T, H), torch.randn(T, H), torch.arange(T))[1] is None
    group = plait.init("none")
    y, shared, permuted = npu.npu_alltoallv_gmm(x, torch.randn(1, H, 2), compat.comm_name(group), 1, [T], [T])
    assert y.shape == (T, 2) and shared is None and permuted is None
    assert npu.npu_gmm_alltoallv(x, torch.randn(1, H, 2), compat.comm_name(group), 1, [T], [T])[1] is None
    meta = npu.npu_alltoallv_gmm(x.to("meta"), torch.empty(2, 3, H, device="meta"), "any", 2, [1] * 4, [2] * 4, trans_gmm_weight=True)
    assert meta[0].shape == (8, 3) and meta[1:] == (None, None)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_swiglu_along_any_dimension(dim: int) -> None:
    h = floats(2, 4, 6)
    gate, up = h.chunk(2, dim)
    a = npu.npu_swiglu(h, dim)
    torch.testing.assert_close(a, silu(gate) * up)
    da = torch.randn_like(a)
    (got,), (wanted,) = torch.autograd.grad(a, h, da), torch.autograd.grad(silu(gate) * up, h, da)
    torch.testing.assert_close(got, wanted)
    assert same_bits(got, npu.npu_swiglu_backward(da, h, dim))


def test_grouped_matmul_counts_as_it_is_told() -> None:
    x, weight = torch.ones(4, 1), torch.tensor([[[10.0]], [[20.0]]])

    def product(**named: Any) -> list[float]:
        (y,) = npu.npu_grouped_matmul([x], [weight], group_list=counts(2, 2), group_type=0, split_item=2, **named)
        return y.flatten().tolist()  # type: ignore[no-any-return]

    assert product() == [10, 10, 0, 0]  # ends
    assert product(group_list_type=1) == [10, 10, 20, 20]  # counts
    separate = npu.npu_grouped_matmul([x], list(weight.unbind(0)), group_list=[1, 3], split_item=3)
    assert separate[0].flatten().tolist() == [10, 20, 20, 0]


@pytest.mark.parametrize("group_list", [[3, 2], [2, 5], [1, 2, 3]])
@pytest.mark.parametrize("packed", [True, False])
def test_a_wrong_group_list_is_an_error(group_list: list[int], packed: bool) -> None:
    weight = torch.ones(2, 1, 1)
    with pytest.raises(plait.InvalidArgument):
        npu.npu_grouped_matmul([torch.ones(4, 1)], [weight] if packed else list(weight), group_list=group_list, split_item=3)


def test_grouped_matmul_add_in_place_and_not() -> None:
    x, dy, total = torch.randn(T, H).bfloat16(), torch.randn(T, 3).bfloat16(), torch.ones(2, H, 3)
    wanted = 1 + torch.stack([x[:2].float().t() @ dy[:2].float(), x[2:].float().t() @ dy[2:].float()])
    added = npu.npu_grouped_matmul_add(total, x, dy, counts(2, T))
    torch.testing.assert_close(added, wanted)
    assert total.eq(1).all()
    assert npu.npu_grouped_matmul_add_(total, x, dy, counts(2, 3), group_list_type=1) is total
    assert same_bits(total, added)
    flat = torch.ones(2 * H, 3)
    npu.npu_grouped_matmul_add_(flat, x, dy, counts(2, T))
    assert same_bits(flat.view(2, H, 3), added)


def test_gating_by_sigmoid_in_groups() -> None:
    """As DeepSeek-V3 routes: groups by their two best, weights without the bias."""
    logits, bias = floats(40, 8), torch.randn(8)
    y, ids, scores = npu.npu_moe_gating_top_k(
        logits, 3, bias=bias, k_group=2, group_count=4, group_select_mode=1, norm_type=1, routed_scaling_factor=2.5
    )
    wanted = ops.route(logits, 3, score="sigmoid", bias=bias, norm_topk=True, scaling=2.5, n_group=4, topk_group=2)
    assert ids.tolist() == wanted.expert_ids.tolist()
    torch.testing.assert_close(y, wanted.weights)
    torch.testing.assert_close(scores, logits.sigmoid())
    dy = torch.randn_like(y)
    torch.testing.assert_close(*(torch.autograd.grad(weights, logits, dy)[0] for weights in (y, wanted.weights)), atol=1e-5, rtol=1e-4)


def test_gating_by_softmax_and_by_a_table() -> None:
    logits = floats(T, 6)
    y, ids, _ = npu.npu_moe_gating_top_k(logits, 2, routed_scaling_factor=2.0)
    wanted = 2 * logits.softmax(-1).gather(1, ids.long())
    torch.testing.assert_close(y, wanted)
    dy = torch.randn_like(y)
    torch.testing.assert_close(*(torch.autograd.grad(weights, logits, dy)[0] for weights in (y, wanted)))
    table = torch.tensor([[0, 1], [5, 4]])
    assert npu.npu_moe_gating_top_k(logits, 2, input_ids=counts(1, 0, 1, 0, 0), tid2eid=table)[1].tolist()[0] == [5, 4]
    assert npu.npu_moe_gating_top_k(torch.zeros(1, 6), 3)[1].tolist() == [[0, 1, 2]]
    with pytest.raises(plait.InvalidArgument, match="token 1"):
        npu.npu_moe_gating_top_k(torch.tensor([[0.0, 1.0], [0.0, float("nan")]]), 1)


def test_softmax_gating_names_rows_slot_by_slot() -> None:
    x = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
    y, ids, rows = npu.npu_moe_gating_top_k_softmax(x, torch.tensor([False, True]), 2)
    assert ids.tolist() == [[1, 2], [3, 3]] and rows.tolist() == [[0, 2], [1, 3]]
    torch.testing.assert_close(y, x.softmax(-1).sort(descending=True).values[:, :2])
    renormalised = npu.npu_moe_gating_top_k_softmax_v2(x, k=2, renorm=1)
    torch.testing.assert_close(renormalised[0].sum(1), torch.ones(2))
    assert renormalised[2].numel() == 0


def test_init_and_finalize_are_inverse() -> None:
    x = torch.randn(T, H)
    y, ids, row_idx = npu.npu_moe_gating_top_k_softmax(torch.randn(T, E), None, K)
    rows, order, experts = npu.npu_moe_init_routing(x, row_idx, ids, T)
    assert experts.tolist() == sorted(experts.tolist())
    bias = torch.randn(E, H)
    back = npu.npu_moe_finalize_routing(rows, x, x, bias, y, order, ids)
    wanted = 2 * x + (y[:, :, None] * (x[:, None] + bias[ids.long()])).sum(1)
    torch.testing.assert_close(back, wanted)
    rows, order, per_expert, _ = npu.npu_moe_init_routing_v2(x, ids, expert_num=E, expert_tokens_num_flag=True, expert_tokens_num_type=1)
    assert per_expert.tolist() == torch.bincount(ids.flatten(), minlength=E).tolist()
    torch.testing.assert_close(npu.npu_moe_finalize_routing(rows, None, None, None, y, order, None, 2), y.sum(1, keepdim=True) * x)


def test_init_routing_of_a_range_and_with_capacity() -> None:
    x, ids = torch.arange(T, dtype=torch.float32)[:, None], IDS.int()
    rows, gather, pairs, _ = npu.npu_moe_init_routing_v2(
        x, ids, expert_num=E, expert_tokens_num_flag=True, expert_tokens_num_type=2, active_expert_range=[1, 3]
    )
    # Expert 1 has tokens 0, 1, 4, expert 2 has 1, 2, 3, 4.
    assert rows.flatten().tolist() == [0, 1, 4, 1, 2, 3, 4, 0, 0, 0] and pairs.tolist() == [[1, 3], [2, 4], [0, 0]]
    assert gather.tolist() == [0, -1, 3, 1, -1, 4, 5, -1, 2, 6]
    scatter = npu.npu_moe_init_routing_v2(x, ids, expert_num=E, active_expert_range=[1, 3], row_idx_type=1)[1]
    assert scatter.tolist()[:7] == [0, 3, 8, 2, 5, 6, 9]
    padded, order, _, _ = npu.npu_moe_init_routing_v2(x, ids, expert_num=E, expert_capacity=3, drop_pad_mode=1)
    assert padded.flatten().tolist() == [0, 2, 3, 0, 1, 4, 1, 2, 3] and order.tolist()[-1] == -1
    back = npu.npu_moe_finalize_routing(padded, None, None, None, torch.ones(T, K), order, None, 3)
    assert back.flatten().tolist() == [0, 2, 4, 6, 4]


def test_re_routing() -> None:
    tokens = torch.arange(6.0)[:, None]
    rows, scales, index, per_expert = npu.npu_moe_re_routing(tokens, torch.tensor([[1, 2], [2, 1]]), per_token_scales=torch.arange(6.0))
    assert index.tolist() == [0, 3, 4, 1, 2, 5] == rows.flatten().tolist() == scales.tolist() and per_expert.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("scale", lambda: npu.npu_grouped_matmul([torch.ones(2, 2)], [torch.ones(1, 2, 2)], scale=[torch.ones(1)], group_list=[2])),
        ("x_dtype", lambda: npu.npu_grouped_matmul([torch.ones(2, 2)], [torch.ones(2, 2)], group_type=-1, x_dtype=290)),
        ("output_dtype", lambda: npu.npu_grouped_matmul([torch.ones(2, 2)], [torch.ones(2, 2)], group_type=-1, output_dtype=1)),
        ("padded_mode", lambda: npu.npu_moe_token_permute(torch.ones(2, 2), counts(0, 1), padded_mode=True)),
        ("quant_mode", lambda: npu.npu_moe_init_routing_v2(torch.ones(T, 1), IDS.int(), quant_mode=1)),
        ("offset", lambda: npu.npu_moe_init_routing_v2(torch.ones(T, 1), IDS.int(), offset=torch.ones(1))),
        ("tokens_dtype", lambda: npu.npu_moe_re_routing(torch.ones(1, 1), torch.ones(1, 1).int(), tokens_dtype=1)),
        ("send_counts_tensor", lambda: npu.npu_alltoallv_gmm(torch.ones(1, 1), torch.ones(1, 1, 1), "", 1, [1], [1], send_counts_tensor=counts(1))),
        ("npu_mm_all_reduce_base", lambda: npu.npu_mm_all_reduce_base(torch.ones(1, 1), torch.ones(1, 1), "")),
        ("npu_all_gather_base_mm", lambda: npu.npu_all_gather_base_mm(torch.ones(1, 1), torch.ones(1, 1), "", 1)),
        ("npu_mm_reduce_scatter_base", lambda: npu.npu_mm_reduce_scatter_base(torch.ones(1, 1), torch.ones(1, 1), "", 1)),
    ],
)
def test_what_is_not_available_is_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(plait.Error, match=f"{name}.*not available") as caught:
        call()
    assert caught.value.code == "unavailable"


def test_no_derivative_is_an_error_in_backward_and_autocast_changes_nothing() -> None:
    x, weight = floats(T, H), torch.randn(1, H, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (y,) = npu.npu_grouped_matmul([x], [weight], group_list=[T], split_item=2)
    assert y.dtype == torch.float32
    with pytest.raises(plait.Error, match="derivative"):
        y.sum().backward()


def test_a_name_that_is_no_group() -> None:
    with pytest.raises(plait.InvalidArgument, match="names no group"):
        npu.npu_alltoallv_gmm(torch.ones(1, 1), torch.ones(1, 1, 1), "elsewhere", 1, [1], [1])
    group = plait.init("one")
    with pytest.raises(plait.InvalidArgument, match="1 ranks, but the call says 2"):
        npu.npu_alltoallv_gmm(torch.ones(1, 1), torch.ones(1, 1, 1), compat.comm_name(group), 2, [1, 0], [1, 0])


def test_the_fused_pair_on_threads_is_plaits() -> None:
    def rank(group: plait.Group) -> None:
        x, weight, shared = torch.randn(6, H).bfloat16(), torch.randn(2, H, 3).bfloat16(), torch.randn(2, H).bfloat16()
        send = [[1, 2, 3, 0], [0, 4, 1, 1]][group.rank]
        recv = [[1, 2, 0, 4], [3, 0, 1, 1]][group.rank]
        name = compat.comm_name(group)
        got = npu.npu_alltoallv_gmm(x, weight, name, 2, send, recv, mm_x=shared, mm_weight=weight[0], permute_out_flag=True)
        wanted = ops.alltoallv_grouped_matmul(x, weight, group, send, recv, shared_x=shared, shared_weight=weight[0], return_permuted=True)
        for a, b in zip(got, wanted, strict=True):
            assert b is not None and same_bits(a, b)
        back = npu.npu_gmm_alltoallv(got[0], weight, name, 2, recv, send, trans_gmm_weight=True)
        assert same_bits(back[0], ops.grouped_matmul_alltoallv(got[0], weight, group, recv, send, trans_weight=True)[0])

    plait.run_ranks(2, rank, timeout=120)
