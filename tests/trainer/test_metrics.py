"""metrics.jsonl and TensorBoard's events: what a run shows while it trains."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import records_of, small_config
from trainer.data.shards import open_dataset
from trainer.data.text import Tokenizer
from trainer.device import peak_tflops
from trainer.distributed import Ranks
from trainer.loop import train
from trainer.metrics import StepLog, progress_line
from trainer.pretrained import load_pretrained
from trainer.validation import windows_of_text


def test_a_resumed_run_keeps_its_events(tmp_path: Path, text_tokens: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    run = tmp_path / "run"

    def trained(steps: int) -> None:
        config = small_config(
            text_tokens, run, batch_tokens=256, max_steps=steps, eval_every=2, save_every=2
        )
        train(config)

    trained(4)
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    trained(6)
    events = reader.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    records = records_of(run)
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (number, pytest.approx(record["loss"])) for number, record in enumerate(records, 1)
    ]
    assert [event.step for event in events.Scalars("val_loss")] == [2, 4, 6]


PEAKS = {
    "A100-SXM4-80GB": 312.0,
    "H100 80GB HBM3": 989.4,
    "H100 PCIe": None,
    "H200 NVL": None,
    "GH200 480GB": None,
    "GB200": None,
    "GeForce RTX 4090": 165.2,
    "GeForce RTX 4090 Laptop GPU": None,
    "H100 80GB HBM3 MIG 1g.10gb": None,
    "AMD Instinct MI300X": None,
}


def test_the_peak_is_of_the_gpu_the_driver_names_or_unknown() -> None:
    assert {name: peak_tflops(f"NVIDIA {name}") for name in PEAKS} == PEAKS


def test_a_step_that_a_killed_run_logged_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    log = StepLog(
        folder=tmp_path,
        start=2,
        settings={"max_steps": 3},
        ranks=Ranks(0, 1, torch.device("cpu")),
        step_tokens=8,
        step_flops=1e9,
        say=print,
    )
    log.add(3, 1e-3, torch.tensor(1.0), torch.tensor(1.0))
    log.flush(0)
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_training_validates_on_evenly_spaced_windows_of_a_text(
    tmp_path: Path, text_tokens: Path
) -> None:
    path = tmp_path / "wiki.valid.raw"
    tokenizer = open_dataset(text_tokens).tokenizer
    path.write_text("The heron is a wading bird of Europe and Asia . \n" * 30)
    ids = [399, *Tokenizer(tokenizer.path).encode(path.read_text())]
    every = [window.ids.tolist() for window in windows_of_text(str(path), tokenizer, 32, 64)]
    assert every == [ids[k : k + 33] for k in range(0, len(ids) - 32, 32)]
    some_windows = windows_of_text(str(path), tokenizer, 32, 3)
    assert [window.ids.tolist() for window in some_windows] == [
        every[0],
        every[round((len(every) - 1) / 2)],
        every[-1],
    ]
    config = small_config(
        text_tokens,
        tmp_path / "run",
        val_data=str(path),
        batch_tokens=256,
        max_steps=2,
        eval_every=1,
    )
    train(config)
    model = load_pretrained(str(tmp_path / "run")).model
    windows = torch.tensor(every)
    with torch.no_grad():
        expected = model(windows[:, :-1], windows[:, 1:]).item()
    last = records_of(tmp_path / "run")[-1]
    assert last["val_loss"] == pytest.approx(expected, rel=1e-5)
    num_bytes = len(Tokenizer(tokenizer.path).decode(windows[:, 1:].flatten().tolist()).encode())
    bits = expected * windows[:, 1:].numel() / math.log(2) / num_bytes
    assert last["val_bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert f"({bits:.4f} bits/byte)" in progress_line(last, 2, torch.device("cpu"))
