#!/usr/bin/env python3
"""Time per training step of Plait's experts beside those of PyTorch and transformers, in one run, in turn, checked before timed.

    python bench/compare_experts.py layer     one layer on one rank: plain PyTorch with grouped_mm, and Plait
    python bench/compare_experts.py model     small models on one rank: eager, grouped_mm, plait
    python bench/compare_experts.py ep        one layer's experts on 4 ranks (processes): transformers' all_to_all, and Plait

Needs transformers for `model` and `ep`. Memory that PyTorch frees is kept for its next tensors unless --malloc default is given: PyTorch at
its best. Ratios are of minima and of medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
Step = Callable[[], float]


CPU_TIME = "--cpu-time" in sys.argv


def seconds(body: Callable[[], Any]) -> float:
    clock = time.process_time if CPU_TIME else time.perf_counter
    begin = clock()
    body()
    return clock() - begin


def compare(title: str, steps: dict[str, Step], rounds: int) -> None:
    """Runs the steps in turn; the last is the one that is compared with each of the others."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(step())
    *others, ours = steps
    shown = "  ".join(f"{name} {min(t) * 1e3:.2f} ({statistics.median(t) * 1e3:.2f})" for name, t in times.items())
    ratios = "  ".join(
        f"{other}/{ours} {min(times[other]) / min(times[ours]):.2f} ({statistics.median(times[other]) / statistics.median(times[ours]):.2f})"
        for other in others
    )
    print(f"{title}: ms min (median) of {rounds}: {shown};  {ratios}", flush=True)


