"""The oldest and the newest Python that the project supports, installed as users have them.

Each environment holds the wheel with the newest versions that its requirements allow. It does not
hold the packages of the extra `dev`, so that a dependency which only `dev` brings is found missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.engines.environments import bare, wheel

pytestmark = pytest.mark.pythons

OLDEST = "3.11"
NEWEST = "3.14"
UV = [sys.executable, "-m", "uv"]

NOTEBOOK = REPOSITORY / "docs/notebooks/parts.ipynb"
# The packages that the notebook needs besides the project. ipywidgets is not among them.
OF_THE_NOTEBOOK = ["nbclient", "ipykernel", "matplotlib", "pandas"]

EXECUTE = """\
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
notebook.cells += [nbformat.v4.new_code_cell(code) for code in sys.argv[2:]]
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.get("outputs", ()):
        print(output.get("text", ""), list(output.get("data", ())))
"""

ADD = """\
from owt_pipeline.cli import main
assert main(["run", "grown", "--add", "--links", "more.csv"]) == 0
"""


def interpreter(version: str) -> Path | None:
    """Return the program of a Python version: on the path, or one of pyenv's."""
    if sys.version.startswith(f"{version}."):
        return Path(sys.executable)
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *installed.glob(f"{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        command = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.stdout.strip() == version:
            return Path(candidate)
    return None


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment `venv` of a Python version, which holds the wheel."""
    program = interpreter(request.param)
    if program is None:
        if os.environ.get("OWT_REQUIRE_PYTHONS"):
            pytest.fail(f"Python {request.param} is not installed here")
        pytest.skip(f"Python {request.param} is not installed here")
    folder = tmp_path_factory.mktemp(f"python-{request.param}")
    subprocess.run([*UV, "venv", "--quiet", "--python", program, folder / "venv"], check=True)
    install(folder, wheel())
    return folder


def install(folder: Path, *requirements: str | Path) -> None:
    """Install the newest versions that the requirements allow into the environment of a folder."""
    command = [*UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", folder / "venv"]
    subprocess.run([*command, *requirements], check=True)


def run(environment: Path, *command: str | Path, code: int = 0) -> str:
    """Run a program of the environment in its folder; return its output."""
    program, *arguments = command
    process = subprocess.run(
        [environment / "venv/bin" / program, *arguments],
        cwd=environment,
        env=bare(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    output = process.stdout + process.stderr
    assert process.returncode == code, output[-3000:]
    return output


def test_the_project_declares_these_versions() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    declared = re.findall(r"Python :: (3\.\d+)", text)
    assert (declared[0], declared[-1]) == (OLDEST, NEWEST)
    assert f'requires-python = ">={OLDEST},<3.{int(NEWEST[2:]) + 1}"' in text


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_python_knows_the_same_of_the_characters_of_the_table(version: str) -> None:
    program = interpreter(version)
    if program is None:
        pytest.skip(f"Python {version} is not installed here")
    script = REPOSITORY / "tests/known_characters.py"
    digest = subprocess.check_output([program, script], text=True)
    assert digest == subprocess.check_output([sys.executable, script], text=True)


DECIDE = """\
import json, sys
import owt_pipeline as owt

# An emoji, letters with and without a lower case, a digit, marks, and an ideograph that the oldest
# Python does not know.
NEW = "\\U0001fa77 \\U00011f02 \\ua7cb \\U00011f50 \\u0897 \\U000113ce \\U00031350".split()
PROSE = "The quick brown fox of the village that we have seen jumps over a lazy dog. " * 12
decisions = []
for new in NEW:
    words = PROSE.split()
    words[::8] = [f"{word}{new} {new}" for word in words[::8]]
    text = " ".join(words) + f" Et cetera.. {new}nd 192.0.0.9 or 3fff::1"
    cleaned = owt.clean(text, mask_addresses=True, languages=["all"], filters=["c4"])
    pairs = owt.near_duplicates([PROSE, text, text.upper()], threshold=0.5, workers=1)
    decisions.append([cleaned.text, cleaned.n_words, cleaned.signals, pairs.to_pylist()])
json.dump(decisions, sys.stdout)
"""


def test_every_python_decides_alike_about_new_characters(environment: Path) -> None:
    expected = subprocess.check_output([sys.executable, "-c", DECIDE], text=True)
    assert json.loads(run(environment, "python", "-c", DECIDE)) == json.loads(expected)


def test_the_library_is_the_base_installation(environment: Path) -> None:
    """Runs first, while the environment has no extra."""
    run(environment, "python", REPOSITORY / "tests/base_installation.py")
    install(environment, f"{wheel()}[pipeline]")


def test_the_demo_a_second_generation_and_the_notebook_run(environment: Path) -> None:
    """The second generation is added from within the notebook, as its users start runs."""
    assert "no problems found" in run(environment, "owt", "demo", "demo-run")
    run(environment, "owt", "demo", "--write_inputs", "inputs")
    sources = ["--dumps", "inputs/RS_demo.zst", "--pages_from", "inputs/demo.warc.gz"]
    run(environment, "owt", "run", "grown", *sources)
    links = "url\nhttps://example.org/new\nhttps://example.org/new\n"
    (environment / "more.csv").write_text(links)
    install(environment, *OF_THE_NOTEBOOK)
    printed = run(environment, "python", "-c", EXECUTE, NOTEBOOK, ADD)
    assert printed.count("image/png") == 2
    assert re.search(r"^\d+ texts, of which \d+ repeat another$", printed, re.MULTILINE)
    assert "no problems found" in run(environment, "owt", "verify", "grown")
    assert json.loads(run(environment, "owt", "ls", "grown", "--json"))[0]["state"] == "finished"


@pytest.mark.parametrize("uri", ["gs://bucket/run", "s3://bucket/run", "az://container/run"])
def test_a_missing_extra_is_one_line(environment: Path, uri: str) -> None:
    for command in (["init", uri], ["run", uri], ["ls", uri], ["verify", uri]):
        output = run(environment, "owt", *command, code=1)
        scheme = uri.partition(":")[0]
        assert output == f"owt: error: {scheme}:// needs obstore: pip install obstore\n"
