"""The complete job, from submissions to the report, on each engine: the same files as on this machine.

The workers run in another process and another environment, which has nothing of this project but its wheel. Runs on a
disk are submitted to a job server that runs; runs in a bucket by the engine's own runner, which starts one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from owt_pipeline.engine.publish import read_log
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.stages import ORDER, load
from owt_pipeline.storage.folder import Storage
from tests.engines.conftest import Jobs, metrics
from tests.engines.engines import Engine

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
    assert workdir.read("run-log.jsonl").count(b'"job"') == 1
    assert [entry["stage"] for entry in read_log(workdir) if entry.get("host")] == list(ORDER)
    if place == "disk":  # elsewhere the runner has started, and ended, a job server of its own
        assert engine.jobs() == before + 1
    assert counted_by_the_runner(workdir) == counted_by_the_manifests(workdir)


def counted_by_the_runner(run: Storage) -> dict[str, Counter[str]]:
    """Each stage's rows as the job's Beam counters have them."""
    rows = ("rows_in", "rows_out", "rejected_")
    return {
        stage: Counter({name: count for name, count in found.items() if name.startswith(rows) and count})
        for stage, found in metrics(run).items()
    }


def counted_by_the_manifests(run: Storage) -> dict[str, Counter[str]]:
    """The same as the ledger has it."""
    found = {}
    for name in ORDER:
        counts = require_manifest(run, load(name).output).counts
        rejected = {f"rejected_{reason}": count for reason, count in counts.rejected.items()}
        found[name] = +Counter({"rows_in": counts.entered, "rows_out": counts.left, **rejected})
    return found
