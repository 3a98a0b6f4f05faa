"""import: the user's own text as documents/, in place of collect, fetch and extract."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, Summary
from owt_pipeline.errors import UserError
from owt_pipeline.formats.dates import UnreadDates
from owt_pipeline.formats.files import find_files, texts_of_option
from owt_pipeline.formats.records import describe_file, names_below_common_folder
from owt_pipeline.stages.import_text.groups import read_groups, write_groups
from owt_pipeline.stages.import_text.options import Options
from owt_pipeline.stages.import_text.shards import (
    DATES_KIND,
    RECORDS_STEP,
    merge_shard,
    place_group,
)
from owt_pipeline.stages.import_text.splits import held_out_files
from owt_pipeline.storage.folder import find_recorded
from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

# About 20,000 documents have this many bytes.
_SHARD_BYTES = 64 << 20
_MIN_SHARDS = 8
_MAX_FILES_SHOWN = 5


def _named_files(options: Options) -> dict[str, str]:
    """Return the name in messages of each file that the options name, by path.

    Raises UserError without files.
    """
    if not options.files:
        raise UserError("import: the command has no files to import: name at least one")
    accepted = texts_of_option("import", takes_all=options.format != "auto")
    return names_below_common_folder(find_files(options.files, accepted))


def _warn_of_held_out_files(options: Options) -> None:
    """Log the test splits that are imported."""
    held_out = held_out_files(options.files, _named_files(options)) if options.files else []
    if held_out:
        logger.warning(
            "import: also importing the test and validation splits next to a training split; to "
            "leave them out, name only the training files: %s",
            _shown(held_out),
        )


def _shown(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_MAX_FILES_SHOWN])
    if len(paths) > _MAX_FILES_SHOWN:
        shown += ", ..."
    return shown


def _parts_of_groups(run: StageRun) -> range:
    """Return the parts of step 1: the groups of files, and then the published shards."""
    return range(len(read_groups(run)) + run.plan.num_settled)


def _unread_dates(run: StageRun) -> UnreadDates:
    """Return the counts of dates in all files that this run has read."""
    dates = UnreadDates()
    for record in run.records_of_step(RECORDS_STEP):
        for file in record.files:
            if file.kind == DATES_KIND:
                dates.merge(msgspec.json.decode(run.work.read(file.path), type=UnreadDates))
    return dates


class Import(Stage):
    """Import your own text as documents/, instead of running collect, fetch and extract. A
    document's id is the hash of its canonical URL, or of its text if it has no URL. Of several
    documents with the same id, the first is kept.
    """

    name = "import"
    inputs = ()
    output = "documents"
    options = Options
    version = 10
    steps = (
        Step(place_group, RECORDS_STEP, keys=_parts_of_groups),
        Step(merge_shard),
    )
    example = "owt import runs/mine posts/*.jsonl.zst --text_field body --url_field link"

    def sources(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return the files to import, and the files that were imported before.

        A file that was imported before need not be named again.
        """
        files = _named_files(options)
        sources: list[dict[str, Any]] = []
        for path, name in files.items():
            earlier_source = find_recorded(recorded, path, name)
            sources.append({"kind": "file", **describe_file(path, name, earlier_source)})
        names = {source["name"] for source in sources}
        for source in recorded:
            if source["name"] not in names:
                sources.append(dict(source))
        return sources

    def shards_for(self, options: Options, sources: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of shards of a generation: about one for 20,000 documents."""
        if options.num_shards is not None:
            return options.num_shards
        num_bytes = sum(source["bytes"] for source in sources)
        return max(_MIN_SHARDS, round(num_bytes / _SHARD_BYTES))

    def set_up(self, run: StageRun) -> Summary:
        """Group the files of the generations that are made."""
        _warn_of_held_out_files(run.options)
        write_groups(run)
        return Summary()

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Warn of dates that are not understood, and if no record is a document."""
        dates = _unread_dates(run)
        if dates.problem:
            logger.warning("import: field %s: %s", run.options.date_field, dates.problem)
        has_entered = any(record.counts.entered for record in records)
        if has_entered and not any(record.counts.left for record in records):
            logger.warning(
                "import: imported no document; %s lists the reasons (is --text_field right?)",
                run.workdir.path("ledger/documents/rejects/"),
            )
        return Summary()


STAGE = Import()
