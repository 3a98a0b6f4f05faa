from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.metrics import Metrics, mfu, peak_tflops, progress_line


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-PCIE-40GB", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_the_peak_is_that_of_the_gpu_the_driver_names(name: str, peak: float) -> None:
    assert peak_tflops(name) == peak


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10",
        "NVIDIA L40",
        "NVIDIA H20",
        "NVIDIA B300",
        "Tesla V100-SXM2-16GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AMD Instinct MI300X",
    ],
)
def test_mfu_is_unknown_for_a_gpu_that_is_not_in_the_table(name: str) -> None:
    assert peak_tflops(name) is None


def test_mfu_is_unknown_for_a_cpu() -> None:
    assert mfu(1e12, torch.device("cpu")) is None


def test_on_a_gpu_whose_peak_is_unknown_the_progress_line_says_so() -> None:
    record = {"step": 3, "loss": 2.0, "lr": 1e-3, "grad_norm": 1.0, "tokens": 8, "tokens_per_s": 4.0, "memory_gb": 1.0}
    assert "  MFU unknown  " in progress_line(record | {"mfu": None}, 5, torch.device("cuda"))
    assert "  MFU 41.2%  " in progress_line(record | {"mfu": 0.412}, 5, torch.device("cuda"))
    assert "MFU" not in progress_line(record | {"mfu": None}, 5, torch.device("cpu"))


def test_a_step_that_a_killed_run_logged_is_logged_once_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    metrics = Metrics(tmp_path, 2, {}, 3, print)
    metrics.write({"step": 3, "loss": 1.0})
    metrics.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
