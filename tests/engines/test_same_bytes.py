"""The complete job, from submissions to the report, writes the same files on each engine.

The workers run in another process and in an environment that has nothing of this project except its
wheel. The engine's own runner starts a job server and submits the job. test_faults.py does the same
on Flink.
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
    """Return the rows of each stage, from the Beam counters of the job."""
    prefixes = ("rows_in", "rows_out", "rejected_")
    rows_by_stage = {}
    for stage, counters in metrics(run).items():
        rows = {name: count for name, count in counters.items() if name.startswith(prefixes)}
        # The unary plus leaves out zeros.
        rows_by_stage[stage] = +Counter(rows)
    return rows_by_stage


def counted_by_the_manifests(run: Storage) -> dict[str, Counter[str]]:
    """Return the rows of each stage, from the manifests."""
    rows_by_stage = {}
    for stage in STAGES.values():
        counts = require_manifest(run, stage.output).counts
        rows = Counter(rows_in=counts.entered, rows_out=counts.left)
        for reason, count in counts.rejected.items():
            rows[f"rejected_{reason}"] = count
        rows_by_stage[stage.name] = +rows
    return rows_by_stage
