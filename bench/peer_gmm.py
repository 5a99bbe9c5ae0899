#!/usr/bin/env python3
"""PyTorch beside `plait bench gmm`: grouped_mm, a loop of mm, and one dense mm of the same FLOPs, on the CPU.

Needs torch; prints one JSON line per case:
  {"case": "fwd_2048x512_m32_uni", "op": "fwd", "dtype": "bf16", "threads": 1, "experts": E, "rows_per_expert": m,
   "gflop": x, "grouped": GF/s, "loop": GF/s, "dense": GF/s, "ms": {...}}

ops   fwd   X[R,H] @ W[e][H,N]          -> [R,N]     (N = 2*I, the gate_up projection)
      dx    dY[R,N] @ W[e][H,N]^T       -> [R,H]
      dw    X[rows e]^T @ dY[rows e]    -> [E,H,N]
The forms are interleaved (A B C A B C ...) and the minimum is taken. --cases takes a comma list of substrings, or re:PATTERN; a case
runs if any of them matches. --list prints the names.

Weights are C-ordered [E,H,N] ("kn"); --wlayout nk stores [E,N,H], the order of nn.Linear, and passes the transposed view, as model code does.

grouped_mm returns a fresh tensor; "loop" and "dense" write into a reused one. Above 32 MB glibc gives fresh memory back to the system, and the
page faults can cost more than the product (mostly in dw). For torch at its best run also with
MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456; "alloc" tells which it was.
"""

import argparse
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
SHAPES = [(2048, 512), (1024, 512), (4096, 1536)]
ROWS = [1, 4, 8, 32, 128, 256, 1024]
SKEWS = ["uni", "zipf"]
MAX_ROUNDS = 200

Form = Callable[[], object]


def num_experts(hidden: int, intermediate: int, rows: int, args: argparse.Namespace, dtype: str) -> int:
    """As many experts (power of two, 2 to 64) as fit the budgets of weights and rows."""
    item = DTYPES[dtype].itemsize
    experts = 64
    while experts > 2 and (experts * hidden * 2 * intermediate * item > args.weights_mb * 2**20 or experts * rows > args.max_rows):
        experts //= 2
    return experts


def rows_per_expert(experts: int, rows: int, skew: str) -> list[int]:
    if skew == "uni":
        return [rows] * experts
    weights = [1.0 / (rank + 1) for rank in range(experts)]  # Zipf with exponent 1, in a fixed random order
    counts = [int(experts * rows * w / sum(weights)) for w in weights]
    counts[0] += experts * rows - sum(counts)
    order = torch.randperm(experts, generator=torch.Generator().manual_seed(7)).tolist()
    return [counts[i] for i in order]


def make_weights(experts: int, k: int, n: int, dtype: torch.dtype, layout: str) -> torch.Tensor:
    w = torch.empty((experts, n, k) if layout == "nk" else (experts, k, n), dtype=dtype)
    base = torch.randn(w.shape[1:]) * 0.02
    for g in range(experts):  # cheap to make, neither constant nor zero
        w[g] = base * (1 + g / 64)
    return w.transpose(1, 2) if layout == "nk" else w


def make_forms(op: str, hidden: int, n: int, counts: list[int], dtype: torch.dtype, layout: str) -> dict[str, Form]:
    total = sum(counts)
    ends = list(itertools.accumulate(counts))
    offs = torch.tensor(ends, dtype=torch.int32)
    groups = [(g, end - count, end) for g, (end, count) in enumerate(zip(ends, counts, strict=True)) if count]
    x = torch.randn(total, hidden).to(dtype)
    dy = torch.randn(total, n).to(dtype)
    if op == "dw":
        xt = x.t()
        dw = torch.empty(len(counts), hidden, n, dtype=dtype)

        def dw_loop() -> None:
            for g, begin, end in groups:
                torch.mm(xt[:, begin:end], dy[begin:end], out=dw[g])

        return {"grouped": lambda: F.grouped_mm(xt, dy, offs=offs), "loop": dw_loop, "dense": lambda: torch.mm(xt, dy, out=dw[0])}

    w = make_weights(len(counts), hidden, n, dtype, layout)
    rows, weight = (x, w) if op == "fwd" else (dy, w.transpose(1, 2))
    out = torch.empty(total, weight.shape[2], dtype=dtype)

    def loop() -> None:
        for g, begin, end in groups:
            torch.mm(rows[begin:end], weight[g], out=out[begin:end])

    return {"grouped": lambda: F.grouped_mm(rows, weight, offs=offs), "loop": loop, "dense": lambda: torch.mm(rows, weight[0], out=out)}


