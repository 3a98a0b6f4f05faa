"""Helpers that run collect and read its output."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.runs import snapshot


@dataclass(frozen=True)
class Collected:
    """The result of a run of collect."""

    workdir: Path
    manifest: Manifest

    @property
    def urls(self) -> list[dict[str, Any]]:
        return self._reader().table().to_pylist()

    @property
    def rejects(self) -> list[dict[str, Any]]:
        return self._reader().table(kind="rejects").to_pylist()

    def bytes(self) -> dict[str, bytes]:
        return snapshot(self.workdir)

    def _reader(self) -> DatasetReader:
        return DatasetReader(Storage(str(self.workdir)), self.manifest)


def collect(workdir: Path, *, workers: int = 1, **options: Any) -> Collected:
    """Run collect in this process."""
    return Collected(
        workdir, run_stage(STAGE, Options(**options), Runtime(Storage(str(workdir)), workers))[0]
    )


def collected(workdir: Path) -> Collected:
    """Return the published result of a run."""
    manifest = read_manifest(Storage(str(workdir)), "urls")
    assert manifest is not None
    return Collected(workdir, manifest)


def start(workdir: Path, *flags: str, **popen: Any) -> subprocess.Popen[str]:
    """Start `owt run --until collect` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "owt_pipeline",
        "run",
        str(workdir),
        "--until",
        "collect",
        *flags,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **popen)
