"""Compare the versions of everything that shapes bytes between a run's launcher and its workers."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import schemas
from owt_pipeline.errors import UserError

OURS = "owt-pipeline"
ALWAYS = ("pyarrow",)
"""Distributions that shape every dataset. A stage names others (`Stage.libraries`)."""

SHAPING = (".py", ".sql", ".npz", ".txt", ".toml", ".md", ".html", ".css", ".js")
"""Kinds of files of this package that shape bytes."""


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions in this process."""
    return {name: _version(name) for name in (*ALWAYS, *names)}


def versions_of_everything(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions, of Python and of this code.

    The version of this code has a digest, since two wheels may have the same number.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "python": python,
        OURS: f"{_version(OURS)} ({code_digest()})",
        **dict(sorted(versions_of(names).items())),
    }


def check_versions(expected: Mapping[str, str]) -> None:
    """Raise UserError with both lists if this process and the run have different versions."""
    if not expected:
        return
    libraries = [name for name in expected if name not in ("python", OURS)]
    here = versions_of_everything(libraries)
    if here != dict(expected):
        raise UserError(
            f"a worker on {platform.node()} has other versions than the process that started the "
            f"run, so its files might differ. The worker has {_list_versions(here, expected)}. The "
            f"process has {_list_versions(expected, here)}. Install the same wheel and versions in "
            "both (constraints.txt)"
        )


def _list_versions(versions: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return the versions for a message, those that differ from `others` first."""
    names = sorted(versions, key=lambda name: (versions[name] == others.get(name), name))
    return ", ".join(f"{name} {versions[name]}" for name in names)


@functools.cache
def code_digest() -> str:
    """Return eight hex digits of a digest of this package's code, and of the queries, model,
    lists and templates that it reads."""
    digest = hashlib.sha256()
    package = sys.modules["owt_pipeline"]
    for module in (package, schemas):
        root = Path(str(module.__file__)).parent
        for path in sorted(path for path in root.rglob("*") if path.suffix in SHAPING):
            digest.update(
                f"{path.relative_to(root.parent).as_posix()}\0".encode() + path.read_bytes()
            )
    return digest.hexdigest()[:8]


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
