"""Remove out-of-date files once a run has ended. Only files with names of this package are removed.

1. Remove the records of keys that no published list has.
2. Replace the root, so that a superseded run cannot publish with these records.
3. List again, and remove the files that neither the root nor a remaining record names.

Only records and files that are older than the run, or from the future, are removed: a run that took
over may have written others by now. Only the run's own stages are swept, so that a takedown between
a killed stage and its continuation leaves the finished shards of the killed stage. After a run of
all stages, a reader of a dataset's folder finds each shard once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Collection, Iterator, Sequence

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.folder import Entry, Storage
from schemas import DATASETS
from schemas.datasets import LEDGER
from schemas.manifest import ManifestError, ShardRecord

logger = logging.getLogger("owt")

_RECORD = re.compile(rf"{LEDGER}/(?P<stage>\w+)/records/\d{{5}}-(?P<key>[0-9a-f]{{16}})\.json")
_WORK = re.compile(rf"{LEDGER}/(?P<stage>\w+)/work/(?P<keys>[0-9a-f]{{16}})-\d+/.+")
# Segments of warc/ are left out, because the pages and archives that they come from may be gone.
_FILE = re.compile(
    "|".join(
        (
            r"(?:\w+|tokens/(?:train|val))/part-\d{5}-[0-9a-f]{8}\.(?:parquet|arrow)",
            r"warc/part-\d{5}/attempt",
            rf"{LEDGER}/\w+/\w+/part-\d{{5}}-[0-9a-f]{{8}}\.\w+",
            rf"{LEDGER}/\w+/[\w.]+-[0-9a-f]{{8}}\.\w+",
        )
    )
)

# Seconds by which the times of files written at once may differ.
_MAX_CLOCK_ERROR = 1.0


def work_name(keys: Sequence[str], num_settled: int) -> str:
    """Return the name of the folder of a stage's intermediate steps.

    All attempts at the shards of the generations that are not published yet share it. It does not
    depend on which of these shards are finished, so an interrupted stage finds its steps again.

    Args:
      keys: the keys of all shards of the stage.
      num_settled: number of shards of the first generations, which are published with these keys.
    """
    return f"{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}-{num_settled}"


def sweep(workdir: Storage, run: str, since: float, stages: Collection[str]) -> None:
    """Remove the files that no finished dataset needs.

    Args:
      workdir: the run's folder.
      run: id of the run that has ended.
      since: when it began, in seconds since 1970 by the clock of the storage.
      stages: names of the stages whose files are removed.
    """
    root, version = read_root(workdir)
    if version is None:
        return
    sweeping = _Sweeping(stages)
    for manifest in root.datasets.values():
        try:
            table = DatasetReader(workdir, manifest).table_of_files
        except UserError as error:
            # The list of a dataset that this run has not made is damaged, so its files are unknown.
            logger.warning("out-of-date files were not removed: %s", error)
            return
        keys = [record.key for record in table.records]
        paths = [manifest.files.path, *(file.path for file in table.files)]
        sweeping.publish(manifest.stage, manifest.dataset, keys, paths)
    listing = list(_list_files(workdir))
    stale_names = sweeping.stale_names(_names_before(workdir, listing, since))
    workdir.delete(*filter(_RECORD.fullmatch, stale_names))
    for entry in listing:
        # Records of published keys name published files.
        if sweeping.is_unpublished(entry.name) and entry.name not in stale_names:
            with contextlib.suppress(FileNotFoundError, ManifestError):
                record = ShardRecord.from_json(workdir.read(entry.name), entry.name)
                sweeping.named.update(file.path for file in record.files)
    done_names = [entry.name for entry in listing if sweeping.is_done(entry.name)]
    if not stale_names and not done_names:
        return
    swap_root(workdir, root, version, run)
    listing = list(_list_files(workdir))
    stale_names = sweeping.stale_names(_names_before(workdir, listing, since))
    workdir.delete(*stale_names, *(entry.name for entry in listing if sweeping.is_done(entry.name)))


class _Sweeping:
    """The files of a run that are published, and the stages whose other files are removed.

    Attributes:
      named: paths of the files that are published, or that a remaining record names.
    """

    def __init__(self, stages: Collection[str]):
        self.named: set[str] = set()
        self._stages = stages
        self._published_keys: dict[str, set[str]] = {}
        self._done_work: set[tuple[str, str]] = set()
        self._stage_by_folder = {dataset.name: dataset.stage for dataset in DATASETS.values()}
        self._stage_by_folder["warc"] = self._stage_by_folder["pages"]

    def publish(
        self, stage: str, dataset: str, keys: Sequence[str], paths: Collection[str]
    ) -> None:
        """Add a published dataset: the keys of its shards, and the paths of its files."""
        self.named.update(paths)
        self._stage_by_folder[dataset] = stage
        if stage in self._stages:
            self._published_keys[stage] = {key[:16] for key in keys}
            self._done_work.add((stage, work_name(keys, 0).partition("-")[0]))

    def is_unpublished(self, name: str) -> bool:
        """Return whether a file is a record of a swept stage whose key is not published."""
        match = _RECORD.fullmatch(name)
        if match is None or match["stage"] not in self._published_keys:
            return False
        return match["key"] not in self._published_keys[match["stage"]]

    def is_done(self, name: str) -> bool:
        """Return whether a file belongs to the intermediate steps of published shards."""
        match = _WORK.fullmatch(name)
        return match is not None and (match["stage"], match["keys"]) in self._done_work

    def stale_names(self, names: Collection[str]) -> list[str]:
        """Return the files among `names` that are not needed, sorted."""
        return sorted(filter(self._is_stale, names))

    def _is_stale(self, name: str) -> bool:
        folder, _, _ = name.removeprefix(f"{LEDGER}/").partition("/")
        if self._stage_by_folder.get(folder, folder) not in self._published_keys:
            return False
        if _RECORD.fullmatch(name):
            return self.is_unpublished(name)
        if _WORK.fullmatch(name):
            return True
        return name not in self.named and _FILE.fullmatch(name) is not None


def _names_before(workdir: Storage, listing: Sequence[Entry], since: float) -> set[str]:
    """Return the names of files that were written before `since`.

    These are older, or from the future: the clock was set back after they had been written. A run
    that took over writes no files from the future.
    """
    latest = workdir.clock() + _MAX_CLOCK_ERROR
    return {entry.name for entry in listing if not since <= entry.modified <= latest}


def _list_files(workdir: Storage) -> Iterator[Entry]:
    """Yield the files of the datasets' folders and of the ledger."""
    for folder in (*DATASETS, "warc", LEDGER):
        for entry in (workdir / folder).walk():
            yield entry._replace(name=f"{folder}/{entry.name}")
