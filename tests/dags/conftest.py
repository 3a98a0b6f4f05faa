"""An Airflow of the tests' own: a home in a temporary folder, with a database of its own and no
examples."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

if (
    importlib.util.find_spec("airflow") is None and "OWT_REQUIRE_AIRFLOW" not in os.environ
):  # of make test-dags
    collect_ignore_glob = ["test_*"]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set up before Airflow is imported: it reads the environment only then."""
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
    """The DAGs of the repository, as Airflow reads them; read anew, since a test run leaves its
    parameters behind."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(REPOSITORY / "dags"))


@pytest.fixture
def dag(dagbag: Any) -> Any:
    """The DAG `openwebtext`, without retries: a test waits for no second try."""
    dag = dagbag.dags["openwebtext"]
    for task in dag.tasks:
        task.retries = 0
    return dag
