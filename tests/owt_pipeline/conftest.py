"""One small complete run for all tests that only look at one, or change a copy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.owt_pipeline.runs import copy_of, made_once, run_owt, write_sources


@pytest.fixture(autouse=True)
def _messages() -> None:
    """What is said on the command line is said in a test: the root's level, which holds otherwise, hides Beam's."""
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
    return copy_of(made / "run", tmp_path_factory.mktemp("small-run") / "run")  # commands lock a run, also to read it
