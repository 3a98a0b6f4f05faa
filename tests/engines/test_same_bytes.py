"""The complete job, from submissions to the report, on each engine: the same files as on this machine.

The workers run in another process and another environment, which has nothing of this project but its wheel. Runs on a
disk are submitted to a job server that runs; runs in a bucket by the engine's own runner, which starts one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from owt_pipeline.engine.storage import Storage
from owt_pipeline.stages import ORDER, load
from tests.engines.conftest import Jobs
from tests.engines.engines import Engine
from tests.owt_pipeline.whole_runs import manifest_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PLACES = [("prism", "disk"), ("prism", "gs"), ("spark", "disk"), ("spark", "gs"), ("flink", "disk"), ("flink", "s3")]


@pytest.mark.parametrize(("name", "place"), PLACES, ids=map("-".join, PLACES))
def test_an_engine_writes_the_files_of_a_run_on_this_machine(
    name: str, place: str, jobs: Jobs, buckets: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(f"on_{name}")
    workdir = Storage(f"{tmp_path if place == 'disk' else buckets[place]}/{name}")
    before = engine.jobs()
    jobs.run(engine, engine.flags if place == "disk" else engine.runner, workdir)
    jobs.check(workdir)
    if place == "disk":
        assert engine.jobs() == before + 1
        assert counted_by_the_runner(Path(workdir.uri)) == counted_by_the_manifests(Path(workdir.uri))


def counted_by_the_runner(run: Path) -> dict[str, Counter[str]]:
    """Each stage's rows as the job's Beam counters have them."""
    (entry,) = (
        entry for line in (run / "run-log.jsonl").read_text().splitlines() if "job" in (entry := json.loads(line))
    )
    rows = ("rows_in", "rows_out", "rejected_")
    return {
        stage: Counter({name: count for name, count in found.items() if name.startswith(rows) and count})
        for stage, found in entry["metrics"].items()
    }


def counted_by_the_manifests(run: Path) -> dict[str, Counter[str]]:
    """The same as the ledger has it."""
    found = {}
    for name in ORDER:
        counts = manifest_of(run, load(name).output).counts
        rejected = {f"rejected_{reason}": count for reason, count in counts.rejected.items()}
        found[name] = +Counter({"rows_in": counts.entered, "rows_out": counts.left, **rejected})
    return found
