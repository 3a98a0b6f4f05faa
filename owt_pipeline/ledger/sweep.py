"""Remove out-of-date files once a run has ended. Only files with names of this package are removed.

1. Remove the records of keys that no published list has.
2. Replace the root, so that a superseded run cannot publish with these records.
3. List again, and remove the files that neither the root nor a remaining record names and that are
   older than the run, or from the future. A run that took over may have written others by now.

The finished shards of an interrupted stage stay, to be continued: the records of its plan's keys,
their files, and its intermediate steps. They stay until a run has made and published the same
shards, or until a run of all stages ends, with whatever options. Then all datasets are finished,
the interrupted run's shards are not going to be published, and a reader of a dataset's folder must
find each shard once. A takedown and a run `--until` a stage leave them.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.folder import Entry, Storage
from schemas import DATASETS
from schemas.datasets import LEDGER
from schemas.manifest import ManifestError, ShardRecord

logger = logging.getLogger("owt")

_RECORD = re.compile(
    rf"{LEDGER}/(?P<stage>\w+)/records/(?P<shard>\d{{5}})-(?P<key>[0-9a-f]{{16}})\.json"
)
_WORK = re.compile(rf"{LEDGER}/(?P<stage>\w+)/work/(?P<work>[0-9a-f]+)/.+")
_PLAN = re.compile(rf"{LEDGER}/(?P<stage>\w+)/work/(?P<work>[0-9a-f]+)/plan-[0-9a-f]+\.json")
# Segments of the web are left out, because they cannot be rebuilt.
_REMOVABLE = re.compile(
    "|".join(
        (
            r"(?:\w+|tokens/(?:train|val))/part-\d{5}-[0-9a-f]{8}\.(?:parquet|arrow)",
            r"warc/part-\d{5}/(?:attempt|archive-.+\.warc\.gz)",
            rf"{LEDGER}/\w+/\w+/part-\d{{5}}-[0-9a-f]{{8}}\.\w+",
            rf"{LEDGER}/\w+/[\w.]+-[0-9a-f]{{8}}\.\w+",
        )
    )
)


# Seconds by which the times of files written at once may differ.
_MAX_CLOCK_ERROR = 1.0


class _Plan(msgspec.Struct, rename={"pending": "make"}):
    """The fields of a plan that the sweep reads: the key of each shard, and the shards to make."""

    keys: list[str]
    pending: list[int]


@dataclass
class _StageWork:
    """The plans of a published stage that still have a folder of intermediate steps.

    Attributes:
      made: the shards that plans with the published keys have made.
      done: the folders of plans that have no shard left to make.
      resumable: shard and key of each shard that an interrupted plan can still make.
    """

    made: set[int] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    resumable: set[tuple[int, str]] = field(default_factory=set)


def sweep(workdir: Storage, run: str, since: float, *, is_complete: bool = False) -> None:
    """Remove the files that no finished dataset needs.

    Args:
      run: id of the run that has ended.
      since: when it began, by the clock of the storage.
      is_complete: whether it has run all stages, so that nothing is left to be continued. Files
        that are newer than the run stay nevertheless: a run that took over may have written them.
    """
    root, version = read_root(workdir)
    if version is None:
        return
    keys: dict[str, list[str]] = {}
    named: set[str] = set()
    for manifest in root.datasets.values():
        try:
            table = DatasetReader(workdir, manifest).table_of_files
        except UserError as error:
            # The list of a dataset that this run has not made is damaged, so its files are unknown.
            logger.warning("out-of-date files were not removed: %s", error)
            return
        keys[manifest.stage] = [record.key for record in table.records]
        named.add(manifest.files.path)
        named.update(file.path for file in table.files)
    listing = list(_list_files(workdir))
    names = [entry.name for entry in listing]
    abandoned = _names_before(workdir, listing, since) if is_complete else set()
    work_by_stage = _read_plans(workdir, names, keys, abandoned)
    stale, unfinished = _unpublished_records(names, keys, work_by_stage)
    workdir.delete(*stale)
    # Records of published keys name published files.
    for name in unfinished:
        with contextlib.suppress(FileNotFoundError, ManifestError):
            record = ShardRecord.from_json(workdir.read(name), name)
            named.update(file.path for file in record.files)
    stage_by_folder = {dataset.name: dataset.stage for dataset in DATASETS.values()}
    stage_by_folder |= {manifest.dataset: manifest.stage for manifest in root.datasets.values()}
    stage_by_folder["warc"] = stage_by_folder["pages"]

    def is_removable(name: str) -> bool:
        if name in named or not _is_file(name):
            return False
        folder, _, _ = name.removeprefix(f"{LEDGER}/").partition("/")
        stage = stage_by_folder.get(folder, folder)
        if stage not in keys:
            return False
        # A takedown between a killed stage and its continuation must leave the stage's files.
        work = work_by_stage[stage]
        return bool(work.made or not work.resumable)

    def is_done(name: str) -> bool:
        match = _WORK.fullmatch(name)
        if match is None or match["stage"] not in keys:
            return False
        return match["work"] in work_by_stage[match["stage"]].done

    if not any(is_done(name) or is_removable(name) for name in names):
        return
    swap_root(workdir, root, version, run)
    listing = list(_list_files(workdir))
    workdir.delete(*filter(is_removable, sorted(_names_before(workdir, listing, since))))
    workdir.delete(*(entry.name for entry in listing if is_done(entry.name)))


def _names_before(workdir: Storage, listing: Sequence[Entry], since: float) -> set[str]:
    """Return the names of files that were written before `since`.

    These are older, or from the future: the clock was set back after they had been written. A run
    that took over writes no files from the future.
    """
    latest = workdir.clock() + _MAX_CLOCK_ERROR
    return {entry.name for entry in listing if not since <= entry.modified <= latest}


def _read_plans(
    workdir: Storage,
    names: Sequence[str],
    keys: Mapping[str, list[str]],
    abandoned: Collection[str],
) -> dict[str, _StageWork]:
    """Return the work of each published stage, from the plan files among `names`.

    The plan files in `abandoned` are skipped, since no run will continue them.
    """
    plans_by_folder: dict[tuple[str, str], list[_Plan]] = {}
    for name in names:
        match = _WORK.fullmatch(name)
        if match is None or match["stage"] not in keys:
            continue
        plans = plans_by_folder.setdefault((match["stage"], match["work"]), [])
        if _PLAN.fullmatch(name) and name not in abandoned:
            with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                plans.append(msgspec.json.decode(workdir.read(name), type=_Plan))
    work_by_stage = {stage: _StageWork() for stage in keys}
    for (stage, _), plans in plans_by_folder.items():
        for plan in plans:
            if plan.keys == keys[stage]:
                work_by_stage[stage].made.update(plan.pending)
    for (stage, folder), plans in plans_by_folder.items():
        work = work_by_stage[stage]
        published = set(keys[stage])
        resumable = set()
        for plan in plans:
            for shard in set(plan.pending) - work.made:
                if plan.keys[shard] not in published:
                    resumable.add((shard, plan.keys[shard][:16]))
        work.resumable |= resumable
        if not resumable:
            work.done.add(folder)
    return work_by_stage


def _unpublished_records(
    names: Sequence[str], keys: Mapping[str, list[str]], work_by_stage: Mapping[str, _StageWork]
) -> tuple[list[str], list[str]]:
    """Return the records of keys that are not published, by their names.

    Nothing needs the records in the first list. An interrupted stage continues with the records in
    the second list.
    """
    published: dict[str, set[str]] = {}
    for stage, stage_keys in keys.items():
        published[stage] = {key[:16] for key in stage_keys}
    stale: list[str] = []
    unfinished: list[str] = []
    for name in names:
        match = _RECORD.fullmatch(name)
        if match is None or match["key"] in published.get(match["stage"], ()):
            continue
        shard_key = (int(match["shard"]), match["key"])
        is_stale = match["stage"] in keys and (
            shard_key not in work_by_stage[match["stage"]].resumable
        )
        (stale if is_stale else unfinished).append(name)
    return stale, unfinished


def _is_file(name: str) -> bool:
    """Return whether a name belongs to a shard's file, a list or an asset."""
    return (
        bool(_REMOVABLE.fullmatch(name))
        and not _RECORD.fullmatch(name)
        and not _WORK.fullmatch(name)
    )


def _list_files(workdir: Storage) -> Iterator[Entry]:
    """Yield the files of the datasets' folders and of the ledger."""
    for folder in (*DATASETS, "warc", LEDGER):
        for entry in (workdir / folder).walk():
            yield entry._replace(name=f"{folder}/{entry.name}")
