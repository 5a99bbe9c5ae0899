"""Expert parallelism written for torch_npu's operators, on CPU ranks: one training step.

    torchrun --nproc-per-node 4 examples/npu_style_moe.py

All below the first two lines of `main` is what such code looks like on an accelerator: it asks for "npu" and "hccl", and wraps the fused
operators in autograd functions of its own, as they have no derivative. It prints the loss and the norm of the gradients of all ranks.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import plait.compat.torch_npu

TOKENS, HIDDEN, WIDTH, EXPERTS, TOPK = 24, 32, 16, 8, 2  # tokens of each rank; WIDTH: an expert's intermediate size


def communicator(group: dist.ProcessGroup) -> str:
    global_rank = dist.get_global_rank(group, dist.get_rank(group))
    name: str = group._get_backend(torch.device("npu")).get_hccl_comm_name(global_rank)  # type: ignore[attr-defined]
    return name


def weight_gradient(x: Tensor, dy: Tensor, rows: Tensor) -> Tensor:
    """(e,K,N): for each expert the product of its rows of x (M,K) and of dy (M,N)."""
    import torch_npu

    gradient: Tensor = torch_npu.npu_grouped_matmul([x.T], [dy], group_list=rows, group_list_type=1, group_type=2, split_item=3)[0]
    return gradient


class DispatchMatmul(torch.autograd.Function):
    """Rows (B,K) to the ranks of their experts, times the experts' weights (e,K,N)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, group: dist.ProcessGroup, send: Tensor, recv: Tensor) -> Tensor:
        import torch_npu

        ranks = dist.get_world_size(group)
        ctx.call = communicator(group), ranks, send.tolist(), recv.tolist()
        y, shared, arrived = torch_npu.npu_alltoallv_gmm(rows, weight, *ctx.call, permute_out_flag=True)
        assert shared is None  # no shared expert was given
        ctx.save_for_backward(arrived, weight, recv.view(ranks, -1).sum(0))
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        import torch_npu

        arrived, weight, per_expert = ctx.saved_tensors
        hcom, ranks, send, recv = ctx.call
        drows, _ = torch_npu.npu_gmm_alltoallv(dy, weight, hcom, ranks, recv, send, trans_gmm_weight=True)
        return drows, weight_gradient(arrived, dy, per_expert), None, None, None


class MatmulCombine(torch.autograd.Function):
    """Rows (A,K) times the experts' weights (e,K,N), and the products back to the ranks that the rows came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, group: dist.ProcessGroup, send: Tensor, recv: Tensor) -> Tensor:
        import torch_npu

        ranks = dist.get_world_size(group)
        ctx.call = communicator(group), ranks, send.tolist(), recv.tolist()
        y, _ = torch_npu.npu_gmm_alltoallv(rows, weight, *ctx.call)
        ctx.save_for_backward(rows, weight, send.view(ranks, -1).sum(0))
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        import torch_npu

        rows, weight, per_expert = ctx.saved_tensors
        hcom, ranks, send, recv = ctx.call
        drows, _, arrived = torch_npu.npu_alltoallv_gmm(
            dy, weight, hcom, ranks, recv, send, trans_gmm_weight=True, permute_out_flag=True
        )
        return drows, weight_gradient(rows, arrived, per_expert), None, None, None


def counts(expert_ids: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Rows for each expert of each rank that this rank sends, and that it receives, both in rank-major order."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    send = torch.histc(expert_ids, bins=EXPERTS, min=0, max=EXPERTS)
    table = torch.empty(ranks, EXPERTS, dtype=send.dtype, device=expert_ids.device)
    dist.all_gather_into_tensor(table, send, group=group)
    own = EXPERTS // ranks
    return send, table[:, rank * own : (rank + 1) * own].reshape(-1)


def experts(x: Tensor, expert_ids: Tensor, probs: Tensor, gate_up: Tensor, down: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(T,H): the experts' part of an MoE layer."""
    import torch_npu

    send, recv = counts(expert_ids, group)
    rows, order = torch_npu.npu_moe_token_permute(x, expert_ids)
    h = torch_npu.npu_swiglu(DispatchMatmul.apply(rows, gate_up, group, send, recv))
    back = MatmulCombine.apply(h, down, group, recv, send)
    y: Tensor = torch_npu.npu_moe_token_unpermute(back, order, probs=probs)
    return y


def parameters(rank: int, ranks: int) -> tuple[Tensor, ...]:
    """This rank's tokens, routing and experts: parts of what one rank would have, whatever the number of ranks."""
    generator = torch.Generator().manual_seed(1)
    total = TOKENS * 4
    x = torch.randn(total, HIDDEN, generator=generator)
    probs, ids = torch.randn(total, EXPERTS, generator=generator).softmax(-1).topk(TOPK)
    gate_up = torch.randn(EXPERTS, HIDDEN, 2 * WIDTH, generator=generator) / HIDDEN**0.5
    down = torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator) / WIDTH**0.5
    tokens, own = (slice(rank * n // ranks, (rank + 1) * n // ranks) for n in (total, EXPERTS))
    device = torch.device("npu")
    return x[tokens].to(device), ids[tokens].to(device), probs[tokens].to(device), gate_up[own].to(device), down[own].to(device)


def step(group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """The loss, y and the gradients of x, probs, gate_up and down on this rank."""
    x, ids, probs, gate_up, down = parameters(dist.get_rank(group), dist.get_world_size(group))
    leaves = [tensor.requires_grad_() for tensor in (x, probs, gate_up, down)]
    y = experts(x, ids, probs, gate_up, down, group)
    loss = y.square().sum()
    loss.backward()
    return loss.detach(), y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)


def main() -> None:
    plait.compat.torch_npu.install()
    torch.npu.set_device(int(os.environ.get("LOCAL_RANK", 0)))  # type: ignore[attr-defined]
    dist.init_process_group("hccl")
    loss, _, *gradients = step(dist.distributed_c10d._get_default_group())
    told = torch.stack([loss, *(gradient.square().sum() for gradient in gradients)])
    dist.all_reduce(told)
    if dist.get_rank() == 0:
        print(f"loss {told[0]:.6f}, norm of all gradients {told[1:].sum().sqrt():.6f}, {dist.get_world_size()} ranks")
    dist.destroy_process_group()
    plait.compat.torch_npu.uninstall()


if __name__ == "__main__":
    main()
