"""Reddit month by month: each interval triggers `openwebtext` for its dump, built on the previous month.

This DAG exists if `openwebtext_monthly.json` is next to this file, with the parameters of `openwebtext`, in which
`{month}` is replaced by the interval's month, and `first`, the first month:

    {"first": "2024-01", "workdir": "gs://bucket/runs/{month}", "dumps": ["gs://bucket/dumps/RS_{month}.zst"]}

The first month's run builds on nothing (or on the runs in `base`), every other one on the previous month's run. Months
run one after the other, and a failed one blocks the next: clear its task to continue where it stopped. A month's run
begins when the month ends, or `days_later` (at most 27) days after that, to wait for the dump.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, task

SETTINGS = Path(__file__).with_suffix(".json")
OWN = ("first", "days_later")
"""The settings that are not parameters of `openwebtext`."""


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a file; raises ValueError for invalid ones."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    for name in ("first", "workdir", "dumps"):
        if not settings.get(name):
            raise ValueError(f"{path.name} lacks '{name}'")
    if "{month}" not in settings["workdir"]:
        raise ValueError(f"{path.name}: workdir {settings['workdir']!r} needs {{month}}, since each month is a run")
    if settings.get("days_later", 0) not in range(28):
        raise ValueError(f"{path.name}: days_later is {settings['days_later']!r}, not a whole number from 0 to 27")
    datetime.strptime(settings["first"], "%Y-%m")
    return settings


def of_month(value: Any, month: str) -> Any:
    """A setting with `{month}` replaced."""
    if isinstance(value, str):
        return value.replace("{month}", month)
    if isinstance(value, list):
        return [of_month(item, month) for item in value]
    return {name: of_month(item, month) for name, item in value.items()} if isinstance(value, dict) else value


def conf_of(settings: dict[str, Any], start: datetime) -> dict[str, Any]:
    """The parameters of `openwebtext` for the month that begins at `start`."""
    month = f"{start:%Y-%m}"
    conf = {name: of_month(value, month) for name, value in settings.items() if name not in OWN}
    if month != settings["first"]:
        before = f"{start.replace(day=1) - timedelta(days=1):%Y-%m}"
        conf["base"] = [of_month(settings["workdir"], before)]
    return conf


@task
def parameters(data_interval_start: Any = None) -> dict[str, Any]:
    """The parameters of the run for its interval."""
    return conf_of(read_settings(SETTINGS), data_interval_start)


if SETTINGS.exists():
    given = read_settings(SETTINGS)
    day = 1 + given.get("days_later", 0)
    with DAG(
        dag_id="openwebtext_monthly",
        description="Each month's dump, built on the previous month",
        doc_md=__doc__,
        schedule=CronDataIntervalTimetable(f"0 0 {day} * *", timezone="UTC"),
        start_date=datetime.strptime(given["first"], "%Y-%m").replace(day=day, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
        tags=["openwebtext", "beam"],
    ) as dag:
        TriggerDagRunOperator(
            task_id="run_month",
            trigger_dag_id="openwebtext",
            trigger_run_id="month_{{ data_interval_start.strftime('%Y-%m') }}",
            conf=parameters(),  # type: ignore[arg-type]  # the task's result
            reset_dag_run=True,
            wait_for_completion=True,
            deferrable=True,
            depends_on_past=True,
        )
