"""The compiled part. Arrays are anything that speaks DLPack; results are written into arrays that the caller gives."""

from typing import Any, TypeAlias

version: str

class Activation:
    def __init__(self, kind: str, interleaved: bool, limit: float, alpha: float) -> None: ...

class RouterConfig:
    def __init__(
        self,
        num_experts: int,
        top_k: int,
        score: str,
        norm_topk: bool,
        scaling: float,
        n_group: int,
        topk_group: int,
    ) -> None: ...

def usable_cpus() -> int: ...
def default_tier() -> str: ...
def tiers() -> list[tuple[str, bool, str]]: ...
def environment() -> list[tuple[str, str, str, str]]: ...
def grouped_matmul(x: Any, weight: Any, group_list: Any, group_list_type: int, bias: Any, out: Any, fused: bool) -> None: ...
def grouped_matmul_k(x: Any, dy: Any, group_list: Any, group_list_type: int, out: Any, accumulate: bool, fused: bool) -> None: ...
def grouped_matmul_backward(
    dy: Any, x: Any, weight: Any, group_list: Any, group_list_type: int, dx: Any, dw: Any, dbias: Any, fused: bool
) -> None: ...
def grouped_matmul_lists(x: list[Any], weight: list[Any], bias: list[Any], out: list[Any]) -> None: ...
def sort_by_expert(expert_ids: Any, num_experts: int, sentinel: bool, position: Any) -> None: ...
def sort_by_map(routing_map: Any, position: Any) -> None: ...
def permute(x: Any, position: Any, k: int, rows: Any) -> None: ...
def permute_backward(drows: Any, position: Any, k: int, expert_ids: Any, num_experts: int, dx: Any) -> None: ...
def unpermute(rows: Any, position: Any, k: int, weights: Any, expert_ids: Any, num_experts: int, y: Any) -> None: ...
def unpermute_backward(dy: Any, rows: Any, position: Any, k: int, weights: Any, drows: Any, dweights: Any) -> None: ...
def permute_map(x: Any, routing_map: Any, position: Any, rows: Any) -> None: ...
def permute_map_backward(drows: Any, routing_map: Any, position: Any, dx: Any) -> None: ...
def unpermute_map(rows: Any, routing_map: Any, position: Any, weights: Any, y: Any) -> None: ...
def unpermute_map_backward(dy: Any, rows: Any, routing_map: Any, position: Any, weights: Any, drows: Any, dweights: Any) -> None: ...
def activation_forward(activation: Activation, h: Any, act: Any) -> None: ...
def activation_backward(activation: Activation, h: Any, da: Any, dh: Any) -> None: ...
def route(config: RouterConfig, logits: Any, bias: Any, expert_ids: Any, weights: Any, scores: Any) -> tuple[float, float]: ...
def route_backward(
    config: RouterConfig,
    logits: Any,
    scores: Any,
    expert_ids: Any,
    weights: Any,
    dweights: Any,
    dload_balancing: float,
    dz: float,
    dlogits: Any,
) -> None: ...

Call: TypeAlias = tuple[int, int, dict[str, int], dict[str, int], list[int]]

class RankGroup:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def window_bytes(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    profiled: bool
    def calls(self) -> dict[str, Call]: ...
    def barrier(self, stage: str) -> None: ...
    def exchange(self, stage: str, payload: bytes) -> list[bytes]: ...
    def gather(self, stage: str, own: Any, out: Any) -> None: ...
    def abort(self, why: str) -> None: ...

def thread_ranks(size: int, timeout_s: float | None) -> list[RankGroup]: ...
def join(name: str, timeout_s: float | None) -> RankGroup: ...
def join_as(job: str, name: str, rank: int, size: int, local_size: int, timeout_s: float | None) -> RankGroup: ...
def default_timeout() -> float: ...
def dispatchers() -> list[str]: ...
def alltoallv_gmm(
    group: RankGroup,
    home: bool,
    x: Any,
    weight: Any,
    send_counts: Any,
    recv_counts: Any,
    bias: Any,
    shared_x: Any,
    shared_weight: Any,
    trans_weight: bool,
    trans_shared_weight: bool,
    return_permuted: bool,
    fused: bool,
) -> tuple[Any, Any, Any]: ...
def alltoallv_gmm_backward(
    group: RankGroup,
    home: bool,
    dy: Any,
    dshared_y: Any,
    rows: Any,
    weight: Any,
    send_counts: Any,
    recv_counts: Any,
    shared_x: Any,
    shared_weight: Any,
    trans_weight: bool,
    trans_shared_weight: bool,
    fused: bool,
    dweight: Any,
    dbias: Any,
    dshared_weight: Any,
) -> tuple[Any, Any]: ...

class LayerConfig:
    def __init__(
        self,
        router: RouterConfig,
        activation: Activation,
        dispatcher: str,
        combine: str,
        router_f32: bool,
        sentinel: bool,
        recompute: bool,
    ) -> None: ...

def layer_forward(
    group: RankGroup, config: LayerConfig, x: Any, expert_ids: Any, expert_weights: Any, weights: list[Any], y: Any
) -> tuple[Any, Any, float, float]: ...
def layer_backward(
    state: Any,
    x: Any,
    weights: list[Any],
    dy: Any,
    dx: Any,
    gradients: list[Any],
    dweights: Any,
    accumulate: bool,
    dload_balancing: float,
    dz: float,
) -> None: ...
def mc2_fused_expert(
    group: RankGroup,
    x: Any,
    weights_up: Any,
    weights_gate: Any,
    weights_down: Any,
    expert_ids: Any,
    expert_weights: Any,
    num_experts: int,
    activation: Activation,
    dispatcher: str,
    sentinel: bool,
    recompute: bool,
) -> tuple[Any, Any]: ...
def mc2_fused_expert_backward(
    state: Any,
    x: Any,
    weights_up: Any,
    weights_gate: Any,
    weights_down: Any,
    dy: Any,
    dweights_up: Any,
    dweights_gate: Any,
    dweights_down: Any,
    dexpert_weights: Any,
) -> Any: ...
