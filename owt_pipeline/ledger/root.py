"""Read and replace the root manifest of a run: its finished datasets and its history.

It is replaced by compare-and-swap. A run's processes pass the version of the root that they wrote
last from step to step. So if two runs are in one folder, only one can publish. The other finds a
version that is not its own, and stops (`RunSuperseded`).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable

import msgspec

from owt_pipeline.errors import NotFound, RunSuperseded, UserError, command
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.datasets import LEDGER
from schemas.manifest import ROOT, Manifest, ManifestError, Root

logger = logging.getLogger("owt")

COPY = f"{ROOT}.copy"
"""A copy of the root, in case it is damaged: generations are nowhere else."""

TAKEDOWNS = f"{LEDGER}/takedowns"
"""The folder of the files of takedowns. `engine/takedowns.py` reads and writes them."""

_TAKEDOWN_NAME = re.compile(r"[0-9a-f]{16}\.parquet")

# The version of the root whose copy this process has checked, by folder.
_checked: dict[str, str] = {}


def read_root(workdir: Storage) -> tuple[Root, str | None]:
    """Return the root manifest and its version; an empty one, and None, if there is none.

    A damaged or missing root is restored from its copy. A damaged, missing or older copy is
    replaced. The returned root also has the names of all files of takedowns, so that neither an
    older root nor an older copy brings back removed documents. Raises UserError if the root and its
    copy are damaged.
    """
    root, version = _read_stored_root(workdir)
    return _with_takedowns(workdir, root), version


def _with_takedowns(workdir: Storage, root: Root) -> Root:
    """Return the root with the names of all files of takedowns, also of those that it lacks."""
    names = {entry.name for entry in (workdir / TAKEDOWNS).walk()}
    names = {name for name in names if _TAKEDOWN_NAME.fullmatch(name)}
    return msgspec.structs.replace(root, takedowns=sorted(names.union(root.takedowns)))


def _read_stored_root(workdir: Storage) -> tuple[Root, str | None]:
    """Return the root manifest as it is stored, and its version, as `read_root`."""
    content, version = workdir.read_version(ROOT) or (b"", None)
    with contextlib.suppress(ManifestError):
        if version is not None:
            root = Root.from_json(content, workdir.path(ROOT))
            if _checked.get(workdir.uri) != version:
                # Whoever may only read the folder cannot renew the copy.
                with contextlib.suppress(OSError, UserError):
                    _renew_copy(workdir, content)
                _checked[workdir.uri] = version
            return root, version
        if not workdir.exists(COPY):
            return Root(), None
    try:
        copy = Root.from_json(workdir.read(COPY), workdir.path(COPY))
    except (FileNotFoundError, ManifestError) as error:
        raise UserError(
            f"{workdir.path(ROOT)} and its copy are damaged ({error}): restore one of them from a "
            "backup"
        ) from error
    logger.warning("%s was damaged or missing; restored it from its copy", workdir.path(ROOT))
    # If two processes restore it at once, only one succeeds, and both read the same root.
    workdir.swap(ROOT, copy.to_json(), version)
    return _read_stored_root(workdir)


def problem_of_copy(workdir: Storage) -> str:
    """Return the problem of the root manifest's copy.

    Returns "" if it has none, or if no root can be read.
    """
    content, _ = workdir.read_version(ROOT) or (b"", None)
    with contextlib.suppress(ManifestError):
        Root.from_json(content, workdir.path(ROOT))
        copy, _ = workdir.read_version(COPY) or (None, None)
        if copy != content:
            return "is missing" if copy is None else "differs from the root manifest"
    return ""


def _renew_copy(workdir: Storage, content: bytes) -> None:
    """Replace the copy if it differs, unless another process does so."""
    copy, version = workdir.read_version(COPY) or (None, None)
    if copy != content:
        workdir.swap(COPY, content, version)


def read_own_root(workdir: Storage, version: str | None, run: str) -> tuple[Root, str | None]:
    """Return the root manifest and its version, for a run that has written `version` last.

    Raises RunSuperseded if another run has replaced it since. Raises UserError if there is none,
    since then this process does not see the launcher's folder.
    """
    root, current = read_root(workdir)
    if version is not None and current is None:
        raise UserError(
            f"the workers do not see the files in {workdir}; give a bucket (gs://, s3://, az://), "
            "or a folder on a disk that all machines share under the same path"
        )
    if current != version and root.run != run:
        raise published_by_another(workdir)
    return root, current


def published_by_another(workdir: Storage) -> RunSuperseded:
    """Return the error of a run that finds another run's root."""
    return RunSuperseded(f"another run has published in {workdir}; this one stops")


def swap_root(workdir: Storage, root: Root, version: str | None, run: str) -> tuple[Root, str]:
    """Replace the root manifest of this version by `root`, in the name of `run`.

    Returns the root as it was written, and its version. Raises RunSuperseded if another process has
    replaced it.
    """
    root = msgspec.structs.replace(root, sequence=root.sequence + 1, run=run)
    content = root.to_json()
    swapped = workdir.swap(ROOT, content, version)
    if swapped is None:
        # A bucket's response may be lost though the root was written.
        current = workdir.read_version(ROOT)
        if current is None or current[0] != content:
            raise published_by_another(workdir)
        swapped = current[1]
    workdir.write(COPY, content)
    _checked[workdir.uri] = swapped
    return root, swapped


def change_root(
    workdir: Storage, change: Callable[[Root], Root], run: str
) -> tuple[Root, str | None]:
    """Replace the root by `change(root)`, unless that is stored; return it and its version.

    The process must hold the run's lock.
    """
    stored, version = _read_stored_root(workdir)
    changed = change(_with_takedowns(workdir, stored))
    return (stored, version) if changed == stored else swap_root(workdir, changed, version, run)


def read_manifest(workdir: Storage, dataset: str) -> Manifest | None:
    """Return the manifest of a finished dataset, or None.

    Raises UserError if the root is damaged.
    """
    return read_root(workdir)[0].datasets.get(dataset)


def require_run(workdir: Storage, advice: str = "check the path") -> Root:
    """Return the root manifest. Raises NotFound if the folder is not a run.

    Commands that read a run call this first.
    """
    root, version = read_root(workdir)
    if version is None:
        raise NotFound(f"{workdir} is not a run: it has no {ROOT}; {advice}")
    return root


def require_manifest(workdir: Storage, dataset: str) -> Manifest:
    """Return the manifest of `dataset`.

    Raises NotFound, which names the stage to run, if the dataset is not finished.
    """
    manifest = require_run(workdir).datasets.get(dataset)
    if manifest is None:
        stage = DATASETS[dataset].stage if dataset in DATASETS else dataset
        raise NotFound(
            f"{workdir}/{dataset} is missing or not finished: run "
            f"{command('owt', 'run', workdir, '--until', stage)} first"
        )
    return manifest
