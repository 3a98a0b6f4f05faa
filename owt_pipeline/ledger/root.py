"""The root manifest of a run: which datasets are finished, and what happened to the run.
Replaced by compare-and-swap.

A run's processes pass the version of the root that they wrote last from step to step, so that of
two runs in one folder only one can publish: the other finds a version that is not its own, and
stops (`RunSuperseded`).
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
"""What was written last, in case the root is damaged: generations and takedowns stand nowhere
else."""


_TAKEDOWNS = re.compile(r"takedowns-[0-9a-f]{8}\.jsonl")

_checked: dict[str, str] = {}
"""The version of the root next to which this process has seen its copy, by folder."""


def read_root(workdir: Storage) -> tuple[Root, str | None]:
    """Return the root manifest and its version; an empty one, and None, if there is none.

    A damaged or missing root is restored from its copy, and a damaged, missing or older copy is
    written anew. A restored root names the longest list of takedowns in the ledger, whatever the
    copy names: lists only grow, and an older one would bring back what was removed. Raises
    UserError if the root and its copy are damaged.
    """
    content, version = workdir.read_version(ROOT) or (b"", None)
    with contextlib.suppress(ManifestError):
        if version is not None:
            root = Root.from_json(content, workdir.path(ROOT))
            if _checked.get(workdir.uri) != version:
                with contextlib.suppress(OSError, UserError):  # of a folder that is only read
                    _renew_copy(workdir, root, content)
                _checked[workdir.uri] = version
            return root, version
        if not workdir.exists(COPY):
            return Root(takedowns=_longest_takedowns(workdir)), None
    try:
        copy = Root.from_json(workdir.read(COPY), workdir.path(COPY))
    except (FileNotFoundError, ManifestError) as error:
        raise UserError(f"{workdir.path(ROOT)} is damaged, and so is its copy ({error})") from error
    takedowns = _longest_takedowns(workdir) or copy.takedowns
    restored = msgspec.structs.replace(copy, takedowns=takedowns)
    logger.warning("%s was damaged or gone, and is restored from its copy", workdir.path(ROOT))
    workdir.swap(ROOT, restored.to_json(), version)
    return read_root(workdir)  # of two processes, one restores it


def problem_of_copy(workdir: Storage) -> str:
    """Return what is wrong with the copy of the root manifest; "" for nothing, or without a root
    that can be read."""
    content, version = workdir.read_version(ROOT) or (b"", None)
    if version is None:
        return ""
    try:
        root = Root.from_json(content, workdir.path(ROOT))
    except ManifestError:
        return ""
    return _problem_of_copy(root, content, (workdir.read_version(COPY) or (None, None))[0])


def _problem_of_copy(root: Root, content: bytes, copy: bytes | None) -> str:
    if copy is None:
        return "is missing"
    if copy == content:
        return ""
    try:
        sequence = Root.from_json(copy, COPY).sequence
    except ManifestError:
        return "is damaged"
    # A process that has just replaced the root may be about to write its own copy.
    return "" if sequence > root.sequence else "is older than the root manifest"


def _renew_copy(workdir: Storage, root: Root, content: bytes) -> None:
    """Write the copy anew if something is wrong with it, unless another process does so."""
    copy, version = workdir.read_version(COPY) or (None, None)
    if _problem_of_copy(root, content, copy):
        workdir.swap(COPY, content, version)


def _longest_takedowns(workdir: Storage) -> str:
    """Return the path of the longest list of takedowns in the ledger; "" if there is none."""
    lists = [
        (entry.bytes, entry.modified, entry.name)
        for entry in (workdir / LEDGER).walk("takedowns-")
        if _TAKEDOWNS.fullmatch(entry.name)
    ]
    return f"{LEDGER}/{max(lists)[2]}" if lists else ""


def read_own_root(workdir: Storage, version: str | None, run: str) -> tuple[Root, str | None]:
    """Return the root manifest and its version, for a run that has written `version` last.

    Raises RunSuperseded if another run has replaced it since. Raises UserError if there is none,
    since then this process does not see the launcher's folder.
    """
    root, current = read_root(workdir)
    if version is not None and current is None:
        raise UserError(
            f"{workdir}: the workers do not see what is written there; give a bucket (gs://, "
            f"s3://, az://), or a "
            "folder with the same path on a disk that all machines share"
        )
    if current != version and root.run != run:
        raise published_by_another(workdir)
    return root, current


def published_by_another(workdir: Storage) -> RunSuperseded:
    return RunSuperseded(f"another run has published in {workdir}; this one stops")


def swap_root(workdir: Storage, root: Root, version: str | None, run: str) -> tuple[Root, str]:
    """Replace the root manifest of this version by `root`, written by `run`; returns it as
    written, and its version.

    Raises RunSuperseded if another process has replaced it.
    """
    root = msgspec.structs.replace(root, sequence=root.sequence + 1, run=run)
    content = root.to_json()
    swapped = workdir.swap(ROOT, content, version)
    if swapped is None:
        found = workdir.read_version(ROOT)
        if (
            found is None or found[0] != content
        ):  # otherwise it was written, and the answer was lost
            raise published_by_another(workdir)
        swapped = found[1]
    workdir.write(COPY, content)
    _checked[workdir.uri] = swapped
    return root, swapped


def change_root(
    workdir: Storage, change: Callable[[Root], Root], run: str
) -> tuple[Root, str | None]:
    """Replace the root by `change(root)`, unless that is equal; for a process that holds the
    run's lock."""
    root, version = read_root(workdir)
    changed = change(root)
    return (root, version) if changed == root else swap_root(workdir, changed, version, run)


def read_manifest(workdir: Storage, dataset: str) -> Manifest | None:
    """The manifest of a finished dataset, or None; raises UserError if the root is damaged."""
    return read_root(workdir)[0].datasets.get(dataset)


def require_run(workdir: Storage, advice: str = "check the path") -> Root:
    """The root manifest; raises NotFound if the folder is not a run. Commands that read call
    this first."""
    root, version = read_root(workdir)
    if version is None:
        raise NotFound(f"{workdir} is not a run: no stage has written anything there; {advice}")
    return root


def require_manifest(workdir: Storage, dataset: str) -> Manifest:
    """The manifest of `dataset`; if it is not finished, raises NotFound, which names the stage
    to run."""
    manifest = require_run(workdir).datasets.get(dataset)
    if manifest is None:
        stage = DATASETS[dataset].stage if dataset in DATASETS else dataset
        raise NotFound(
            f"{workdir}/{dataset} is missing or not finished: run "
            f"{command('owt', 'run', workdir, '--until', stage)} first"
        )
    return manifest
