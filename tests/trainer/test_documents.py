"""Documents packed into one window do not see each other, where that is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.conftest import records_of
from trainer import train
from trainer.config import TrainConfig
from trainer.data.loader import DocumentBlocks, attention_mask, block_mask
from trainer.model import GPT, ModelConfig

EOT = 202
SHAPE = ModelConfig(vocab_size=203, block_size=48, n_layer=3, n_head=2, n_embd=32)
BLOCKS = DocumentBlocks(EOT, mask=True)
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def packed_window(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a window (1, T) and its documents.

    The first is the rest of one, the others begin with end-of-text.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randint(EOT, (length,), generator=generator) for length in lengths]
    documents = [parts[0]] + [torch.cat([torch.tensor([EOT]), part]) for part in parts[1:]]
    documents = [document for document in documents if len(document)]
    return torch.cat([*documents, torch.tensor([EOT])])[None, : SHAPE.block_size], documents


@given(lengths=LENGTHS, seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_with_the_mask_a_documents_logits_ignore_the_others(lengths: list[int], seed: int) -> None:
    # Rotary positions are relative. Learned ones would continue over the window.
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(SHAPE, rope=True)).eval()
    window, documents = packed_window(lengths, seed)
    with torch.no_grad():
        together = model(window, **BLOCKS(window))[0]
        start = 0
        for document in documents:
            alone = (
                model(document[None, : window.shape[1] - start])[0]
                if start < window.shape[1]
                else together[:0]
            )
            torch.testing.assert_close(
                together[start : start + len(alone)], alone, rtol=1e-4, atol=1e-5
            )
            start += len(document)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("lengths", [[0, 5, 0, 12, 9], [30, 4]], ids=str)
def test_flex_attention_gives_the_boolean_masks_logits(lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = GPT(SHAPE).eval()
    window, _ = packed_window(lengths)
    numbers = (window == EOT).cumsum(1)
    with torch.no_grad():
        plain, blocks = (
            model(window, mask=mask) for mask in (attention_mask(numbers), block_mask(numbers))
        )
    torch.testing.assert_close(plain, blocks, rtol=1e-4, atol=1e-5)


def test_a_run_with_the_mask_learns_and_is_evaluated_with_it(
    text_tokens: Path, tmp_path: Path
) -> None:
    losses = {}
    for name, flags in {"plain": {}, "masked": {"document_mask": True}}.items():
        config = TrainConfig(
            data=(str(text_tokens),),
            out=str(tmp_path / name),
            preset="tiny",
            block_size=64,
            batch_tokens=512,
            device_batch_size=4,
            max_steps=30,
            eval_every=15,
            device="cpu",
            **flags,
        )
        train(config)
        records = records_of(tmp_path / name)
        assert records[-1]["loss"] < records[0]["loss"] - 0.5
        losses[name] = records[-1]["val_loss"]
    assert losses["plain"] != losses["masked"]
