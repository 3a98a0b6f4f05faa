"""Run by torchrun for test_parallel.py: what FSDP2 and DDP do in a step, printed as JSON by rank 0."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.distributed.tensor.debug import CommDebugMode

from trainer.distributed import Ranks, averaging, clip_gradients, reduced_when, shard
from trainer.model import GPT, ModelConfig

SHAPE = ModelConfig(vocab_size=300, context=32, n_layer=8, n_head=4, width=512)  # 13 MB a block; DDP sends 25 at a time
MICRO_BATCHES = 3
# The graphs are what is looked at here, not the code that is made of them.
torch.compile = functools.partial(torch.compile, backend="aot_eager")


def model_and_batch(seed: int) -> tuple[GPT, torch.Tensor]:
    torch.manual_seed(0)
    model = GPT(SHAPE).train()
    return model, torch.randint(SHAPE.vocab_size, (2, 33), generator=torch.Generator().manual_seed(seed))


def micro_batch(net: Any, ids: torch.Tensor, number: int, bfloat16: bool) -> None:
    with reduced_when(net, number == MICRO_BATCHES - 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = net(ids[:, :-1], ids[:, 1:]) / MICRO_BATCHES
        loss.backward()


def take_step(net: Any, ids: torch.Tensor, bfloat16: bool = False) -> None:
    for number in range(MICRO_BATCHES):
        micro_batch(net, ids, number, bfloat16)


def reductions(net: Any, ids: torch.Tensor, bfloat16: bool) -> list[int]:
    """How often gradients travel in each micro-batch of a step. (What is looked at by this mode is not compiled.)"""
    counts = []
    for number in range(MICRO_BATCHES):
        with CommDebugMode() as seen:
            micro_batch(net, ids, number, bfloat16)
        counts.append(sum(count for kind, count in seen.get_comm_counts().items() if "reduce_scatter" in str(kind)))
    return counts


def fsdp(ranks: Ranks, bfloat16: bool) -> dict[str, Any]:
    model, ids = model_and_batch(ranks.rank)
    shard(model, model.h, ranks, bfloat16)
    reduced = reductions(model, ids, bfloat16)
    uncompiled = clip_gradients(model, 0.0).item()

    model, ids = model_and_batch(ranks.rank)
    torch._dynamo.reset()
    counters.clear()
    model.compile_parts()
    shard(model, model.h, ranks, bfloat16)
    take_step(model, ids, bfloat16)
    return {
        "reduced": reduced,
        "uncompiled norm": uncompiled,
        "norm": clip_gradients(model, 0.0).item(),
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "gradient": str(model.h[0].mlp.c_fc.weight.grad.dtype),
    }


def ddp(ranks: Ranks) -> dict[str, Any]:
    model, ids = model_and_batch(ranks.rank)
    model.compile_parts()
    net = averaging(model, ranks)
    events: list[str] = []

    def sent(state, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations that are strings
        events.append("sent")
        return (
            torch.distributed.all_reduce(bucket.buffer() / 2, async_op=True).get_future().then(lambda f: f.value()[0])
        )

    net.register_comm_hook(None, sent)
    for number, block in enumerate(model.h):
        block.register_full_backward_pre_hook(lambda *_, number=number: events.append(f"block {number}"))
    reduced = []
    take_step(net, ids)  # after which DDP makes its buckets, in the order in which gradients came
    net.zero_grad()
    for number in range(MICRO_BATCHES):
        events.clear()
        micro_batch(net, ids, number, False)
        reduced.append(events.count("sent"))
    return {"reduced": reduced, "norm": clip_gradients(model, 0.0).item(), "events": events}


def alone() -> float:
    """The gradient's norm of the same step by one process."""
    batches = torch.cat([model_and_batch(seed)[1] for seed in (0, 1)])
    model, _ = model_and_batch(0)
    model(batches[:, :-1], batches[:, 1:]).backward()
    return clip_gradients(model, 0.0).item()


if __name__ == "__main__":
    ranks = Ranks.join("cpu")
    found = {"fsdp": fsdp(ranks, False), "fsdp in bfloat16": fsdp(ranks, True), "ddp": ddp(ranks), "alone": alone()}
    if ranks.main:
        print(json.dumps(found), flush=True)
    ranks.leave()
