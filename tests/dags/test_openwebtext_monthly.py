"""The DAG `openwebtext_monthly` adds the dump of each interval to one run."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.dags.inputs import PYTHON, manifest, write_dump, write_pages

REPOSITORY = Path(__file__).resolve().parents[2]
ALL_BUT_COLLECT = "(?!collect$).*"
SETTINGS = {
    "first": "2023-12",
    "run": "/data/run",
    "dumps": ["/data/RS_{month}.zst"],
    "num_shards": 4,
    "beam_flags": {"job_name": "owt-{month}"},
}


def dags_of(folder: Path, settings: Any) -> Any:
    """Return the DAGs of a folder with these settings, as Airflow reads them."""
    from airflow.dag_processing.dagbag import DagBag

    shutil.copytree(REPOSITORY / "dags", folder / "dags")
    if settings is not None:
        (folder / "dags/openwebtext_monthly.json").write_text(json.dumps(settings))
    return DagBag(str(folder / "dags"))


@pytest.fixture
def monthly(airflow_home: Path, tmp_path: Path) -> Any:
    """The DAG with SETTINGS."""
    return dags_of(tmp_path, SETTINGS).dags["openwebtext_monthly"]


def parameters_of(dag: Any, start: datetime) -> Any:
    """Return the parameters that the interval from `start` on gives to `openwebtext`."""
    task = dag.get_task("run_month").prepare_for_execution()
    task.render_template_fields({"data_interval_start": start})
    return task.conf


def runs_until(dag: Any, end: datetime) -> Any:
    """Return the runs of a DAG, from which `airflow backfill` takes its intervals."""
    from airflow.serialization.serialized_objects import DagSerialization

    scheduled = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    return list(scheduled.iter_dagrun_infos_between(scheduled.start_date, end))


def test_each_month_is_added_to_the_run(monthly: Any) -> None:
    assert parameters_of(monthly, datetime(2024, 2, 1, tzinfo=timezone.utc)) == {
        "run": "/data/run",
        "dumps": ["/data/RS_2024-02.zst"],
        "num_shards": 4,
        "beam_flags": {"job_name": "owt-2024-02"},
        "add": True,
    }
    task = monthly.get_task("run_month").prepare_for_execution()
    task.render_template_fields({"data_interval_start": datetime(2024, 1, 1, tzinfo=timezone.utc)})
    assert (task.trigger_dag_id, task.trigger_run_id) == ("openwebtext", "month_2024-01")
    assert (task.depends_on_past, task.wait_for_completion, task.reset_dag_run) == (
        True,
        True,
        True,
    )
    assert (monthly.max_active_runs, monthly.catchup) == (1, True)
    assert monthly.start_date == datetime(2023, 12, 1, tzinfo=timezone.utc)


# It has three runs, on a machine that may be busy.
@pytest.mark.timeout(900)
def test_a_backfill_of_three_months_makes_three_generations(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each interval of a backfill runs `openwebtext` with the parameters of its task, in order."""
    monkeypatch.setenv("AIRFLOW_VAR_OWT_PYTHON", PYTHON)
    urls = write_pages(tmp_path / "pages.warc.gz")
    months = ["2023-12", "2024-01", "2024-02"]
    for number, month in enumerate(months):
        # A month's dump also has the first URL of the next month.
        write_dump(tmp_path / f"RS_{month}.zst", urls[4 * number : 4 * number + 5])
    settings = {
        "first": months[0],
        "run": f"{tmp_path}/run",
        "dumps": [f"{tmp_path}/RS_{{month}}.zst"],
        "pages_from": [str(tmp_path / "pages.warc.gz")],
        "num_shards": 2,
        "min_tokens": 20,
        "workers": 1,
    }
    dags = dags_of(tmp_path, settings).dags
    end = datetime(2024, 2, 1, tzinfo=timezone.utc)
    intervals = [info.data_interval for info in runs_until(dags["openwebtext_monthly"], end)]
    assert [f"{interval.start:%Y-%m}" for interval in intervals] == months
    counts = []
    # The last one is a month that is run again after a later one.
    for interval in [*intervals, intervals[0]]:
        parameters = parameters_of(dags["openwebtext_monthly"], interval.start)
        dag = dags["openwebtext"]
        assert (
            dag.test(run_conf=parameters, mark_success_pattern=ALL_BUT_COLLECT).state == "success"
        )
        counts.append(manifest(tmp_path / "run", "urls")["counts"])
    assert [count["left"] for count in counts] == [5, 9, 12, 12]
    assert [count["rejected"].get("seen_before", 0) for count in counts] == [0, 1, 2, 2]
    root = json.loads((tmp_path / "run/ledger/manifest.json").read_text())
    names = [
        [source["name"] for source in generation["sources"]] for generation in root["generations"]
    ]
    assert names == [[f"RS_{month}.zst"] for month in months]


def test_a_month_can_wait_for_its_dump(airflow_home: Path, tmp_path: Path) -> None:
    dag = dags_of(tmp_path, {**SETTINGS, "schedule": "0 0 10 * *"}).dags["openwebtext_monthly"]
    info = runs_until(dag, datetime(2024, 2, 1, tzinfo=timezone.utc))[0]
    assert f"{info.run_after:%Y-%m-%d}" == "2024-01-10"
    assert parameters_of(dag, info.data_interval.start)["dumps"] == ["/data/RS_2023-12.zst"]
