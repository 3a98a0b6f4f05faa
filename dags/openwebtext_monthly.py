"""Reddit month by month: each interval adds its dump to one run, as another generation.

It triggers the DAG `openwebtext`, whose run remembers the dumps of earlier months.

This DAG exists if `openwebtext_monthly.json` is next to this file, with the parameters of
`openwebtext`, and `first`, the first month. `{month}` is the interval's month:

    {"first": "2024-01", "run": "gs://bucket/run", "dumps": ["gs://bucket/dumps/RS_{month}.zst"]}

Months run one after the other, and a failed one blocks the next. Clear its task to continue where
it stopped. A month is added when it ends. `"schedule": "0 0 10 * *"` waits for the dump until the
tenth.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, CronDataIntervalTimetable

SETTINGS = Path(__file__).with_suffix(".json")
# Airflow fills it in for each interval.
MONTH = "{{ data_interval_start.strftime('%Y-%m') }}"

if SETTINGS.exists():
    parameters = json.loads(SETTINGS.read_text(encoding="utf-8").replace("{month}", MONTH))
    first_month = datetime.strptime(parameters.pop("first"), "%Y-%m")
    schedule = parameters.pop("schedule", "@monthly")
    with DAG(
        dag_id="openwebtext_monthly",
        description="Each month's dump, added to one run",
        doc_md=__doc__,
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=first_month.replace(tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
        tags=["openwebtext", "beam"],
    ) as dag:
        TriggerDagRunOperator(
            task_id="run_month",
            trigger_dag_id="openwebtext",
            trigger_run_id=f"month_{MONTH}",
            conf={**parameters, "add": True},
            reset_dag_run=True,
            wait_for_completion=True,
            deferrable=True,
            depends_on_past=True,
        )
