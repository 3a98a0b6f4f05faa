"""Run by torchrun for test_parallel.py: steps of each piece of the speedrun settings, printed as JSON by rank 0."""

from __future__ import annotations

import dataclasses
import json

import torch

from trainer.data import DocumentBlocks
from trainer.distributed import Ranks, averaging, reduced_when
from trainer.model import GPT, ModelConfig
from trainer.optimizers import make_optimizers

SHAPE = ModelConfig(vocab_size=250, context=32, n_layer=4, n_head=2, width=32)
PIECES: dict[str, dict[str, object]] = {
    "rope": {"rope": True},
    "qk_norm": {"qk_norm": True},
    "activation": {"activation": "relu2"},
    "document_mask": {},
    "muon": {},
}
STEPS, MICRO_BATCHES = 3, 2


def losses(piece: str, kind: str, ranks: Ranks) -> list[float]:
    """The mean loss over the batch of each step, by `kind` of two ranks, or by this one `alone`."""
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(SHAPE, **PIECES[piece])).train()  # type: ignore[arg-type]
    net = model
    if kind == "ddp":
        net = averaging(model, ranks)  # type: ignore[assignment]
    name = "muon" if piece == "muon" else "adamw"
    optimizers = make_optimizers(name, model, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95))
    blocks = DocumentBlocks(249, piece == "document_mask")
    found = []
    for step in range(STEPS):
        ids = torch.randint(250, (MICRO_BATCHES, 4, 33), generator=torch.Generator().manual_seed(step))
        own = ids if kind == "alone" else ids[:, 2 * ranks.rank : 2 * ranks.rank + 2]
        total = torch.zeros(())
        for number, part in enumerate(own):
            with reduced_when(net, number == MICRO_BATCHES - 1):
                inputs, targets = part[:, :-1], part[:, 1:]
                loss = net(inputs, targets, **blocks(inputs)) / MICRO_BATCHES
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found.append(float(total if kind == "alone" else ranks.sum(total) / ranks.world_size))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Ranks.join("cpu") as ranks:
        results = {piece: {"ddp": losses(piece, "ddp", ranks)} for piece in PIECES}
    if ranks.main:
        alone = Ranks(0, 1, torch.device("cpu"))
        print(json.dumps({piece: {**own, "alone": losses(piece, "alone", alone)} for piece, own in results.items()}))
