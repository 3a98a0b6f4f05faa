"""Airflow reads the DAG `openwebtext`, starts the stages as it should, and runs them to tokens."""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags.inputs import PAGES, PYTHON, manifest, write_dump, write_pages
from tests.servers.hub import environment_of, hub_server

REPOSITORY = Path(__file__).resolve().parents[2]
ORDER = ["collect", "fetch", "extract", "clean", "dedupe", "export", "tokenize", "report"]
TINY = ["--preset=tiny", "--max_steps=9"]
TRAINING = {"preset": "tiny", "n_embd": 32, "block_size": 32, "batch_tokens": 128, "device": "cpu"}
TRAINING |= dict.fromkeys(("max_steps", "save_every", "eval_every"), 2)


def test_airflow_reads_the_stages_in_the_pipelines_order(dagbag: Any) -> None:
    assert dagbag.import_errors == {}
    assert list(dagbag.dags) == ["openwebtext"]
    dag = dagbag.dags["openwebtext"]
    assert dag.timetable.can_be_scheduled is False
    # Runs of different directories may overlap. The lock of a directory refuses a second run.
    assert dag.max_active_runs > 1
    assert "PYTHON -m owt_pipeline run RUN --until STAGE" in dag.doc_md
    assert all(task.retries == 2 for task in dag.tasks)
    assert [task.task_id for task in dag.topological_sort()][: len(ORDER) + 1] == [*ORDER, "verify"]
    for task_id, next_task_id in itertools.pairwise([*ORDER, "verify"]):
        assert dag.get_task(next_task_id).upstream_task_ids == {task_id}
    assert dag.get_task("verify").downstream_task_ids == {"publish", "train"}
    assets = {
        task.task_id: [asset.name for asset in task.outlets] for task in dag.tasks if task.outlets
    }
    assert assets == {
        "export": ["owt_corpus"],
        "tokenize": ["owt_tokens"],
        "report": ["owt_report"],
    }


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("run", ""),
        ("dumps", "one.zst"),
        ("num_shards", 0),
        ("runner", "NoRunner"),
        ("publish", "someone/name"),
        ("train_flags", ["--preset"]),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(
    dagbag: Any, name: str, wrong: object
) -> None:
    params = copy.deepcopy(dagbag.dags["openwebtext"].params)
    assert params.get_param(name).description
    with pytest.raises(ValueError, match=name):
        params[name] = wrong


def test_each_task_starts_its_stage_with_the_runs_flags(dag: Any, tmp_path: Path) -> None:
    state, started = commands_of(
        dag,
        tmp_path,
        {
            "run": "/data/run one",
            "dumps": ["/data/RS_*.zst", "/data/RS_2013.xz"],
            "links": ["/data/urls.txt"],
            "pages_from": ["/data/a.warc.gz", "/data/b.warc.gz"],
            "num_shards": 4,
            "min_tokens": 64,
            "workers": 2,
            "settings": "/data/owt.toml",
            "beam_flags": {
                "project": "p",
                "experiments": ["a", "b"],
                "no_auth": True,
                "dry_run": False,
            },
            "add": True,
            "publish": "hf://someone/web",
            "urls_only": True,
            "model": "/data/gpt2",
            "train_flags": {"preset": "tiny", "max_steps": 9},
        },
    )
    assert state == "success"
    stages = started[: len(ORDER)]
    verify, *last_tasks = started[len(ORDER) :]
    assert verify == ["-m", "owt_pipeline", "verify", "/data/run one"]
    assert sorted(last_tasks) == [
        [
            "-m",
            "owt_pipeline",
            "publish",
            "/data/run one",
            "hf://someone/web",
            "--yes",
            "--urls_only",
        ],
        ["-m", "trainer", "--data=/data/run one/tokens", "--out=/data/gpt2", *TINY],
    ]
    for stage, command in zip(ORDER, stages, strict=True):
        words = ["/data/run one", "/data/owt.toml", "--until", stage, "--runner=FnApiRunner"]
        assert command[:8] == ["-m", "owt_pipeline", "run", *words]
        assert "--workers=2" in command
        assert {"--project=p", "--experiments=a", "--experiments=b", "--no_auth"} <= set(command)
        assert not any(flag.startswith("--dry_run") for flag in command)
        dumps = [
            "--dumps=/data/RS_*.zst",
            "--dumps=/data/RS_2013.xz",
            "--links=/data/urls.txt",
            "--add",
        ]
        pages = ["--pages_from=/data/a.warc.gz", "--pages_from=/data/b.warc.gz"]
        assert own_flags(command) == [*dumps, *pages, "--num_shards=4", "--min_tokens=64"]


def test_a_run_cannot_choose_the_program_that_is_started(dag: Any, tmp_path: Path) -> None:
    """The interpreter is the deployment's, and no shell reads the parameters."""
    assert "python" not in dag.params
    words = {
        "run": "/data/$(touch x); python -c pass",
        "dumps": ["{{ var.value.owt_python }}", "--runner=x"],
    }
    chosen = tmp_path / "chosen"
    _, started = commands_of(dag, tmp_path, {**words, "python": str(chosen), "verify": False})
    assert not chosen.exists()
    for stage, command in zip(ORDER, started, strict=True):
        assert command[:6] == ["-m", "owt_pipeline", "run", words["run"], "--until", stage]
        # An empty parameter leaves the value to the settings, and skips a task after the report.
        assert command[6:] == [
            "--runner=FnApiRunner",
            "--dumps={{ var.value.owt_python }}",
            "--dumps=--runner=x",
        ]


