"""The complete job, from submissions to the report, on each engine: the same files as on this machine.

The workers run in another process and another environment, which has nothing of this project but its wheel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from owt_pipeline.engine.storage import Storage
from tests.engines.conftest import Jobs
from tests.engines.engines import Engine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PLACES = [("prism", "disk"), ("prism", "gs"), ("spark", "disk"), ("spark", "gs"), ("flink", "disk"), ("flink", "s3")]


@pytest.mark.parametrize(("name", "place"), PLACES, ids=map("-".join, PLACES))
def test_an_engine_writes_the_files_of_a_run_on_this_machine(
    name: str, place: str, jobs: Jobs, buckets: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(f"on_{name}")
    workdir = Storage(f"{tmp_path if place == 'disk' else buckets[place]}/{name}")
    jobs.run(engine, workdir)
    jobs.check(workdir)
