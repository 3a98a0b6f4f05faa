"""The versions of everything that shapes bytes, in the process that started a run and in its
workers."""

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
"""Distributions that shape every dataset; a stage names its own (`Stage.libraries`)."""
SHAPING = (".py", ".sql", ".npz", ".txt", ".toml", ".md", ".html", ".css", ".js")
"""Kinds of files of this package that shape bytes."""


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of distributions in this process."""
    return {name: _version(name) for name in (*ALWAYS, *names)}


def versions_of_everything(names: Iterable[str]) -> dict[str, str]:
    """The versions of distributions, of Python, and of this code, with a digest, as two wheels
    may share a number."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "python": python,
        OURS: f"{_version(OURS)} ({code_digest()})",
        **dict(sorted(versions_of(names).items())),
    }


def check_versions(expected: Mapping[str, str]) -> None:
    """Raise UserError with both lists if the versions of this process differ from those of the
    run."""
    found = versions_of_everything(name for name in expected if name not in ("python", OURS))
    if expected and found != dict(expected):
        raise UserError(
            f"a worker on {platform.node()} has other versions of what shapes bytes than the "
            f"process that started the "
            f"run. There: {_listed(found, expected)}. Here: {_listed(expected, found)}. Install "
            f"the same wheel and "
            "versions in both (constraints.txt)"
        )


def _listed(versions: Mapping[str, str], others: Mapping[str, str]) -> str:
    """The versions for a message, those that differ from `others` first."""
    names = sorted(versions, key=lambda name: (versions[name] == others.get(name), name))
    return ", ".join(f"{name} {versions[name]}" for name in names)


@functools.cache
def code_digest() -> str:
    """Eight hex digits of a digest of this package's code and of the queries, model, lists and
    templates it reads."""
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
