"""The loss on a text of the user's own, while a run trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import records_of, small_config
from trainer.pretrained import Tokenizer, load_pretrained
from trainer.shards import open_dataset
from trainer.train import train
from trainer.validation import windows_of_text


def test_training_reports_the_loss_over_evenly_spaced_windows_of_the_text(tmp_path: Path, text_tokens: Path) -> None:
    path, tokenizer = tmp_path / "wiki.valid.raw", open_dataset(text_tokens).tokenizer
    path.write_text("The heron is a wading bird of Europe and Asia . \n" * 30)
    ids = [399, *Tokenizer(tokenizer.path).encode(path.read_text())]
    every = windows_of_text(str(path), tokenizer, 32, 64).tolist()
    assert every == [ids[k : k + 33] for k in range(0, len(ids) - 32, 32)]
    some = windows_of_text(str(path), tokenizer, 32, 3).tolist()
    assert some == [every[0], every[round((len(every) - 1) / 2)], every[-1]]
    config = small_config(text_tokens, tmp_path / "run", val_data=str(path), batch_tokens=256, max_steps=2, val_every=1)
    train(config)
    model, windows = load_pretrained(str(tmp_path / "run")).model, torch.tensor(every)
    with torch.no_grad():
        wanted = model(windows[:, :-1], windows[:, 1:]).item()
    last = records_of(tmp_path / "run")[-1]
    assert last["val_loss"] == pytest.approx(wanted, rel=1e-5)
