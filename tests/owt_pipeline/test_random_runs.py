"""A random program of commands ends as a fresh run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.owt_pipeline.one_process import without_runner
from tests.owt_pipeline.random_inputs import write_inputs
from tests.owt_pipeline.random_runs import Program

pytestmark = pytest.mark.beam

_SEEDS = range(50)
_WITH_KILLS = range(100, 104)
_WITH_BEAM = range(200, 202)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random-runs")
    write_inputs(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", _SEEDS)
def test_a_random_program_ends_as_a_fresh_run(seed: int, inputs: Path, tmp_path: Path) -> None:
    with without_runner():
        Program(seed, inputs, tmp_path).execute()


@pytest.mark.slow
@pytest.mark.parametrize("seed", _WITH_KILLS)
def test_a_random_program_with_kills_ends_as_a_fresh_run(
    seed: int, inputs: Path, tmp_path: Path
) -> None:
    with without_runner():
        Program(seed, inputs, tmp_path, has_kills=True).execute()


@pytest.mark.slow
@pytest.mark.parametrize("seed", _WITH_BEAM)
def test_a_random_local_program_ends_as_a_fresh_run(
    seed: int, inputs: Path, tmp_path: Path
) -> None:
    Program(seed, inputs, tmp_path).execute()
