"""Modules over Plait's operators."""

import torch
from torch import Tensor, nn

from plait._errors import InvalidArgument
from plait._group import Group
from plait.ops import moe_layer


class Experts(nn.Module):
    """The routed experts of an MoE layer; this rank holds its e = E / R of them.

    Every rank of the group makes it with the same arguments and random state: parameters are drawn for all E experts and each rank keeps
    its own, so that the model does not depend on R.

    Args:
        num_experts: E, a multiple of the group's size.
        hidden: H.
        intermediate: I.
        group: from `plait.init` or `plait.run_ranks`.
        activation, interleaved, dispatcher, recompute: as for `plait.ops.moe_layer`.
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
        bias: bool = False,
        dispatcher: str = "alltoall",
        recompute: bool = False,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if num_experts % group.size != 0 or num_experts < 1:
            raise InvalidArgument(f"Experts: num_experts={num_experts} is no multiple of the group's {group.size} ranks")
        self.num_experts = num_experts
        self.group = group
        self.activation = activation
        self.interleaved = interleaved
        self.dispatcher = dispatcher
        self.recompute = recompute
        local, columns = num_experts // group.size, intermediate if activation == "relu2" else 2 * intermediate
        self.gate_up = nn.Parameter(torch.empty(local, hidden, columns, dtype=dtype))
        self.down = nn.Parameter(torch.empty(local, intermediate, hidden, dtype=dtype))
        self.gate_up_bias = nn.Parameter(torch.empty(local, columns, dtype=dtype)) if bias else None
        self.down_bias = nn.Parameter(torch.empty(local, hidden, dtype=dtype)) if bias else None
        self.reset_parameters()

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
        k = expert_ids.shape[-1]
        y = moe_layer(
            x.reshape(-1, x.shape[-1]),
            expert_ids.reshape(-1, k),
            None if expert_weights is None else expert_weights.reshape(-1, k),
            self.gate_up,
            self.down,
            self.group,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            activation=self.activation,
            interleaved=self.interleaved,
            dispatcher=self.dispatcher,
            recompute=self.recompute,
        )
        return y.view(x.shape)

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, group={self.group}, activation='{self.activation}', dispatcher='{self.dispatcher}'"
