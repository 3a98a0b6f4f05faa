"""One small complete run for all tests that only look at one, or change a copy; places where a
run may be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import copy_of, made_once, run_owt, write_sources
from tests.servers.azure import az_bucket
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

BUCKETS = {"s3": s3_bucket, "gs": gcs_bucket, "az": az_bucket}
PLACES = ["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in BUCKETS)]


@pytest.fixture(autouse=True)
def _messages() -> None:
    """What is said on the command line is said in a test: the root's level, which holds
    otherwise, hides Beam's."""
    logging.getLogger("owt").setLevel(logging.INFO)


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "small-sources", write_sources) / "config.toml"


@pytest.fixture(scope="session")
def small_run(small_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = made_once(
        tmp_path_factory,
        "small",
        lambda folder: run_owt("run", folder / "run", small_config, "--workers", 1),
    )
    return copy_of(
        made / "run", tmp_path_factory.mktemp("small-run") / "run"
    )  # commands lock a run, also to read it


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A local folder or a bucket; a test may name some of PLACES."""
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
