"""The oldest and the newest Python that the project supports, as users have them.

Each environment holds the wheel with the newest versions that its requirements allow, and none of
the packages of the extra `dev`, so that a dependency which only `dev` brings is found missing.
"""

from __future__ import annotations

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

OLDEST, NEWEST = "3.11", "3.13"

LIBRARY = """\
import owt_pipeline as owt
page = "<html><body><p>" + "A long enough sentence of the page. " * 30 + "</p></body></html>"
assert owt.extract(page).text.startswith("A long enough sentence")
assert owt.near_duplicates(["a b c d e f g"] * 3).num_rows == 2
assert owt.canonical_url("HTTP://www.Example.com/a?utm_source=x") == "https://example.com/a"
"""


def interpreter(version: str) -> Path | None:
    """Return the program of a Python version: on the path, or one of pyenv's."""
    if sys.version.startswith(f"{version}."):
        return Path(sys.executable)
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *installed.glob(f"{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        command = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return Path(candidate)
    return None


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of a Python version with the wheel and what it requires."""
    program = interpreter(request.param)
    if program is None:
        if os.environ.get("OWT_REQUIRE_PYTHONS"):
            pytest.fail(f"Python {request.param} is not installed here")
        pytest.skip(f"Python {request.param} is not installed here")
    folder = tmp_path_factory.mktemp(f"python-{request.param}")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", program, folder / "venv"], check=True)
    install = [*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", folder / "venv"]
    subprocess.run([*install, wheel()], check=True)
    return folder


def run(environment: Path, *command: str | Path, code: int = 0) -> str:
    """Run a program of the environment in its folder; returns what it printed."""
    program, *arguments = command
    done = subprocess.run(
        [environment / "venv/bin" / program, *arguments],
        cwd=environment,
        env=bare(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output[-3000:]
    return output


def test_the_project_declares_these_versions() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    declared = re.findall(r"Python :: (3\.\d+)", text)
    assert (declared[0], declared[-1]) == (OLDEST, NEWEST)
    assert f'requires-python = ">={OLDEST},<3.{int(NEWEST[2:]) + 1}"' in text


def test_the_library_works_without_the_packages_of_dev(environment: Path) -> None:
    run(environment, "python", "-c", LIBRARY)


def test_the_demo_and_a_second_generation_run(environment: Path) -> None:
    assert "no problems found" in run(environment, "owt", "demo", "demo")
    run(environment, "owt", "demo", "--write_inputs", "inputs")
    sources = ["--dumps", "inputs/RS_demo.zst", "--pages_from", "inputs/demo.warc.gz"]
    run(environment, "owt", "run", "grown", *sources)
    more = "url\nhttps://example.org/new\nhttps://example.org/new\n"
    (environment / "more.csv").write_text(more)
    run(environment, "owt", "run", "grown", "--add", "--links", "more.csv")
    assert "no problems found" in run(environment, "owt", "verify", "grown")


@pytest.mark.parametrize("uri", ["gs://bucket/run", "s3://bucket/run", "az://container/run"])
def test_a_missing_extra_is_one_line(environment: Path, uri: str) -> None:
    for command in (["init", uri], ["run", uri], ["ls", uri], ["verify", uri]):
        output = run(environment, "owt", *command, code=1)
        scheme = uri.partition(":")[0]
        assert output == f"owt: error: {scheme}:// needs obstore: pip install obstore\n"
