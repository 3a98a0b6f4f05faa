"""Fixtures of the pipeline's tests: one small complete run, and the places where a run may be.

Tests that only look at a finished run, or change a copy of it, share the small run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.engine import runner
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.one_process import run_with_beam, without_runner
from tests.owt_pipeline.runs import copy_of, made_once, run_owt, write_sources
from tests.servers.azure import az_bucket
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

BUCKETS = {"s3": s3_bucket, "gs": gcs_bucket, "az": az_bucket}
PLACES = ["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in BUCKETS)]


@pytest.fixture(scope="module", autouse=True)
def _without_runner(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run stages in this process without Beam's runner, except in modules marked `beam`.

    A run of all stages then takes half the CPU time. Commands that are processes use Beam.
    """
    if request.node.get_closest_marker("beam"):
        yield
        return
    with without_runner():
        yield


@pytest.fixture
def with_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stages of one test through Beam's runner, also in a module without the mark."""
    monkeypatch.setattr(runner, "_run_locally", run_with_beam)


@pytest.fixture(autouse=True)
def _messages() -> None:
    """Log the pipeline's messages in tests as on the command line.

    Without a level of its own, the logger takes the root's, which hides information.
    """
    logging.getLogger("owt").setLevel(logging.INFO)


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CONFIG.toml of the small run, next to its sources."""
    return made_once(tmp_path_factory, "small-sources", write_sources) / "config.toml"


@pytest.fixture(scope="session")
def small_run(small_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the demo's pages."""
    shared = made_once(
        tmp_path_factory,
        "small",
        lambda folder: run_owt("run", folder / "run", small_config, "--workers", 1),
    )
    # Commands lock a run even to read it, so each process of tests has a copy.
    return copy_of(shared / "run", tmp_path_factory.mktemp("small-run") / "run")


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A local folder or a bucket. A test may select some of PLACES."""
    if request.param == "disk":
        yield str(tmp_path_factory.mktemp("disk"))
    else:
        with BUCKETS[request.param]() as uri:
            yield uri


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each file that is hashed completely.

    This process forgets the digests that it has computed: another one knows the recorded digests
    only.
    """
    names: list[str] = []
    sha256 = Storage.sha256

    def record(folder: Storage, name: str) -> str:
        names.append(name)
        return sha256(folder, name)

    monkeypatch.setattr(Storage, "sha256", record)
    monkeypatch.setattr("owt_pipeline.storage.folder._sha256_by_file", {})
    return names
