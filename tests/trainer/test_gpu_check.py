"""The command that a GPU's figures come from, tried on a CPU with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def gpu_check(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(REPOSITORY / "benchmarks" / "gpu_check.py"),
        "--out",
        str(out),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_piece_runs_and_a_second_call_repeats_none(tmp_path: Path) -> None:
    tiny = ("--all", "--tiny", "--device", "cpu")
    first = gpu_check(tmp_path, *tiny)
    assert first.returncode == 0, first.stdout + first.stderr
    pieces = json.loads((tmp_path / "gpu.json").read_text())["pieces"]
    assert {"tests", "124M", "checkpoint", "resume", "mask", "prettybig", "1.5B", "curve"} < set(
        pieces
    )
    assert not [name for name, result in pieces.items() if "error" in result]
    assert pieces["resume"]["losses_equal"]
    assert pieces["resume"]["weights_equal"]
    assert pieces["checkpoint"]["wait_s"] > 0
    assert pieces["124M"]["nanogpt_tokens_per_s"] > 0
    assert pieces["all_gpus_muon"]["ranks"] == 2
    assert pieces["all_gpus_muon"]["efficiency"] > 0
    assert all(
        result["tokens_per_s"] > 0 for name, result in pieces.items() if "compile_s" in result
    )
    losses = [loss for _, loss in pieces["curve"]["curve"]]
    assert losses[-1] < losses[0]
    text = (tmp_path / "gpu.md").read_text()
    assert f"| 124M, packed | {pieces['124M']['tokens_per_s']:,} |" in text
    assert "no figure here means anything" in text
    again = gpu_check(tmp_path, *tiny)
    assert again.returncode == 0
    assert again.stdout.count(": done already") == len(pieces)


@pytest.mark.slow
def test_without_a_gpu_the_command_reports_it(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = gpu_check(tmp_path)
    assert done.returncode == 1
    assert done.stderr == "gpu-check: torch finds no CUDA device; run it where there is one\n"
    assert not list(tmp_path.iterdir())
