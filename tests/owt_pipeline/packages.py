"""Packages that add to the pipeline, installed into a folder as pip installs them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from owt_pipeline import additions
from owt_pipeline.formats.archives import archive_kind_of
from owt_pipeline.stages.collect.sources import kinds

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def install(folder: Path, project: str, module: str) -> None:
    """Install a package of one module: its file, and the metadata that a wheel has.

    Another version of the package is replaced.

    Args:
      folder: a folder of the search path.
      project: the content of its pyproject.toml.
      module: the content of its module.
    """
    declared = tomllib.loads(project)["project"]
    stem = declared["name"].replace("-", "_")
    uninstall(folder, declared["name"])
    (folder / f"{stem}.py").write_text(module)
    info = folder / f"{stem}-{declared['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {declared['name']}\nVersion: {declared['version']}\n"
    (info / "METADATA").write_text(head)
    lines: list[str] = []
    for group, points in declared["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def uninstall(folder: Path, name: str) -> None:
    """Remove the metadata of a package, so that it adds nothing."""
    for info in folder.glob(f"{name.replace('-', '_')}-*.dist-info"):
        for file in info.iterdir():
            file.unlink()
        info.rmdir()


def install_documented(folder: Path, guide: str, version: str = "1.0") -> None:
    """Install the package that a guide of the documentation builds, as some version."""
    text = (GUIDES / guide).read_text()
    (module, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    install(folder, project.replace('"1.0"', f'"{version}"'), module)


@contextlib.contextmanager
def installed_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process find the packages of a folder, as a new process does."""
    caches = (additions.additions_to, additions.added_kinds, kinds, archive_kind_of)
    monkeypatch.syspath_prepend(str(folder))
    for cached in caches:
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()
    for module in folder.glob("*.py"):
        sys.modules.pop(module.stem, None)
