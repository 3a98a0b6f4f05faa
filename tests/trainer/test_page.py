"""training.html and TensorBoard's events: what a run shows while it trains."""

from __future__ import annotations

import json
import math
import re
import shutil
from array import array
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lxml import html

from tests.trainer.conftest import records_of, small_config
from trainer.data.shards import open_dataset
from trainer.data.text import Tokenizer
from trainer.device import peak_tflops
from trainer.distributed import Ranks
from trainer.metrics import StepLog, progress_line
from trainer.page import Page, chart, points
from trainer.pretrained import load_pretrained
from trainer.train import train
from trainer.validation import windows_of_text


def text_of(page: str) -> str:
    """Return the text of a page, which loads nothing and runs nothing."""
    tree = html.fromstring(page)
    assert not tree.xpath(
        "//script | //link | //img | //iframe | //@src | //@href | //@*[starts-with(name(), 'on')]"
    )
    return tree.text_content()


def record(step: int, **values: float) -> dict[str, float]:
    settings_here = {
        "step": step,
        "loss": 10 / step,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "tokens": 1000,
        "tokens_per_s": 5e4,
    }
    return {**settings_here, "world_size": 1, "time": 1.7e9 + step, **values}


@given(steps=st.integers(1, 3000))
def test_a_curve_has_means_of_its_values_in_512_points(steps: int) -> None:
    curve = points(
        array("d", [part for step in range(1, steps + 1) for part in (step, 5.0 + step)])
    )
    assert len(curve) <= 512
    assert curve[:, 1] == pytest.approx(5 + curve[:, 0])
    assert curve[:, 0].tolist() == sorted(curve[:, 0])


def test_a_long_runs_page_is_small_and_loads_nothing(tmp_path: Path) -> None:
    settings = {"preset": "124M", "note": "<script>alert(1)</script>"}
    run = tmp_path / "A run <1>"
    run.mkdir()
    page = Page(run / "training.html", 100_000, settings)
    for step in range(1, 50_001):
        extra = {"val_loss": 9 / step} if step % 250 == 0 else {"grad_norm": math.nan}
        page.add(record(step, world_size=8 if step < 30_000 else 16, **extra))
    page.write()
    written = (run / "training.html").read_text()
    assert len(written.encode()) < 200_000
    text = text_of(written)
    assert "Training of A run <1>" in text
    assert "50,000 of 100,000" in text
    # Tokens seen.
    assert "50,000,000" in text
    assert "16processes" in text
    assert '"<script>alert(1)</script>"' in text
    assert re.search(r"code[0-9a-f]{12}", text)
    assert 'http-equiv="refresh"' in written
    assert [path.name for path in run.iterdir()] == ["training.html"]
    page.add(record(100_000))
    page.write()
    assert "refresh" not in (run / "training.html").read_text()


@pytest.mark.parametrize("steps", [(1,), (1, 2, 3)])
def test_a_chart_of_equal_values_is_drawn(steps: tuple[int, ...]) -> None:
    drawn = chart(
        "Loss",
        {"training": array("d", [part for step in steps for part in (step, 2.0)])},
        steps[-1],
    )
    assert "nan" not in drawn
    assert drawn.split('points="')[1].split('"')[0].count(",") == len(steps) + 1


def test_a_resumed_run_keeps_its_page_and_events(tmp_path: Path, text_tokens: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    run = tmp_path / "run"

    def trained(steps: int) -> str:
        config = small_config(
            text_tokens, run, batch_tokens=256, max_steps=steps, val_every=2, save_every=2
        )
        train(config)
        return text_of((run / "training.html").read_text())

    text = trained(4)
    assert "Finished" in text
    assert "4 of 4" in text
    assert '"tiny"' in text
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    text = trained(6)
    assert "6 of 6" in text
    assert f"{6 * 256:,}tokens seen" in text
    events = reader.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    records = records_of(run)
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (number, pytest.approx(record["loss"])) for number, record in enumerate(records, 1)
    ]
    assert [event.step for event in events.Scalars("val_loss")] == [2, 4, 6]


PEAKS = {
    "A100-SXM4-80GB": 312.0, "H100 80GB "
    "HBM3": 989.4, "H100 PCIe": 756.0, "H200 NVL": 835.5, "GH200 480GB": 989.4,
    "GeForce RTX 4090": 165.2, "L4": 121.0, "L40S": 362.0, "L40": None, "GeForce RTX 4090 Laptop "
    "GPU": None,
    "H100 80GB HBM3 MIG 1g.10gb": None, "AMD Instinct MI300X": None,
}  # fmt: skip


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
    log.collect()
    log.write(0)
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
    every = windows_of_text(str(path), tokenizer, 32, 64).tolist()
    assert every == [ids[k : k + 33] for k in range(0, len(ids) - 32, 32)]
    windows_of_some = windows_of_text(str(path), tokenizer, 32, 3).tolist()
    assert windows_of_some == [every[0], every[round((len(every) - 1) / 2)], every[-1]]
    config = small_config(
        text_tokens,
        tmp_path / "run",
        val_data=str(path),
        batch_tokens=256,
        max_steps=2,
        val_every=1,
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
    assert "validation bits per byte" in (tmp_path / "run" / "training.html").read_text()
