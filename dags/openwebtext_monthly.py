"""Reddit month by month: each interval adds its dump to one run, as another generation.

It triggers the DAG `openwebtext`.

This DAG exists if `openwebtext_monthly.json` is next to this file, with the parameters of
`openwebtext`, and `first`, the first month. An item of a list with `{month}` is repeated for each
month from the first on; elsewhere, `{month}` is the interval's month:

    {"first": "2024-01", "run": "gs://bucket/run", "dumps": ["gs://bucket/dumps/RS_{month}.zst"]}

Months run one after the other, and a failed one blocks the next. Clear its task to continue where
it stopped. Once a later month was added, an earlier month cannot be run again by itself. A month is
added when it ends, or `days_later` (at most 27) days after that, to wait for the dump.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, task

SETTINGS = Path(__file__).with_suffix(".json")
NOT_PARAMETERS = ("first", "days_later")
"""The settings that are not parameters of `openwebtext`."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a file; raise ValueError for invalid ones."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    for name in ("first", "run", "dumps"):
        if not settings.get(name):
            raise ValueError(f"{path.name} lacks '{name}'")
    if "{month}" in settings["run"]:
        raise ValueError(
            f"{path.name}: run {settings['run']!r} has {{month}}, but one run has all months"
        )
    if not any("{month}" in item for item in settings["dumps"]):
        raise ValueError(
            f"{path.name}: dumps {settings['dumps']!r} need {{month}}, since each month has a dump "
            "of its own"
        )
    # Every month has a day 28, so the DAG starts in each.
    if settings.get("days_later", 0) not in range(28):
        raise ValueError(
            f"{path.name}: days_later is {settings['days_later']!r}, not a whole number from 0 to "
            "27"
        )
    datetime.strptime(settings["first"], "%Y-%m")
    return settings


def months(first: str, last: str) -> list[str]:
    """Return all months from the first to the last, as YYYY-MM."""
    numbers = range(_number_of(first), _number_of(last) + 1)
    return [f"{number // 12}-{number % 12 + 1:02}" for number in numbers]


def _number_of(month: str) -> int:
    """Return the number of a month, counted from year 0."""
    year, month_of_year = month.split("-")
    return int(year) * 12 + int(month_of_year) - 1


def replaced(value: Any, months_so_far: list[str]) -> Any:
    """Return a setting with `{month}` replaced by the last month.

    An item of a list is repeated for each month, so that a run names all of its dumps.
    """
    if isinstance(value, str):
        return value.replace("{month}", months_so_far[-1])
    if isinstance(value, list):
        items: list[str] = []
        for item in value:
            texts = [str(item).replace("{month}", month) for month in months_so_far]
            # An item without `{month}` is the same for all of them.
            items += dict.fromkeys(texts)
        return items
    if isinstance(value, dict):
        return {name: replaced(item, months_so_far) for name, item in value.items()}
    return value


def conf_of(settings: dict[str, Any], start: datetime) -> dict[str, Any]:
    """Return the parameters of `openwebtext` for the month that begins at `start`."""
    months_so_far = months(settings["first"], f"{start:%Y-%m}")
    conf = {}
    for name, value in settings.items():
        if name not in NOT_PARAMETERS:
            conf[name] = replaced(value, months_so_far)
    return {**conf, "add": True}


@task
def parameters(data_interval_start: Any = None) -> dict[str, Any]:
    """Return the parameters of the run for its interval."""
    return conf_of(read_settings(SETTINGS), data_interval_start)


if SETTINGS.exists():
    monthly_settings = read_settings(SETTINGS)
    first_month = datetime.strptime(monthly_settings["first"], "%Y-%m")
    day = 1 + monthly_settings.get("days_later", 0)
    with DAG(
        dag_id="openwebtext_monthly",
        description="Each month's dump, added to one run",
        doc_md=__doc__,
        schedule=CronDataIntervalTimetable(f"0 0 {day} * *", timezone="UTC"),
        start_date=first_month.replace(day=day, tzinfo=timezone.utc),
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
