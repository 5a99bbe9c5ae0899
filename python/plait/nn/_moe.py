"""A whole MoE layer: router, routed experts, shared expert."""

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from plait import ops
from plait._errors import InvalidArgument
from plait._group import Group
from plait.nn._experts import Experts
from plait.parallel._activation import Activation


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (T,K), weight (N,K), bias (N) -> (T,N). A row's bits do not depend on the rows beside it, as they may in torch's matmul."""
    return ops.grouped_matmul(x, weight.t().unsqueeze(0), [x.shape[0]], bias=None if bias is None else bias.unsqueeze(0))


class Router(nn.Module):
    """Chooses the experts of each token. Parameters are equal on all ranks; no ranks talk to each other here.

    Args:
        num_experts: E.
        hidden: H.
        top_k, score, norm_topk, scaling, n_group, topk_group: as for `plait.ops.route`.
        bias: logits have a bias, as in gpt-oss.
        score_correction: a buffer (E), float32, is added to the scores for the choice only, as in DeepSeek-V3. It gets no gradient:
            whoever balances the load changes it.
        router_dtype: type in which logits are computed, as torch.float32; None: that of x and weight.
        dtype: of the parameters; None: torch's default.

    Shape of the parameters: weight (E,H), bias (E); buffer score_correction_bias (E).

    Example:
        >>> router = plait.nn.Router(8, 4, 2, score="sigmoid", norm_topk=True, score_correction=True)
        >>> router(torch.randn(3, 4)).expert_ids.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        top_k: int,
        *,
        score: str = "softmax",
        norm_topk: bool = False,
        scaling: float = 1.0,
        n_group: int = 1,
        topk_group: int = 1,
        bias: bool = False,
        score_correction: bool = False,
        router_dtype: torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        #: arguments of `plait.ops.route`
        self.settings: dict[str, Any] = {
            "top_k": top_k,
            "score": score,
            "norm_topk": norm_topk,
            "scaling": scaling,
            "n_group": n_group,
            "topk_group": topk_group,
        }
        self.router_dtype = router_dtype
        self.weight = nn.Parameter(torch.empty(num_experts, hidden, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_experts, dtype=dtype)) if bias else None
        correction = torch.empty(num_experts, dtype=torch.float32) if score_correction else None
        self.register_buffer("score_correction_bias", correction)
        self.score_correction_bias: Tensor | None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Normal with variance 1 / H, biases 0."""
        self.weight.copy_(torch.randn(self.weight.shape) / self.weight.shape[1] ** 0.5)
        for vector in (self.bias, self.score_correction_bias):
            if vector is not None:
                vector.zero_()

    def logits(self, x: Tensor) -> Tensor:
        """x (T,H) -> (T,E), in the router's type also under autocast."""
        dtype = self.router_dtype or self.weight.dtype
        with torch.autocast("cpu", enabled=False):
            return _linear(x.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    def forward(self, x: Tensor) -> ops.Routing:
        """x (T,H) -> ids and weights (T,k), scores, auxiliary losses."""
        return ops.route(self.logits(x), **self.settings, bias=self.score_correction_bias)

    def extra_repr(self) -> str:
        return f"num_experts={self.weight.shape[0]}, top_k={self.settings['top_k']}, score='{self.settings['score']}'"


class MLP(nn.Module):
    """The shared expert: an ordinary MLP over all tokens of this rank.

    Args:
        hidden: H.
        intermediate: I.
        activation, interleaved, limit, alpha: as for `plait.ops.moe_layer`.
        dtype: of the parameters; None: torch's default.

    Shape of the parameters: gate_up (H,2I), down (I,H), as each expert of `Experts`.

    Example:
        >>> plait.nn.MLP(4, 6)(torch.randn(3, 4)).shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        *,
        activation: str = "swiglu",
        interleaved: bool = False,
        limit: float = 7.0,
        alpha: float = 1.702,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.activation = Activation(activation, interleaved, limit, alpha)
        self.gate_up = nn.Parameter(torch.empty(hidden, intermediate if activation == "relu2" else 2 * intermediate, dtype=dtype))
        self.down = nn.Parameter(torch.empty(intermediate, hidden, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Normal with variance 1 / inputs."""
        for parameter in (self.gate_up, self.down):
            parameter.copy_(torch.randn(parameter.shape) / parameter.shape[0] ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x (T,H) -> (T,H)."""
        return _linear(self.activation.compute(_linear(x, self.gate_up.t())), self.down.t())

    def extra_repr(self) -> str:
        return f"hidden={self.gate_up.shape[0]}, intermediate={self.down.shape[0]}, activation='{self.activation.activation}'"


class MoE(nn.Module):
    """An MoE layer: router, routed experts over the ranks of a group, and where the model has one a shared expert.

    Every rank of the group makes it with the same arguments and random state. Router and shared expert are equal on all ranks and never
    sharded: their gradients are this rank's part, for DDP or FSDP to average; those of the experts are sums over the tokens of all ranks
    (`plait.scale_expert_gradients`). A token's result does not depend on R, to the last bit.

    Args:
        num_experts: E, a multiple of the group's size.
        hidden: H.
        intermediate: I of each routed expert.
        top_k: k.
        group: from `plait.init`, `plait.Group.from_process_group` or `plait.run_ranks`.
        score, norm_topk, scaling, n_group, topk_group, router_bias, score_correction, router_dtype: as for `Router`.
        shared_intermediate: I of the shared expert; 0: there is none.
        shared_gate: the shared expert is scaled by sigmoid(x . w), with w (H) the parameter shared_gate.
        activation, interleaved, limit, alpha, expert_bias, dispatcher, recompute: as for `Experts`; the shared expert has the same activation.
        dtype: of the parameters; None: torch's default.

    Raises:
        plait.InvalidArgument: E is not a multiple of R; a shared gate without a shared expert.

    Example:
        >>> layer = plait.nn.MoE(8, 16, 24, 2, plait.init("moe"), norm_topk=True, shared_intermediate=24, shared_gate=True)
        >>> out = layer(torch.randn(2, 5, 16), return_losses=True)
        >>> loss = out.y.square().mean() + 0.01 * out.load_balancing_loss + 0.001 * out.z_loss
        >>> out.y.shape, out.expert_ids.shape
        (torch.Size([2, 5, 16]), torch.Size([10, 2]))
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        top_k: int,
        group: Group,
        *,
        score: str = "softmax",
        norm_topk: bool = False,
        scaling: float = 1.0,
        n_group: int = 1,
        topk_group: int = 1,
        router_bias: bool = False,
        score_correction: bool = False,
        router_dtype: torch.dtype | None = None,
        shared_intermediate: int = 0,
        shared_gate: bool = False,
        activation: str = "swiglu",
        interleaved: bool = False,
        limit: float = 7.0,
        alpha: float = 1.702,
        expert_bias: bool = False,
        dispatcher: str = "mc2",
        recompute: bool = False,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if shared_gate and shared_intermediate == 0:
            raise InvalidArgument("MoE: shared_gate is on, but shared_intermediate is 0: there is nothing to scale")
        self.router = Router(
            num_experts,
            hidden,
            top_k,
            score=score,
            norm_topk=norm_topk,
            scaling=scaling,
            n_group=n_group,
            topk_group=topk_group,
            bias=router_bias,
            score_correction=score_correction,
            router_dtype=router_dtype,
            dtype=dtype,
        )
        self.experts = Experts(
            num_experts,
            hidden,
            intermediate,
            group,
            activation=activation,
            interleaved=interleaved,
            limit=limit,
            alpha=alpha,
            bias=expert_bias,
            dispatcher=dispatcher,
            recompute=recompute,
            dtype=dtype,
        )
        self.shared_expert = None
        if shared_intermediate:
            self.shared_expert = MLP(
                hidden, shared_intermediate, activation=activation, interleaved=interleaved, limit=limit, alpha=alpha, dtype=dtype
            )
        self.shared_gate = nn.Parameter(torch.randn(hidden).to(self.router.weight.dtype) / hidden**0.5) if shared_gate else None

    @overload
    def forward(self, x: Tensor, *, return_losses: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, *, return_losses: Literal[True]) -> ops.MoeOutput: ...
    def forward(self, x: Tensor, *, return_losses: bool = False) -> Tensor | ops.MoeOutput:
        """x (..., H) -> y (..., H), or with `return_losses` a `plait.ops.MoeOutput`, whose auxiliary losses are differentiable.

        The losses are those of this rank's tokens, as in transformers. Collective, as its backward.
        """
        router, experts, shared = self.router, self.experts, self.shared_expert
        result = ops.moe(
            x.reshape(-1, x.shape[-1]),
            router.weight,
            experts.gate_up,
            experts.down,
            experts.group,
            **router.settings,
            router_bias=router.bias,
            choice_bias=router.score_correction_bias,
            router_dtype=router.router_dtype,
            gate_up_bias=experts.gate_up_bias,
            down_bias=experts.down_bias,
            shared_gate_up=None if shared is None else shared.gate_up,
            shared_down=None if shared is None else shared.down,
            shared_gate=self.shared_gate,
            **experts.activation._asdict(),
            dispatcher=experts.dispatcher,
            recompute=experts.recompute,
        )
        if x.dim() != 2:
            result = result._replace(y=result.y.view(x.shape))
        return result if return_losses else result.y