@pytest.mark.parametrize(("last", "state"), [(0, "success"), (1, "failed")])
def test_a_stage_on_dataflow_waits_for_its_job_and_ends_like_it(
    dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, state: str
) -> None:
    """The same command submits a job, asks for its state, and reports its outcome.

    It ends with 4 until the job has ended.
    """
    monkeypatch.setattr(type(dag.get_task("collect")), "poll_interval", timedelta(milliseconds=10))
    run = {"run": "gs://b/run", "runner": "DataflowRunner", "beam_flags": {"project": "p"}}
    last_state, started = commands_of(
        dag, tmp_path, run, [4, 4, last], mark_success_pattern="(?!collect$).*"
    )
    assert last_state == state
    assert len(started) == 3
    assert started[0] == started[1] == started[2]
    assert {"--runner=DataflowRunner", "--project=p", "--no_wait_until_finish"} <= set(started[0])


def test_a_second_run_completes_a_failed_one_up_to_the_tokens(
    dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run verifies, publishes to a Hub on loopback, and trains."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    monkeypatch.setenv("AIRFLOW_VAR_OWT_PYTHON", PYTHON)
    warc = tmp_path / "pages.warc.gz"
    urls = write_pages(warc)
    write_dump(tmp_path / "RS_2024-01.zst", urls)
    workdir = tmp_path / "run"
    run = {
        "run": str(workdir),
        "dumps": [str(tmp_path / "RS_*.zst")],
        "num_shards": 2,
        "min_tokens": 20,
        "workers": 1,
    }

    first_run = dag.test(run_conf={**run, "pages_from": [str(tmp_path / "missing.warc.gz")]})
    assert first_run.state == "failed"
    assert manifest(workdir, "urls")["counts"]["left"] == PAGES
    assert not (workdir / "documents").exists()
    collected = {path: path.stat().st_mtime_ns for path in (workdir / "urls").iterdir()}

    run["pages_from"] = [str(warc)]
    run["publish"] = "hf://someone/web"
    run["model"] = str(tmp_path / "gpt2")
    run["train_flags"] = TRAINING
    with hub_server() as hub:
        for name, value in environment_of(hub, tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        assert dag.test(run_conf=run).state == "success"
    assert {path: path.stat().st_mtime_ns for path in (workdir / "urls").iterdir()} == collected, (
        "collect ran again, though its output was finished"
    )
    for dataset in ("pages", "documents", "clean", "corpus", "tokens"):
        assert manifest(workdir, dataset)["counts"]["left"] == PAGES, dataset
    assert manifest(workdir, "tokens")["totals"]["data"]["rows"] == PAGES
    assert "<html" in (workdir / "report" / "index.html").read_text()
    assert any(name.startswith("corpus/train/part-") for name in hub.files["someone/web"])
    assert (tmp_path / "gpt2" / "checkpoints" / "step-00000002").is_dir()
    with create_session() as session:
        events = session.query(AssetEvent).all()
        assets = {event.asset.name for event in events if event.extra == {"run": str(workdir)}}
    assert assets == {"owt_corpus", "owt_tokens", "owt_report"}


def test_the_command_of_the_documentation_works(airflow_home: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "airflow.md").read_text()
    (command,) = re.findall(r"^\$ (airflow dags test .*?)^```", page, re.MULTILINE | re.DOTALL)
    write_dump(tmp_path / "RS_2019-01.zst", write_pages(tmp_path / "pages.warc.gz"))
    command = command.replace("/data/", f"{tmp_path}/")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "AIRFLOW_VAR_OWT_PYTHON": PYTHON}
    process = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=400
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert manifest(tmp_path / "owt", "tokens")["counts"]["entered"] > 0


def commands_of(
    dag: Any, folder: Path, run: dict[str, Any], exit_codes: Sequence[int] = (), **flags: str
) -> tuple[str, list[list[str]]]:
    """Run the DAG with an interpreter that only notes its arguments.

    It ends with these exit codes, and then with 0. Return the last state of the run, and the
    arguments of each task.
    """
    notes = folder / "commands.jsonl"
    interpreter = folder / "python"
    notes.touch()
    interpreter.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"with open({str(notes)!r}, 'a+') as notes:\n"
        "    notes.seek(0)\n"
        "    number = len(notes.readlines())\n"
        "    print(json.dumps(sys.argv[1:]), file=notes)\n"
        f"sys.exit({[*exit_codes]}[number] if number < {len(exit_codes)} else 0)\n"
    )
    interpreter.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_VAR_OWT_PYTHON", str(interpreter))
        state = str(dag.test(run_conf=run, **flags).state)
    return state, [json.loads(line) for line in notes.read_text().splitlines()]


def own_flags(command: list[str]) -> list[str]:
    """Return the flags that belong to a single stage."""
    names = ("--dumps", "--links", "--num_shards", "--pages_from", "--min_tokens", "--add")
    return [flag for flag in command if flag.startswith(names)]
