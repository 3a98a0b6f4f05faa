"""Reddit month by month: each interval triggers `openwebtext` to add its dump to one run, as
another generation.

This DAG exists if `openwebtext_monthly.json` is next to this file, with the parameters of
`openwebtext`, and `first`, the first month. An item of a list with `{month}` is repeated for each
month from the first on; elsewhere, `{month}` is the interval's month:

    {"first": "2024-01", "run": "gs://bucket/run", "dumps": ["gs://bucket/dumps/RS_{month}.zst"]}

Months run one after the other, and a failed one blocks the next: clear its task to continue where
it stopped. Once a later month was added, an earlier one cannot be run again by itself. A month is
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
OWN = ("first", "days_later")
"""The settings that are not parameters of `openwebtext`."""


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a file; raises ValueError for invalid ones."""
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
            f"{path.name}: dumps {settings['dumps']!r} need {{month}}, since each month has "
            f"another one"
        )
    if settings.get("days_later", 0) not in range(28):
        raise ValueError(
            f"{path.name}: days_later is {settings['days_later']!r}, not a whole number from 0 to "
            f"27"
        )
    datetime.strptime(settings["first"], "%Y-%m")
    return settings


def months(first: str, last: str) -> list[str]:
    """All months from the first to the last."""
    begin, end = (int(month[:4]) * 12 + int(month[5:]) - 1 for month in (first, last))
    return [f"{number // 12}-{number % 12 + 1:02}" for number in range(begin, end + 1)]


def replaced(value: Any, until: list[str]) -> Any:
    """A setting with `{month}` replaced: by the last month of `until`, in an item of a list by
    each."""
    if isinstance(value, str):
        return value.replace("{month}", until[-1])
    if isinstance(value, list):
        return [
            text
            for item in value
            for text in dict.fromkeys(str(item).replace("{month}", m) for m in until)
        ]
    return (
        {name: replaced(item, until) for name, item in value.items()}
        if isinstance(value, dict)
        else value
    )


def conf_of(settings: dict[str, Any], start: datetime) -> dict[str, Any]:
    """The parameters of `openwebtext` for the month that begins at `start`."""
    until = months(settings["first"], f"{start:%Y-%m}")
    return {name: replaced(value, until) for name, value in settings.items() if name not in OWN} | {
        "add": True
    }


@task
def parameters(data_interval_start: Any = None) -> dict[str, Any]:
    """The parameters of the run for its interval."""
    return conf_of(read_settings(SETTINGS), data_interval_start)


if SETTINGS.exists():
    given = read_settings(SETTINGS)
    day = 1 + given.get("days_later", 0)
    with DAG(
        dag_id="openwebtext_monthly",
        description="Each month's dump, added to one run",
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
