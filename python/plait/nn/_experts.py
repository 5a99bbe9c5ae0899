"""The routed experts as a module."""

import torch
from torch import Tensor, nn

from plait._group import Group
from plait.parallel._activation import Activation
from plait.parallel._layout import ExpertLayout, ExpertShards
from plait.parallel._sharding import check_divisible, mark_sharded, packed_experts_forward, shards_of


class Experts(nn.Module):
    """The routed experts of an MoE layer; this rank holds its e = E / R of them.

    Every rank of the group makes it with the same arguments and random state: parameters are drawn for all E experts and each rank keeps
    its own, so that the model does not depend on R.

    Args:
        num_experts: E, a multiple of the group's size.
        hidden: H.
        intermediate: I.
        group: from `plait.init` or `plait.run_ranks`.
        activation, interleaved, limit, alpha, dispatcher, sentinel, recompute: as for `plait.ops.moe_layer`.
        bias: experts with biases.
        dtype: of the parameters; None: torch's default.

    Shape of the parameters: gate_up (e,H,2I), down (e,I,H), and with bias gate_up_bias (e,2I), down_bias (e,H).

    Raises:
        plait.InvalidArgument: E is not a multiple of R, naming both.

    Example:
        >>> experts = plait.nn.Experts(4, 8, 16, plait.init("experts"))
        >>> routing = plait.ops.route(torch.randn(3, 4), 2)
        >>> experts(torch.randn(3, 8), routing.expert_ids, routing.weights).shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        group: Group,
        *,
        activation: str = "swiglu",
        interleaved: bool = False,
        limit: float = 7.0,
        alpha: float = 1.702,
        bias: bool = False,
        dispatcher: str = "mc2",
        sentinel: bool = False,
        recompute: bool = False,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_divisible("Experts", num_experts, group)
        gated = activation != "relu2"
        local, columns = num_experts // group.size, 2 * intermediate if gated else intermediate
        shapes: dict[str, tuple[int, ...]] = {"gate_up": (local, hidden, columns), "down": (local, intermediate, hidden)}
        if bias:
            shapes |= {"gate_up_bias": (local, columns), "down_bias": (local, hidden)}
        parameters = {name: nn.Parameter(torch.empty(shape, dtype=dtype)) for name, shape in shapes.items()}
        gate_up_bias, down_bias = ("gate_up_bias", "down_bias") if bias else (None, None)
        layout = ExpertLayout("gate_up", "down", gate_up_bias, down_bias, inputs_first=True, interleaved=interleaved, gated=gated)
        self._take(ExpertShards(group, num_experts, layout), parameters, Activation(activation, interleaved, limit, alpha))
        self.dispatcher = dispatcher
        self.sentinel = sentinel
        self.recompute = recompute
        self.reset_parameters()

    def _take(self, shards: ExpertShards, parameters: dict[str, nn.Parameter], activation: Activation) -> None:
        self.num_experts = shards.num_experts
        self.group = shards.group
        self.activation = activation
        self.gate_up = parameters["gate_up"]
        self.down = parameters["down"]
        self.gate_up_bias = parameters.get("gate_up_bias")
        self.down_bias = parameters.get("down_bias")
        mark_sharded(self, shards)

    @classmethod
    def of_parameters(
        cls,
        shards: ExpertShards,
        parameters: dict[str, nn.Parameter],
        activation: Activation,
        dispatcher: str,
        sentinel: bool,
        recompute: bool,
    ) -> "Experts":
        """Experts that are there already: this rank's, in the layout of the shards."""
        experts = cls.__new__(cls)
        nn.Module.__init__(experts)
        experts._take(shards, parameters, activation)
        experts.dispatcher, experts.sentinel, experts.recompute = dispatcher, sentinel, recompute
        return experts

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Normal with variance 1 / inputs, biases 0. Draws for all experts, whichever rank has them."""
        local = self.gate_up.shape[0]
        for expert in range(self.num_experts):
            for parameter in (self.gate_up, self.down):
                values = torch.randn(parameter.shape[1:]) / parameter.shape[1] ** 0.5
                if expert // local == self.group.rank:
                    parameter[expert % local] = values
        for vector in (self.gate_up_bias, self.down_bias):
            if vector is not None:
                vector.zero_()

    def forward(self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor | None = None) -> Tensor:
        """x (..., H), expert_ids (..., k), expert_weights (..., k) or None (all 1) -> (..., H). Collective, as its backward."""
        shards = shards_of(self)
        assert shards is not None
        options = {"dispatcher": self.dispatcher, "sentinel": self.sentinel, "recompute": self.recompute}
        return packed_experts_forward(self, x, expert_ids, expert_weights, self.group, shards.layout, self.activation, **options)

    def extra_repr(self) -> str:
        activation, dispatcher = self.activation.activation, self.dispatcher
        return f"num_experts={self.num_experts}, group={self.group}, activation='{activation}', dispatcher='{dispatcher}'"
