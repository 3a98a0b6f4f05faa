"""An Airflow of the tests' own: a home in a temporary folder, with its database and no examples."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

# `make test-dags` sets the variable, so that a missing Airflow fails.
if importlib.util.find_spec("airflow") is None and "OWT_REQUIRE_AIRFLOW" not in os.environ:
    collect_ignore_glob = ["test_*"]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new home of Airflow. It is set up before the import, when Airflow reads the environment."""
    home = tmp_path_factory.mktemp("airflow")
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    from airflow.utils.db import initdb

    initdb()
    return home


@pytest.fixture
def dagbag(airflow_home: Path) -> Any:
    """The DAGs of the repository as Airflow reads them, without parameters of other tests' runs."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(REPOSITORY / "dags"))


@pytest.fixture
def dag(dagbag: Any) -> Any:
    """The DAG `openwebtext` without retries, since a test waits for no second attempt."""
    dag = dagbag.dags["openwebtext"]
    for task in dag.tasks:
        task.retries = 0
    return dag