def check_close(title: str, results: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for result, value in zip(results, wanted, strict=True):
        gap = float((result.double() - value.double()).norm() / value.double().norm())
        if gap > tolerance:
            raise SystemExit(f"{title}: results differ by {gap:.2g}, more than {tolerance}")


def compare_layers(shape: list[int], rows: list[int], dtypes: list[str], rounds: int) -> None:
    from plait import ops

    hidden, width, num_experts, k = shape
    for dtype in dtypes:
        for per_expert in rows:
            tokens = per_expert * num_experts // k
            torch.manual_seed(0)
            x = torch.randn(tokens, hidden).to(DTYPES[dtype]).requires_grad_()
            router = (torch.randn(num_experts, hidden) / hidden**0.5).to(x.dtype).requires_grad_()
            gate_up = (torch.randn(num_experts, 2 * width, hidden) / hidden**0.5).to(x.dtype).requires_grad_()
            down = (torch.randn(num_experts, hidden, width) / width**0.5).to(x.dtype).requires_grad_()
            dy = torch.randn(tokens, hidden).to(x.dtype)
            leaves = [x, router, gate_up, down]

            def plain(chosen: Tensor | None = None) -> Tensor:
                scores = (x @ router.t()).float().softmax(-1)  # noqa: B023
                weights, ids = scores.topk(k) if chosen is None else (scores.gather(1, chosen), chosen)
                weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)  # noqa: B023
                experts, order = ids.flatten().sort()
                ends = torch.bincount(experts, minlength=num_experts).cumsum(0).to(torch.int32)
                gate, up = F.grouped_mm(x[order // k], gate_up.transpose(1, 2), offs=ends).chunk(2, -1)  # noqa: B023
                out = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)  # noqa: B023
                out = out * weights.flatten()[order].unsqueeze(-1)
                return torch.zeros_like(x).index_add(0, order // k, out)  # noqa: B023

            def ours() -> Tensor:
                routing = ops.route(x @ router.t(), k, norm_topk=True)  # noqa: B023
                return ops.moe_layer(x, routing.expert_ids, routing.weights, gate_up.transpose(1, 2), down.transpose(1, 2))  # noqa: B023

            def results_of(layer: Callable[..., Tensor], *arguments: Tensor) -> list[Tensor]:
                y = layer(*arguments)
                return [y.detach(), *torch.autograd.grad(y, leaves, dy)]  # noqa: B023

            title = f"layer {hidden} x {width}, {num_experts} experts, top {k}, {dtype}, {per_expert} rows per expert"
            chosen = ops.route(x @ router.t(), k).expert_ids.long()  # among equal scores of bf16 logits torch may choose others
            check_close(title, results_of(ours), results_of(plain, chosen), 2e-2 if dtype == "bf16" else 1e-4)
            compare(title, {"torch": lambda: seconds(lambda: results_of(plain)), "plait": lambda: seconds(lambda: results_of(ours))}, rounds)


def compare_models(dtypes: list[str], rounds: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import train_moe

    sequences = train_moe.batch_of(train_moe.read_tokens(), 0)
    for name in train_moe.MODELS:
        for dtype in dtypes:
            models = {e: train_moe.make_model(name, DTYPES[dtype], e) for e in ("eager", "grouped_mm", "plait")}

            def step(model: Any) -> Tensor:
                model.zero_grad()
                output = model(input_ids=sequences, labels=sequences)
                output.loss.backward()
                return output.loss.detach()

            losses = {e: step(model) for e, model in models.items()}
            check_close(name, [losses["plait"]], [losses["eager"]], 1e-2 if dtype == "bf16" else 1e-5)
            steps: dict[str, Step] = {e: (lambda m: lambda: seconds(lambda: step(m)))(model) for e, model in models.items()}
            compare(f"{name} {dtype}", steps, rounds)


def run_ep_rank(shape: list[int], rows: list[int], dtypes: list[str], rounds: int) -> None:
    """One of the processes. Both implementations take the slowest rank's time."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from transformers import AutoConfig
    from transformers.distributed.expert_parallel import AllToAllEP
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    import plait.hf

    hidden, width, num_experts, k = shape
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    ep_mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("ep",))["ep"]
    alone = init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "tp"))["tp"]
    config = AutoConfig.for_model("qwen3_moe", hidden_size=hidden, moe_intermediate_size=width, num_experts=num_experts // size)
    config._experts_implementation = "grouped_mm"

    def slowest(body: Callable[[], Any]) -> float:
        dist.barrier()
        own = torch.tensor(seconds(body))
        dist.all_reduce(own, dist.ReduceOp.MAX)
        return float(own)

    for dtype in dtypes:
        for per_expert in rows:
            torch.manual_seed(rank)
            experts: Any = Qwen3MoeExperts(config).to(DTYPES[dtype])
            experts._is_expert_parallel = True
            with torch.no_grad():
                for parameter in experts.parameters():
                    parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
            implementations = {"all_to_all": AllToAllEP, "plait": plait.hf.PlaitEP}
            calls = {name: kind(experts, ep_mesh, alone) for name, kind in implementations.items()}
            tokens = per_expert * num_experts // k // size
            x = torch.randn(tokens, hidden).to(DTYPES[dtype]).requires_grad_()
            ids = torch.rand(tokens, num_experts).topk(k).indices
            weights = torch.rand(tokens, k).to(x.dtype).requires_grad_()
            dy = torch.randn(tokens, hidden).to(x.dtype)

            def results_of(call: Any) -> list[Tensor]:
                y = call(x, ids, weights)  # noqa: B023
                return [y.detach(), *torch.autograd.grad(y, [x, weights, *experts.parameters()], dy)]  # noqa: B023

            title = f"experts on {size} ranks, {hidden} x {width}, {num_experts} experts, top {k}, {dtype}, {per_expert} rows per expert"
            check_close(title, results_of(calls["plait"]), results_of(calls["all_to_all"]), 2e-2 if dtype == "bf16" else 1e-4)
            if rank != 0:
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            compare(title, {n: (lambda c: lambda: slowest(lambda: results_of(c)))(call) for n, call in calls.items()}, rounds)
    dist.destroy_process_group()


def run_ep_ranks(size: int) -> None:
    """This command again as `size` processes, each in a session of its own so that they get the same share of the machine."""
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29537", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // size)))
    command = [sys.executable, *sys.argv]
    ranks = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}, start_new_session=True) for rank in range(size)]
    try:
        failed = any([process.wait() for process in ranks])
    finally:
        for process in ranks:
            process.kill()
    sys.exit(1 if failed else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["layer", "model", "ep"])
    parser.add_argument("--shape", type=int, nargs=4, default=[2048, 512, 32, 4], metavar=("HIDDEN", "WIDTH", "EXPERTS", "TOPK"))
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 32, 8], help="rows per expert")
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--malloc", choices=["kept", "default"], default="kept")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time: for one thread on a machine that others use too")
    options = parser.parse_args()
    if options.malloc == "kept" and os.environ.get("MALLOC_MMAP_MAX_") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEPT)
    if options.what == "layer":
        compare_layers(options.shape, options.rows, options.dtypes, options.rounds)
    elif options.what == "model":
        compare_models(options.dtypes, options.rounds)
    elif "RANK" in os.environ:
        run_ep_rank(options.shape, options.rows, options.dtypes, options.rounds)
    else:
        run_ep_ranks(options.ranks)


if __name__ == "__main__":
    main()
