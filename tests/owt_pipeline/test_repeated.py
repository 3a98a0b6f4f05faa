"""Every DoFn of the graph may run any number of times, at any time, in any overlap: the bytes are the same."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest

from owt_pipeline.pipeline import Run, build
from tests.owt_pipeline.repeating import RepeatingRunner
from tests.owt_pipeline.runs import ask_owt, differing

FLAG = f"--runner={RepeatingRunner.__module__}.{RepeatingRunner.__name__}"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_a_runner_that_repeats_and_drops_makes_the_same_bytes(
    small_config: Path, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(RepeatingRunner, "seed", seed)
    ask_owt("run", tmp_path, small_config, FLAG)
    counts = RepeatingRunner.counts
    assert counts["bundles"] > 30
    assert counts["late"] > 5
    assert counts["dropped"] > 0
    ask_owt("run", tmp_path, small_config)  # removes what late attempts have left
    assert differing(tmp_path, small_run) == []


@pytest.mark.slow
def test_a_local_runner_that_repeats_makes_the_same_bytes(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    """The local pool makes the parts, and the graph holds the lease."""
    with beam.Pipeline(RepeatingRunner()) as pipeline:
        build(pipeline, Run.of(str(tmp_path), str(small_config), workers=2))
    ask_owt("run", tmp_path, small_config)
    assert differing(tmp_path, small_run) == []