def best_times(forms: dict[str, Form], clock: Callable[[], float], min_rounds: int, soft_seconds: float) -> dict[str, float]:
    best = {name: float("inf") for name in forms}
    for form in forms.values():
        form()
    begin = time.perf_counter()
    for done in range(MAX_ROUNDS):
        spent = time.perf_counter() - begin
        if (done >= min_rounds and spent > soft_seconds) or (done >= 3 and spent > 4 * soft_seconds):
            break
        for name, form in forms.items():
            start = clock()
            form()
            best[name] = min(best[name], clock() - start)
    return best


def all_cases(args: argparse.Namespace) -> Iterator[tuple[str, str, str, int, int, int, str]]:
    filters = [f for f in args.cases.split(",") if f]
    for dtype, op, (hidden, intermediate), rows, skew in itertools.product(args.dtype.split(","), args.ops.split(","), SHAPES, ROWS, SKEWS):
        name = f"{op}_{hidden}x{intermediate}_m{rows}_{skew}"
        wanted = not filters or any(re.search(f[3:], name) if f.startswith("re:") else f in name for f in filters)
        if wanted and not (skew == "zipf" and rows < 4):
            yield name, dtype, op, hidden, intermediate, rows, skew


def run_case(name: str, dtype: str, op: str, hidden: int, intermediate: int, rows: int, skew: str, args: argparse.Namespace) -> dict[str, object]:
    experts = num_experts(hidden, intermediate, rows, args, dtype)
    counts = rows_per_expert(experts, rows, skew)
    flop = 2.0 * sum(counts) * hidden * 2 * intermediate
    record: dict[str, object] = {
        "case": name, "op": op, "dtype": dtype, "threads": args.threads, "clock": args.clock,
        "alloc": "kept" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else "default", "wlayout": args.wlayout, "experts": experts,
        "rows_per_expert": rows, "max_rows": max(counts), "gflop": round(flop * 1e-9, 3),
    }
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    try:
        forms = make_forms(op, hidden, 2 * intermediate, counts, DTYPES[dtype], args.wlayout)
        best = best_times(forms, clock, args.reps, args.seconds)
        record |= {form: round(flop / seconds * 1e-9, 2) for form, seconds in best.items()}
        record["ms"] = {form: round(seconds * 1e3, 3) for form, seconds in best.items()}
    except (RuntimeError, TypeError, AttributeError) as error:  # a case that torch refuses is a result too
        record["error"] = f"{type(error).__name__}: {str(error)[:160]}"
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="bf16,f32")
    parser.add_argument("--cases", default="", help="comma list of substrings (or re:PATTERN); a case runs if any matches")
    parser.add_argument("--ops", default="fwd,dx,dw")
    parser.add_argument("--wlayout", default="kn", choices=["kn", "nk"])
    parser.add_argument("--weights-mb", type=int, default=128, help="cap on the weights of one case")
    parser.add_argument("--max-rows", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.4, help="soft time per case")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: CPU time of this thread, for one thread on a busy machine")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.clock == "cpu" and args.threads != 1:
        parser.error("--clock cpu needs --threads 1")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for case in all_cases(args):
        print(case[0] if args.list else json.dumps(run_case(*case, args)), flush=True)


if __name__ == "__main__":
    main()
