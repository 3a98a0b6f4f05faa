"""The complete job, from submissions to the report, on each engine: the same files as on this
machine.

The workers run in another process and another environment, which has nothing of this project but
its wheel. The job is submitted by the engine's own runner, which starts a job server.
test_faults.py does the same on Flink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from owt_pipeline.engine.publish import read_log
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from tests.engines.conftest import Jobs, metrics

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PLACES = [("prism", "s3"), ("spark", "gs")]


@pytest.mark.parametrize(("name", "place"), PLACES, ids=map("-".join, PLACES))
def test_an_engine_writes_the_files_of_a_run_on_this_machine(
    name: str, place: str, jobs: Jobs, buckets: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    workdir = Storage(f"{buckets[place]}/{name}")
    jobs.run(request.getfixturevalue(f"on_{name}"), workdir)
    jobs.check(workdir)
    assert workdir.read("run-log.jsonl").count(b'"job"') == 1
    assert [entry["stage"] for entry in read_log(workdir) if entry.get("host")] == list(STAGES)
    assert counted_by_the_runner(workdir) == counted_by_the_manifests(workdir)


def counted_by_the_runner(run: Storage) -> dict[str, Counter[str]]:
    """Each stage's rows as the job's Beam counters have them."""
    rows = ("rows_in", "rows_out", "rejected_")
    return {
        stage: Counter(
            {name: count for name, count in found.items() if name.startswith(rows) and count}
        )
        for stage, found in metrics(run).items()
    }


def counted_by_the_manifests(run: Storage) -> dict[str, Counter[str]]:
    """The same as the ledger has it."""
    found = {}
    for stage in STAGES.values():
        counts = require_manifest(run, stage.output).counts
        rejected = {f"rejected_{reason}": count for reason, count in counts.rejected.items()}
        found[stage.name] = +Counter(
            {"rows_in": counts.entered, "rows_out": counts.left, **rejected}
        )
    return found
