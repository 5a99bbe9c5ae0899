"""The expert-parallel implementation "plait" of transformers."""

from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.distributed.expert_parallel import AllToAllEP

from plait._group import Group
from plait.hf._fusable import known_activation, layout_of_experts
from plait.parallel._sharding import packed_experts_forward


class PlaitEP(AllToAllEP):
    """Rows travel to their experts and back in one call of `plait.ops.moe_layer`.

    Named by DistributedConfig(ep_implementation="plait"), which takes the dispatcher that is faster, or "plait_alltoall", "plait_mc2" and
    so on. All layers share the group of their mesh. Experts whose own Python code has to be called between the two products travel as
    transformers' "all_to_all" sends them.

    Raises:
        plait.Error: ranks that did not come to make the group, or that are on another machine.
    """

    dispatcher = "auto"

    def __init__(self, experts: Any, ep_mesh: DeviceMesh, tp_mesh: DeviceMesh):
        super().__init__(experts, ep_mesh, tp_mesh)
        self.experts = experts
        self.group = Group.from_process_group(ep_mesh.get_group())

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """(T,H), (T,k) global ids, (T,k) -> (T,H), for this rank's tokens. Collective, as its backward."""
        activation = known_activation(self.experts)
        if activation is None:
            return super().__call__(hidden_states, top_k_index, top_k_weights)
        layout = layout_of_experts(self.experts)
        x, ids, weights = hidden_states.to(getattr(self.experts, layout.down).dtype), top_k_index, top_k_weights
        if self.tp_mesh.size() > 1:
            x, ids, weights = (self._own_slice(t) for t in (x, ids, weights))
        y = packed_experts_forward(
            self.experts, x, ids, weights, self.group, layout, activation, dispatcher=self.dispatcher, sentinel=True
        ).to(hidden_states.dtype)
        return y if self.tp_mesh.size() == 1 else self._all_slices(y, hidden_states)

    def _own_slice(self, shared: Tensor) -> Tensor:
        """Of a batch that the ranks of the tensor-parallel mesh share: a token is computed once. Its backward gathers the gradients."""
        whole = DTensor.from_local(shared, self.tp_mesh, [Replicate()], run_check=False)
        return whole.redistribute(self.tp_mesh, [Shard(0)]).to_local()

    def _all_slices(self, own: Tensor, like: Tensor) -> Tensor:
        whole = DTensor.from_local(own.contiguous(), self.tp_mesh, [Shard(0)], shape=like.shape, stride=(like.shape[-1], 1))
        return whole.full_tensor()


def implementations() -> dict[str, type[PlaitEP]]:
    """By the names under which they are registered: one for each dispatcher, and the default."""
    kinds = {f"plait_{name}": type(f"PlaitEP_{name}", (PlaitEP,), {"dispatcher": name}) for name in ("alltoall", "allgather", "mc2", "eager")}
    return {"plait": PlaitEP, **kinds}
