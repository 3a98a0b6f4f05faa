"""The Dockerfile, read and executed without Docker: its steps in a clean environment, its
promises checked."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline import __version__
from tests.conftest import REPOSITORY
from tests.engines.environments import bare, wheel

LAYERS_MB = 900


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of each, without comments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", " ", text)
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_the_image_is_beams_of_the_pinned_version() -> None:
    assert {name for name, _ in instructions()} == {
        "FROM",
        "COPY",
        "WORKDIR",
        "RUN",
        "USER",
        "ENV",
        "ENTRYPOINT",
    }
    images = [rest.split()[0] for rest in of("FROM")]
    assert all(
        re.fullmatch(r"[a-z0-9./_-]+:[\w.-]+", image) and not image.endswith(":latest")
        for image in images
    )
    pins = dict(
        re.findall(
            r"^([\w-]+)==([^;\s]+)",
            (REPOSITORY / "constraints.txt").read_text(),
            flags=re.MULTILINE,
        )
    )
    assert images[-1].endswith(f"_sdk:{pins['apache-beam']}")
    assert (
        len(
            {
                re.sub(r"\D", "", found)
                for image in images
                for found in re.findall(r"python(\d\.?\d+)", image)
            }
        )
        == 1
    )
    user = of("USER")[-1]
    assert user not in ("root", "0")
    assert any(user in run and "useradd" in run for run in of("RUN"))
    assert json.loads(of("ENTRYPOINT")[-1]) == ["/opt/apache/beam/boot"]


@pytest.mark.slow
def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    allowed = [
        line[1:]
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    wheel()
    for source in (
        source for rest in of("COPY") if "--from=" not in rest for source in rest.split()[:-1]
    ):
        assert list(REPOSITORY.glob(source)), source
        assert any(Path(source).match(pattern) for pattern in allowed), source


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The steps carried out: a new environment for the base image's, whose `bin` this is, a
    folder for WORKDIR, the lines of RUN by sh, with uv in pip's place."""
    root = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", root / "python"], check=True)
    programs, folder = root / "python/bin", root / "owt"
    folder.mkdir()
    (workdir,) = of("WORKDIR")
    wheel()  # into dist/, from where a step copies it
    own = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))}
    environment = bare(**own) | {
        "UV_COMPILE_BYTECODE": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            *sources, target = rest.split()
            assert target == "./"
            for source in sources:
                shutil.copy(max(REPOSITORY.glob(source), key=os.path.getmtime), folder)
        if name == "RUN" and "useradd" not in rest:  # a user of this machine is not made
            install = "python -m pip install --no-cache-dir"
            as_here = f"{sys.executable} -m uv pip install --python {programs}/python"
            assert rest.startswith(install)
            command = ["sh", "-c", rest.replace(workdir, str(folder)).replace(install, as_here)]
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
    yield programs
    shutil.rmtree(root)


@pytest.mark.engines
def test_layers_are_small_and_hold_no_torch(built: Path) -> None:
    """All that the steps install counts, but for Beam itself, of which the base image has the
    same version.

    The base has many of the others, too; where it has the pinned version nothing is added, so this
    is the most.
    """
    (packages,) = built.parent.glob("lib/python*/site-packages")
    found = {path.name: path for path in packages.iterdir()}
    assert "owt_pipeline" in found
    assert not found.keys() & {"torch", "nvidia", "triton", "tensorflow"}
    of_base = {"apache_beam", "pip", "setuptools", "_distutils_hack", "pkg_resources"}
    layers = [
        *(path for name, path in found.items() if name not in of_base),
        built.parents[1] / "owt",
    ]
    files = (file for path in layers for file in (path, *path.rglob("*")))
    assert sum(file.lstat().st_blocks for file in files) * 512 / 1e6 <= LAYERS_MB


@pytest.mark.engines
def test_the_command_runs_from_the_image_alone(built: Path, tmp_path: Path) -> None:
    of_image = dict(re.findall(r"(\w+)=(\S+)", " ".join(of("ENV"))))
    environment = bare(**of_image) | {"PATH": f"{built}:/usr/bin:/bin", "HOME": str(tmp_path)}
    script = (
        f"{shlex.quote(str(built / 'owt'))} init --preset openwebtext config.toml && owt --version"
    )
    done = subprocess.run(
        ["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"owt {__version__}" in done.stdout
