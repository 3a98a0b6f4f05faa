"""Environments of workers: the dependencies, installed once, and a wheel above them.

A worker's image holds the dependencies, and the files that a job stages are installed when the
worker starts. Here, `.venv-dependencies` (`make .venv-dependencies/installed`) holds what
`owt-pipeline` and the clients of its buckets depend on, without the package itself. `install` puts
a small environment above it. Nothing of the checkout can be imported in it.
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
    """pip could not install the requirements. The message is pip's."""


def install(folder: Path, requirements: Sequence[str | Path], base: Path = DEPENDENCIES) -> Path:
    """Make an environment in `folder` of `base` and `requirements`; return its Python.

    It uses no network. Raises InstallError if a requirement is broken, or needs something that is
    not in `base`.
    """
    subprocess.run([base / "bin/python", "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (base_packages,) = base.glob("lib/python*/site-packages")
    (packages / "base.pth").write_text(f"{base_packages}\n")
    if requirements:
        pip = [base / "bin/python", "-m", "pip", "--python", folder / "bin/python"]
        pip += ["install", "--quiet"]
        options = ["--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        process = subprocess.run(
            [*pip, *options, *requirements], capture_output=True, text=True, env=bare(), check=False
        )
        if process.returncode:
            raise InstallError(process.stderr.strip())
    return folder / "bin/python"


def bare(**variables: str) -> dict[str, str]:
    """Return the environment variables of a worker: only those that find programs and servers."""
    names = (
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
    names += ("AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED")
    return {name: os.environ[name] for name in names if name in os.environ} | variables


def wheel() -> Path:
    """Return the wheel of the checkout in `dist/`, which is built if a file of it is newer."""
    sources = [REPOSITORY / "pyproject.toml"]
    for package in ("owt_pipeline", "schemas", "trainer"):
        files = [path for path in (REPOSITORY / package).rglob("*") if path.is_file()]
        sources += [path for path in files if path.suffix != ".pyc"]
    (REPOSITORY / "dist").mkdir(exist_ok=True)
    with open(REPOSITORY / "dist/.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = sorted((REPOSITORY / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
        if built and built[-1].stat().st_mtime > max(path.stat().st_mtime for path in sources):
            return built[-1]
        # setuptools would add files that were deleted since it ran last.
        shutil.rmtree(REPOSITORY / "build/lib", ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--wheel-dir", "dist", "."], cwd=REPOSITORY, check=True)
        return max((REPOSITORY / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
