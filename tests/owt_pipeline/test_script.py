"""README's script runs as a file without a main guard, as a cell, and twice at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from owt_pipeline.pipeline import STAGES, Run, build
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import running
from tests.conftest import REPOSITORY
from tests.owt_pipeline.runs import differing

pytestmark = pytest.mark.beam


def script(runner: str, workers: int, config: Path, workdir: Path) -> str:
    """Return README's script for the run `workdir`, whose settings are in its folder."""
    readme = (REPOSITORY / "README.md").read_text()
    (code,) = re.findall(r"```python\n(import apache_beam.*?)```", readme, re.DOTALL)
    settings = f"[run]\nworkers = {workers}\n\n{config.read_text()}"
    workdir.mkdir()
    (workdir / "settings.toml").write_text(settings)
    assert 'Run.of("run"' in code
    code = f"print('begins')\n{code}print('ends')\n".replace('Run.of("run"', f'Run.of("{workdir}"')
    if runner:
        code = code.replace("beam.Pipeline()", f"beam.Pipeline({runner})")
        code = f"from apache_beam.runners.portability.fn_api_runner import FnApiRunner\n{code}"
    return code


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start Python in a folder, with a folder of temporary files of its own."""
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, *arguments], text=True, cwd=folder, env=environment, **pipes
    )  # type: ignore[call-overload,no-any-return]


def check(process: subprocess.Popen[str], workdir: Path, expected: Path, stdin: str = "") -> None:
    """Check the output of a script, and that its run equals the expected one."""
    output, error = process.communicate(stdin, timeout=240)
    assert process.returncode == 0, error
    assert output.splitlines() == ["begins", "ends"], "no worker process runs the script"
    assert differing(workdir, expected) == []
    assert running(Storage(str(workdir))) is None
    log = [json.loads(line) for line in (workdir / "run-log.jsonl").read_text().splitlines()]
    assert [entry["stage"] for entry in log] == list(STAGES)


@pytest.mark.slow
def test_the_readmes_script_as_a_file_makes_owts_run(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    (tmp_path / "script.py").write_text(script("", 2, small_config, workdir))
    check(start(tmp_path, "script.py"), workdir, small_run)


@pytest.mark.slow
def test_the_readmes_script_as_a_cell_makes_owts_run(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    """The code of a notebook belongs to a `__main__` without a file, like code from stdin."""
    workdir = tmp_path / "run"
    code = script("FnApiRunner()", 2, small_config, workdir)
    check(start(tmp_path, "-"), workdir, small_run, stdin=code)


@pytest.mark.slow
def test_the_second_of_two_scripts_at_once_is_refused(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    (tmp_path / "script.py").write_text(script("", 1, small_config, workdir))
    processes = [start(tmp_path, "script.py") for _ in range(2)]
    errors = {process.communicate(timeout=240)[1]: process.returncode for process in processes}
    assert sorted(errors.values()) == [0, 1], errors
    (error,) = (text for text, code in errors.items() if code)
    assert re.search(
        rf"{workdir} is in use by `script.py` \(process \d+ on .*: wait for it to end, or stop it",
        error,
    )
    assert differing(workdir, small_run) == []


def test_arguments_override_the_settings_file(small_config: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"{small_config.read_text()}[run]\nworkers = 3\n")
    runtime = Run.of("here", str(config)).runtime
    assert (runtime.workers, runtime.workdir.uri) == (3, "here")
    assert Run.of("here", str(config), workers=2).runtime.workers == 2


def test_nothing_is_written_while_the_graph_is_built(small_config: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    script("", 1, small_config, workdir)
    build(beam.Pipeline(FnApiRunner()), Run.of(str(workdir)))
    assert [path.name for path in workdir.iterdir()] == ["settings.toml"]


@pytest.mark.slow
def test_a_failed_cell_can_be_run_again_at_once(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    code = script("FnApiRunner()", 1, small_config, workdir)
    config = workdir / "settings.toml"
    good = config.read_text()
    config.write_text(f'{good}languages = ["zz"]\n')
    (tmp_path / "good.toml").write_text(good)
    failing = code.replace("print('ends')", "print('never')")
    cells = (
        f"try:\n    exec({failing!r})\nexcept Exception as error:\n    print(error)\n"
        f"import os; os.replace('good.toml', 'run/settings.toml')\n{code}"
    )
    process = start(tmp_path, "-")
    out, error = process.communicate(cells, timeout=240)
    assert process.returncode == 0, error
    assert "'zz' is not a known language" in out
    assert out.splitlines()[-1] == "ends"
    assert "is in use by" not in error
    assert differing(workdir, small_run) == []
