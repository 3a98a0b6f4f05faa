"""What XLA's processes exchange, by two processes whose chips' collectives are gloo's: a TPU is
not to be had here."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import TINY, flags_of, records_of
from trainer.config import TrainConfig
from trainer.loop import train

REPOSITORY = Path(__file__).resolve().parents[2]

PACKAGE = """
import torch, torch.distributed as dist
def device(): return torch.device("cpu")
def sync(): pass
def launch(work, args=()):
    torch.multiprocessing.start_processes(_run, (work, args), nprocs=2, start_method="spawn")
def _run(number, work, args):
    dist.init_process_group("gloo", rank=number, world_size=2)
    work(number, *args)
    dist.barrier()
    dist.destroy_process_group()
"""
XLA_MODEL = """
import torch.distributed as dist
REDUCE_SUM = "sum"
def rendezvous(tag, payload=b""):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, payload)
    return found
def all_reduce(kind, tensors, scale=1.0):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor.mul_(scale)
"""
RUNTIME = """
import torch.distributed as dist
def world_size(): return dist.get_world_size()
def global_ordinal(): return dist.get_rank()
"""
PROGRAM = """
import json, sys
import torch, torch.distributed as dist
# first: defaults of functions that it imports would keep the group
from trainer.distributed import Ranks
dist.init_process_group("gloo")
ranks = Ranks.join("xla")
model = torch.nn.Linear(3, 2)
for number, p in enumerate(model.parameters()):
    p.grad = torch.full_like(p, float(number + 10 * ranks.rank))
ranks.average_gradients(model)
result = {
    "rank": ranks.rank, "size": ranks.world_size, "main": ranks.is_main, 
    "gradients": [p.grad.flatten().tolist() for p in model.parameters()],
    "any": [ranks.any(ranks.rank == 1), ranks.any(False)], "gather": ranks.gather(f"rank {ranks.rank}"),
    "sum": ranks.sum([1.0, ranks.rank]),
}
open(f"{sys.argv[1]}/{ranks.rank}.json", "w").write(json.dumps(result))
# ends gloo's threads, which abort a process whose interpreter ends before they do
dist.destroy_process_group()
"""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def write_package(folder: Path) -> None:
    """Write a package torch_xla, whose chips are processes of this machine."""
    (folder / "torch_xla" / "core").mkdir(parents=True)
    (folder / "torch_xla" / "__init__.py").write_text(PACKAGE)
    (folder / "torch_xla" / "core" / "__init__.py").write_text("")
    (folder / "torch_xla" / "core" / "xla_model.py").write_text(XLA_MODEL)
    (folder / "torch_xla" / "runtime.py").write_text(RUNTIME)


@pytest.mark.slow
def test_xla_host_trains_on_every_chip_as_one_process_does(
    tmp_path: Path, text_tokens: Path, config: TrainConfig
) -> None:
    write_package(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    run = tmp_path / "run"
    flags = flags_of(data=text_tokens, out=run, device="xla_host", max_steps=4, **TINY)
    command = [sys.executable, "-m", "trainer", *flags, "--dtype", "float32"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "over 2 ranks" in done.stdout
    config_of_one = dataclasses.replace(
        config, out=str(tmp_path / "one"), batch_tokens=256, max_steps=4
    )
    train(config_of_one)
    losses = [record["loss"] for record in records_of(run)]
    assert losses == pytest.approx(
        [record["loss"] for record in records_of(config_of_one.out)], rel=1e-4
    )


@pytest.mark.slow
def test_processes_agree_on_gradients_and_decisions(tmp_path: Path) -> None:
    write_package(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "program.py",
    ]
    done = subprocess.run(
        [*command, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "rank": rank,
            "size": 2,
            "main": rank == 0,
            "gradients": [[5.0] * 6, [6.0] * 2],
            "any": [True, False],
            "gather": ["rank 0", "rank 1"],
            "sum": [2.0, 1.0],
        }
