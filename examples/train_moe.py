#!/usr/bin/env python3
"""Trains a small MoE model of transformers on the bytes of a text, its experts spread over the ranks of this machine.

    python examples/train_moe.py --model mixtral --ranks 4 --dispatcher mc2       ranks are threads of this process
    torchrun --nproc-per-node 4 examples/train_moe.py --model mixtral             ranks are processes
    python examples/train_moe.py --experts eager                                  one process, transformers' own experts
"""

import argparse
import copy
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import plait
import plait.hf

TEXT = Path(__file__).parents[1] / "data" / "jargon.txt"
COMMON: dict[str, Any] = dict(
    vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256
)
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5_moe": dict(
        model_type="qwen3_5_moe_text",
        moe_intermediate_size=48,
        shared_expert_intermediate_size=32,
        num_experts=16,
        num_experts_per_tok=4,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    ),
    "qwen3_moe": dict(
        model_type="qwen3_moe",
        intermediate_size=64,
        moe_intermediate_size=48,
        num_experts=16,
        num_experts_per_tok=4,
        norm_topk_prob=True,
    ),
    "mixtral": dict(model_type="mixtral", intermediate_size=96, num_local_experts=8, num_experts_per_tok=2),
}
BATCH, LENGTH = 8, 64  # sequences of all ranks together, and their bytes


def make_model(name: str, dtype: torch.dtype = torch.float32, experts: str = "plait") -> Any:
    """The same weights each time."""
    settings = COMMON | MODELS[name]
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, experts_implementation=experts).to(dtype)


def read_tokens(text: Path = TEXT) -> Tensor:
    return torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()


def batch_of(tokens: Tensor, step: int, rank: int = 0, size: int = 1) -> Tensor:
    """This rank's share of a step's sequences, (BATCH / size, LENGTH)."""
    begins = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([tokens[begin : begin + LENGTH] for begin in begins.chunk(size)[rank]])


def train(model: Any, steps: int, group: plait.Group | None = None) -> list[float]:
    """The loss of each step, the mean over all ranks' tokens."""
    rank, size = (group.rank, group.size) if group else (0, 1)
    tokens = read_tokens()
    # eps far above the roundings of gradients that are nearly 0: AdamW would make whole steps of them, and curves would part.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    losses = []
    for step in range(steps):
        sequences = batch_of(tokens, step, rank, size)
        loss = model(input_ids=sequences, labels=sequences).loss
        optimizer.zero_grad()
        loss.backward()
        if group is not None:
            plait.hf.reduce_gradients(model)
        optimizer.step()
        losses.append(loss.item() if group is None else plait.hf.mean_over_ranks(group, loss.item()))
    return losses


def train_on_ranks(model: Any, steps: int, num_ranks: int, dispatcher: str) -> list[float]:
    """The same with experts spread over ranks that are threads of this process."""
    models = [copy.deepcopy(model) for _ in range(num_ranks)]

    def rank(group: plait.Group) -> list[float]:
        return train(plait.hf.parallelize(models[group.rank], group, dispatcher=dispatcher), steps, group)

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // num_ranks))
    try:
        return plait.run_ranks(num_ranks, rank)[0]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3_5_moe")
    parser.add_argument("--experts", default="plait", help="plait, or an implementation of transformers (eager, grouped_mm), on one rank")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--dispatcher", default="auto")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    model = make_model(options.model, getattr(torch, options.dtype), options.experts)
    leads = True
    if "TORCHELASTIC_RUN_ID" in os.environ:
        group = plait.init()
        leads = group.rank == 0
        losses = train(plait.hf.parallelize(model, group, dispatcher=options.dispatcher), options.steps, group)
    elif options.ranks > 1:
        losses = train_on_ranks(model, options.steps, options.ranks, options.dispatcher)
    else:
        losses = train(model, options.steps)
    if leads:
        for step, loss in enumerate(losses):
            if step % 10 == 0 or step == options.steps - 1:
                print(f"step {step:4d}  loss {loss:.6f}")


if __name__ == "__main__":
    main()
