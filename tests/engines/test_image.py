"""The Dockerfile, read and executed without Docker: its steps in a clean environment, its promises checked."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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


def test_only_instructions_that_docker_knows() -> None:
    assert {name for name, _ in instructions()} == {"FROM", "COPY", "WORKDIR", "RUN", "USER", "ENV", "ENTRYPOINT"}
    assert instructions()[0][0] == "FROM"


def test_bases_have_a_tag_and_the_pinned_beam() -> None:
    images = [rest.split()[0] for rest in of("FROM")]
    assert all(re.fullmatch(r"[a-z0-9./_-]+:[\w.-]+", image) and not image.endswith(":latest") for image in images)
    pins = dict(re.findall(r"^([\w-]+)==([^;\s]+)", (REPOSITORY / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert images[-1].endswith(f"_sdk:{pins['apache-beam']}")
    python = {re.sub(r"\D", "", found) for image in images for found in re.findall(r"python(\d\.?\d+)", image)}
    assert len(python) == 1


def test_runs_as_nobody_special_and_starts_a_worker() -> None:
    users = of("USER")
    assert users
    assert users[-1] not in ("root", "0")
    assert any(users[-1] in run and "useradd" in run for run in of("RUN"))
    assert json.loads(of("ENTRYPOINT")[-1]) == ["/opt/apache/beam/boot"]


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    allowed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    wheel()
    for rest in of("COPY"):
        if rest.startswith("--from="):
            continue
        for source in rest.split()[:-1]:
            assert list(REPOSITORY.glob(source)), source
            assert any(Path(source).match(pattern) for pattern in allowed), source


@dataclass(frozen=True)
class Built:
    """What the Dockerfile's steps left.

    Attributes:
      bin: of the environment that takes the place of the base image's Python.
      folder: in place of the image's WORKDIR.
      environment: what ENV sets.
    """

    bin: Path
    folder: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """The steps carried out: a new environment for the base image's, a folder for WORKDIR, the lines of RUN by sh."""
    root = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", root / "python"], check=True)
    found = Built(root / "python/bin", root / "owt", dict(re.findall(r"(\w+)=(\S+)", " ".join(of("ENV")))))
    found.folder.mkdir()
    (workdir,) = of("WORKDIR")
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            *sources, target = rest.split()
            assert target == "./"
            for source in sources:
                shutil.copy(max(REPOSITORY.glob(source), key=os.path.getmtime), found.folder)
        if name == "RUN" and "useradd" not in rest:  # a user of this machine is not made
            done = subprocess.run(
                ["sh", "-c", rest.replace(workdir, str(found.folder))],
                env=bare(**pip) | {"PATH": f"{found.bin}:{os.environ['PATH']}"},
                cwd=found.folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    yield found
    shutil.rmtree(root)


@pytest.mark.engines
def test_layers_are_small_and_hold_no_torch(built: Built) -> None:
    """All that the steps install counts, but for Beam itself, of which the base image has the same version.

    The base has many of the others, too; where it has the pinned version nothing is added, so this is the most.
    """
    (packages,) = built.bin.parent.glob("lib/python*/site-packages")
    names = {path.name for path in packages.iterdir()}
    assert "owt_pipeline" in names
    assert not names & {"torch", "nvidia", "triton", "tensorflow"}
    of_base = {"apache_beam", "pip", "setuptools", "_distutils_hack", "pkg_resources"}
    sizes = {
        path.name: sum(file.lstat().st_blocks for file in ([*path.rglob("*")] if path.is_dir() else [path])) * 512
        for path in packages.iterdir()
        if path.name not in of_base
    }
    total = (sum(sizes.values()) + sum(file.stat().st_size for file in built.folder.iterdir())) / 1e6
    largest = sorted(sizes, key=lambda name: -sizes[name])[:8]
    print(f"our layers: {total:.0f} MB; {', '.join(f'{name} {sizes[name] / 1e6:.0f}' for name in largest)}")
    assert total <= LAYERS_MB


@pytest.mark.engines
def test_the_command_runs_from_the_image_alone(built: Built, tmp_path: Path) -> None:
    environment = bare(**built.environment) | {"PATH": f"{built.bin}:/usr/bin:/bin", "HOME": str(tmp_path)}
    script = f"{shlex.quote(str(built.bin / 'owt'))} init --preset openwebtext config.toml && owt --version"
    done = subprocess.run(["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"owt {__version__}" in done.stdout
