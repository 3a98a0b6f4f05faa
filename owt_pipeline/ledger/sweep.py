"""Removing what is out of date, once a run has ended. Only files with names that this package
gives are removed.

First the records of keys that no published list has; then the root is replaced, so that a run that
has lost its place cannot publish with them; then, from a new listing, files that neither the root
nor a remaining record names and that are older than the run, since a run that took over may have
written others by now.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.folder import Entry, Storage
from schemas import DATASETS
from schemas.datasets import LEDGER
from schemas.manifest import ManifestError, ShardRecord

logger = logging.getLogger("owt")

_RECORD = re.compile(rf"{LEDGER}/(?P<stage>\w+)/records/\d{{5}}-(?P<key>[0-9a-f]{{16}})\.json")
_WORK = re.compile(rf"{LEDGER}/(?P<stage>\w+)/work/.+")
_OWN = re.compile(
    r"(?:\w+|tokens/(?:train|val))/part-\d{5}-[0-9a-f]{8}\.(?:parquet|arrow)"
    r"|warc/part-\d{5}/(?:attempt|archive-.+\.warc\.gz)"  # other segments cannot be made again
    rf"|{LEDGER}/takedowns-[0-9a-f]{{8}}\.jsonl|{LEDGER}/\w+/\w+/part-\d{{5}}-[0-9a-f]{{8}}\.\w+|{LEDGER}/\w+/[\w.]+-[0-9a-f]{{8}}\.\w+"
)


def sweep(workdir: Storage, run: str, since: float) -> None:
    """Remove what no finished dataset needs; `since` is when the run `run` began, by the clock
    of the storage."""
    root, version = read_root(workdir)
    if version is None:
        return
    keys: dict[str, set[str]] = {}
    named = {root.takedowns}
    for manifest in root.datasets.values():
        try:
            table = DatasetReader(workdir, manifest).table_of_files
        except UserError as error:  # of a dataset that this run did not make
            logger.warning("what is out of date stays: %s", error)
            return
        keys.setdefault(manifest.stage, set()).update(record.key[:16] for record in table.records)
        named.add(manifest.files.path)
        named.update(file.path for file in table.files)
    names = [entry.name for entry in _own(workdir)]
    stale = [
        name
        for name in names
        if (found := _RECORD.fullmatch(name))
        and found["stage"] in keys
        and found["key"] not in keys[found["stage"]]
    ]
    workdir.delete(*stale)
    gone = set(stale)
    records = [name for name in names if _RECORD.fullmatch(name) and name not in gone]
    # Records of published keys name published files; only those of other stages, which are
    # interrupted, are read.
    for name in records:
        if _RECORD.fullmatch(name)["stage"] not in keys:  # type: ignore[index]
            with contextlib.suppress(FileNotFoundError, ManifestError):
                named.update(
                    file.path for file in ShardRecord.from_json(workdir.read(name), name).files
                )

    def is_done(name: str) -> bool:
        found = _WORK.fullmatch(name)
        return found is not None and found["stage"] in keys

    if not any(is_done(name) or (name not in named and _is_file(name)) for name in names):
        return
    swap_root(workdir, root, version, run)
    unnamed = [entry for entry in _own(workdir) if entry.name not in named]
    workdir.delete(
        *(entry.name for entry in unnamed if _is_file(entry.name) and entry.modified < since)
    )
    workdir.delete(*(entry.name for entry in unnamed if is_done(entry.name)))


def _is_file(name: str) -> bool:
    return bool(_OWN.fullmatch(name)) and not _RECORD.fullmatch(name) and not _WORK.fullmatch(name)


def _own(workdir: Storage) -> Iterator[Entry]:
    for folder in (*DATASETS, "warc", LEDGER):
        for entry in (workdir / folder).walk():
            yield entry._replace(name=f"{folder}/{entry.name}")
