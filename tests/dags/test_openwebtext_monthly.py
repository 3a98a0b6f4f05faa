"""The DAG `openwebtext_monthly`: each interval's dump, built on the run of the month before."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

# Not importorskip: Airflow reads its settings when it is imported, and conftest.py has not made them yet.
if importlib.util.find_spec("airflow") is None and "OWT_REQUIRE_AIRFLOW" not in os.environ:
    pytest.skip("Airflow is not installed here: run `make test-dags`", allow_module_level=True)

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = {
    "first": "2023-12",
    "workdir": "/data/runs/{month}",
    "dumps": ["/data/RS_{month}.zst"],
    "num_shards": 4,
    "beam_flags": {"job_name": "owt-{month}"},
}


def dags_of(folder: Path, settings: Any) -> Any:
    """The DAGs of a folder with these settings, as Airflow reads them."""
    from airflow.dag_processing.dagbag import DagBag

    shutil.copytree(REPOSITORY / "dags", folder / "dags")
    if settings is not None:
        (folder / "dags/openwebtext_monthly.json").write_text(json.dumps(settings))
    return DagBag(str(folder / "dags"))


@pytest.fixture
def monthly(airflow_home: Path, tmp_path: Path) -> Any:
    return dags_of(tmp_path, SETTINGS).dags["openwebtext_monthly"]


def rendered(dag: Any, start: datetime) -> Any:
    """The task of the interval that begins at `start`, as it would run."""
    task = dag.get_task("run_month").prepare_for_execution()
    task.render_template_fields({"data_interval_start": start})
    return task


def test_each_month_builds_on_the_one_before(monthly: Any) -> None:
    first = rendered(monthly, datetime(2023, 12, 1, tzinfo=timezone.utc))
    assert first.conf == {
        "workdir": "/data/runs/2023-12",
        "dumps": ["/data/RS_2023-12.zst"],
        "num_shards": 4,
        "beam_flags": {"job_name": "owt-2023-12"},
    }
    second = rendered(monthly, datetime(2024, 1, 1, tzinfo=timezone.utc))
    assert (second.conf["workdir"], second.conf["base"]) == ("/data/runs/2024-01", ["/data/runs/2023-12"])
    assert (first.trigger_dag_id, first.trigger_run_id, second.trigger_run_id) == (
        "openwebtext", "month_2023-12", "month_2024-01"
    )  # fmt: skip


def test_months_go_one_after_the_other_and_a_failed_one_holds_the_next(monthly: Any) -> None:
    task = monthly.get_task("run_month")
    assert (monthly.max_active_runs, monthly.catchup) == (1, True)
    assert (task.depends_on_past, task.wait_for_completion, task.reset_dag_run) == (True, True, True)
    assert monthly.start_date == datetime(2023, 12, 1, tzinfo=timezone.utc)


def test_a_month_can_wait_for_its_dump(airflow_home: Path, tmp_path: Path) -> None:
    dag = dags_of(tmp_path, {**SETTINGS, "days_later": 9}).dags["openwebtext_monthly"]
    assert dag.start_date == datetime(2023, 12, 10, tzinfo=timezone.utc)
    assert rendered(dag, dag.start_date).conf["workdir"] == "/data/runs/2023-12"
    assert "base" not in rendered(dag, dag.start_date).conf


def test_without_settings_there_is_no_schedule(airflow_home: Path, tmp_path: Path) -> None:
    found = dags_of(tmp_path, None)
    assert found.import_errors == {}
    assert list(found.dags) == ["openwebtext"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workdir": "/data/run"}, r"workdir '/data/run' needs {month}"),
        ({"dumps": []}, "openwebtext_monthly.json lacks 'dumps'"),
        ({"days_later": 31}, "days_later is 31, not a whole number from 0 to 27"),
        ({"first": "January"}, "'January' does not match format '%Y-%m'"),
    ],
)
def test_wrong_settings_are_an_error_that_names_them(
    airflow_home: Path, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    (error,) = dags_of(tmp_path, {**SETTINGS, **wrong}).import_errors.values()
    assert message in error
