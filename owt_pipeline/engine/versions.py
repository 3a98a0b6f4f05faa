"""Versions of what shapes bytes: those of the process that started a run, and those of the workers that do it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import schemas
from owt_pipeline.engine.errors import UserError

OURS = "owt-pipeline"
ALWAYS = ("pyarrow",)
"""Distributions that shape every dataset; a stage names its own (`Stage.libraries`)."""
MISSING = "not installed"


def of_libraries(names: Iterable[str]) -> dict[str, str]:
    """The versions of distributions in this process."""
    return {name: _version(name) for name in (*ALWAYS, *names)}


def of_everything(names: Iterable[str]) -> dict[str, str]:
    """The versions of distributions, of Python, and of this code: an older wheel has the same number."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, OURS: f"{_version(OURS)} ({code_digest()})", **dict(sorted(of_libraries(names).items()))}


def skew(expected: Mapping[str, str], allowed: bool) -> dict[str, str]:
    """The versions of this process where they are not those `expected`; nothing where they are.

    Raises UserError with both lists where they differ, unless that is allowed.
    """
    found = of_everything(name for name in expected if name not in ("python", OURS))
    if found == dict(expected):
        return {}
    if not allowed:
        raise UserError(
            f"a worker on {platform.node()} has other versions of what shapes bytes than the process that started the "
            f"run. There: {listed(found, expected)}. Here: {listed(expected, found)}. Install the same wheel and "
            "versions in both (constraints.txt), or give --allow_version_skew"
        )
    return found


def listed(versions: Mapping[str, str], others: Mapping[str, str]) -> str:
    """A list for a message, those that differ from the others first."""
    names = sorted(versions, key=lambda name: (versions[name] == others.get(name), name))
    return ", ".join(f"{name} {versions[name]}" for name in names)


@functools.cache
def code_digest() -> str:
    """Eight hex digits of this package's own code."""
    digest = hashlib.sha256()
    package = sys.modules["owt_pipeline"]
    for module in (package, schemas):
        root = Path(str(module.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root.parent).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING
