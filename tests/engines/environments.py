"""Environments that workers run in: the dependencies, installed once, and above them a wheel and
nothing else.

A worker's image holds the dependencies; what a job stages is installed when the worker starts. So
here: `.venv-dependencies` (`make .venv-dependencies/installed`) has what `owt-pipeline` and its
buckets' clients depend on, without the package itself, and `install` puts a small environment above
it that has what it is given. Nothing of the checkout can be imported in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DEPENDENCIES = REPOSITORY / ".venv-dependencies"


class InstallError(Exception):
    """pip could not install what it was given; the message is pip's."""


def install(folder: Path, requirements: Sequence[str | Path], base: Path = DEPENDENCIES) -> Path:
    """Make an environment in `folder` of `base` and `requirements`, without the network; returns
    its python.

    Raises InstallError if a requirement is broken, or needs something that is not in `base`.
    """
    subprocess.run([base / "bin/python", "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (below,) = base.glob("lib/python*/site-packages")
    (packages / "base.pth").write_text(f"{below}\n")
    if requirements:
        pip = [
            base / "bin/python",
            "-m",
            "pip",
            "--python",
            folder / "bin/python",
            "install",
            "--quiet",
        ]
        options = ["--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, *options, *requirements], capture_output=True, text=True, env=bare(), check=False
        )
        if done.returncode:
            raise InstallError(done.stderr.strip())
    return folder / "bin/python"


def bare(**more: str) -> dict[str, str]:
    """The environment variables of a worker: none of the tests' own, but for what finds the
    servers."""
    kept = (
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "STORAGE_EMULATOR_HOST",
        "GOOGLE_BASE_URL",
        "GOOGLE_BEARER_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID",
    )
    kept += ("AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED")
    return {name: os.environ[name] for name in kept if name in os.environ} | more


def wheel() -> Path:
    """The wheel of the checkout, in `dist/`; built again where a file of it is newer."""
    sources = [REPOSITORY / "pyproject.toml"]
    for package in ("owt_pipeline", "schemas", "trainer"):
        sources += (
            path
            for path in (REPOSITORY / package).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        )
    (REPOSITORY / "dist").mkdir(exist_ok=True)
    with open(REPOSITORY / "dist/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = sorted((REPOSITORY / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
        if built and built[-1].stat().st_mtime > max(path.stat().st_mtime for path in sources):
            return built[-1]
        shutil.rmtree(
            REPOSITORY / "build/lib", ignore_errors=True
        )  # setuptools would add what was deleted since
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--wheel-dir", "dist", "."], cwd=REPOSITORY, check=True)
        return max((REPOSITORY / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
