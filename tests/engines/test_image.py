"""The Dockerfile is read and executed without Docker, in a clean environment."""

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

MAX_LAYERS_MB = 900


def instructions() -> list[tuple[str, str]]:
    """Return each instruction and its arguments, without comments, on one line."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", " ", text)
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def of(name: str) -> list[str]:
    """Return the arguments of each instruction of a name."""
    return [arguments for instruction, arguments in instructions() if instruction == name]


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
    for image in images:
        assert re.fullmatch(r"[a-z0-9./_-]+:[\w.-]+", image)
        assert not image.endswith(":latest")
    constraints = (REPOSITORY / "constraints.txt").read_text()
    pins = dict(re.findall(r"^([\w-]+)==([^;\s]+)", constraints, flags=re.MULTILINE))
    assert images[-1].endswith(f"_sdk:{pins['apache-beam']}")
    versions = re.findall(r"python(\d\.?\d+)", " ".join(images))
    assert len({version.replace(".", "") for version in versions}) == 1
    user = of("USER")[-1]
    assert user not in ("root", "0")
    assert any(user in run and "useradd" in run for run in of("RUN"))
    assert json.loads(of("ENTRYPOINT")[-1]) == ["/opt/apache/beam/boot"]


@pytest.mark.slow
def test_copied_files_exist_and_reach_the_build() -> None:
    ignore_file = (REPOSITORY / ".dockerignore").read_text()
    allowed_patterns = [line[1:] for line in ignore_file.splitlines() if line.startswith("!")]
    # A step copies the wheel from dist/.
    wheel()
    for arguments in of("COPY"):
        if "--from=" in arguments:
            continue
        *sources, _ = arguments.split()
        for source in sources:
            assert list(REPOSITORY.glob(source)), source
            assert any(Path(source).match(pattern) for pattern in allowed_patterns), source


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of programs after the steps were carried out.

    A new environment stands for the base image's, and a folder for WORKDIR. The lines of RUN are
    executed by sh, with uv in place of pip.
    """
    root = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", root / "python"], check=True)
    programs = root / "python/bin"
    folder = root / "owt"
    folder.mkdir()
    (workdir,) = of("WORKDIR")
    # A step copies the wheel from dist/.
    wheel()
    settings_of_uv = {
        name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))
    }
    environment = bare(**settings_of_uv) | {
        "UV_COMPILE_BYTECODE": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    for name, arguments in instructions():
        if name == "COPY" and not arguments.startswith("--from="):
            *sources, target = arguments.split()
            assert target == "./"
            for source in sources:
                shutil.copy(max(REPOSITORY.glob(source), key=os.path.getmtime), folder)
        # The test adds no user to this machine.
        if name == "RUN" and "useradd" not in arguments:
            install = "python -m pip install --no-cache-dir"
            install_here = f"{sys.executable} -m uv pip install --python {programs}/python"
            assert arguments.startswith(install)
            script = arguments.replace(workdir, str(folder)).replace(install, install_here)
            process = subprocess.run(
                ["sh", "-c", script],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert process.returncode == 0, process.stdout + process.stderr
    yield programs
    shutil.rmtree(root)


@pytest.mark.engines
def test_layers_are_small_and_hold_no_torch(built: Path) -> None:
    """Everything that the steps install counts, except Beam, which the base image has.

    The base image has many of the other packages, too. A package of the pinned version adds
    nothing, so this is an upper bound.
    """
    (packages,) = built.parent.glob("lib/python*/site-packages")
    package_by_name = {path.name: path for path in packages.iterdir()}
    assert "owt_pipeline" in package_by_name
    assert not package_by_name.keys() & {"torch", "nvidia", "triton", "tensorflow"}
    names_of_base = {"apache_beam", "pip", "setuptools", "_distutils_hack", "pkg_resources"}
    layers = [path for name, path in package_by_name.items() if name not in names_of_base]
    layers.append(built.parents[1] / "owt")
    num_blocks = 0
    for layer in layers:
        num_blocks += sum(path.lstat().st_blocks for path in (layer, *layer.rglob("*")))
    assert num_blocks * 512 / 1e6 <= MAX_LAYERS_MB


@pytest.mark.engines
def test_the_command_runs_with_only_the_image(built: Path, tmp_path: Path) -> None:
    image_environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(of("ENV"))))
    environment = bare(**image_environment) | {
        "PATH": f"{built}:/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    script = (
        f"{shlex.quote(str(built / 'owt'))} init --preset openwebtext config.toml && owt --version"
    )
    process = subprocess.run(
        ["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert f"owt {__version__}" in process.stdout
