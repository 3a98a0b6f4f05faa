"""Run by torchrun for test_parallel.py: what DDP does in a step, printed as JSON by rank 0."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

from trainer.distributed import Ranks, averaging, reduced_when
from trainer.model import GPT, ModelConfig

SHAPE = ModelConfig(vocab_size=300, context=32, n_layer=8, n_head=4, width=512)  # 13 MB a block; DDP sends 25 at a time
MICRO_BATCHES = 3
# The graphs are what is looked at here, not the code that is made of them.
torch.compile = functools.partial(torch.compile, backend="aot_eager")


def model_and_batch(seed: int) -> tuple[GPT, torch.Tensor]:
    torch.manual_seed(0)
    model = GPT(SHAPE).train()
    return model, torch.randint(SHAPE.vocab_size, (2, 33), generator=torch.Generator().manual_seed(seed))


def norm_of(model: GPT) -> float:
    return torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item()


def micro_batch(net: Any, ids: torch.Tensor, number: int) -> None:
    with reduced_when(net, number == MICRO_BATCHES - 1):
        loss = net(ids[:, :-1], ids[:, 1:]) / MICRO_BATCHES
        loss.backward()


def take_step(net: Any, ids: torch.Tensor) -> None:
    for number in range(MICRO_BATCHES):
        micro_batch(net, ids, number)


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
        micro_batch(net, ids, number)
        reduced.append(events.count("sent"))
    return {"reduced": reduced, "norm": norm_of(model), "events": events}


def alone() -> float:
    """The gradient's norm of the same step by one process."""
    batches = torch.cat([model_and_batch(seed)[1] for seed in (0, 1)])
    model, _ = model_and_batch(0)
    model(batches[:, :-1], batches[:, 1:]).backward()
    return norm_of(model)


if __name__ == "__main__":
    ranks = Ranks.join("cpu")
    found = {"ddp": ddp(ranks), "alone": alone()}
    if ranks.main:
        print(json.dumps(found), flush=True)
    ranks.leave()
