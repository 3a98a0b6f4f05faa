"""import: the user's own text as documents/, in place of collect, fetch and extract."""

from __future__ import annotations

import datetime
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline import progress
from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step
from owt_pipeline.errors import UserError
from owt_pipeline.formats.records import (
    FORMATS,
    Record,
    describe_file,
    field_value,
    format_of,
    held_out_files,
    named_files,
    read_records,
)
from owt_pipeline.formats.urls import BadURL, canonical_url, id_of
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, Outcome
from owt_pipeline.ledger.exchange import Slice, read_slices
from owt_pipeline.storage.folder import find_recorded
from schemas import DATASETS, REJECTS, Reason, option
from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

_GROUPS_NAME = "groups.json"
_GROUP_BYTES, _GROUP_FILES = 64 << 20, 1000
_BATCH_BYTES = 4 << 20
_SHARD_BYTES, _LEAST_SHARDS = 64 << 20, 8  # about 20,000 documents


@dataclass(frozen=True)
class ImportOptions:
    files: tuple[str, ...] = option(
        (),
        "JSON Lines, Parquet, CSV or plain text files, also compressed (.gz, .zst, .xz, .bz2): "
        "paths, folders, globs",
        metavar="FILE",
        shapes_bytes=False,  # the key includes the files' content instead of their paths
    )
    format: str = option(
        "auto", "format of the files; auto uses the extension", choices=("auto", *FORMATS)
    )
    text_field: str = option("text", "field or column with the text; a.b is field b of field a")
    url_field: str = option(
        "url", "field with the URL; the id is its hash, or the text's hash without a URL"
    )
    title_field: str = option("title", "field with the title")
    author_field: str = option("author", "field with the author")
    date_field: str = option("date", "field with the date of publication (YYYY-MM-DD...)")
    language_field: str = option("language", "field with the language (ISO 639-1)")
    split_text: str = option(
        "file",
        "how a plain text file is split: one document per file, per block between blank lines, or "
        "per WikiText article",
        choices=("file", "blank_lines", "wikitext"),
    )
    num_shards: int | None = option(
        None, "shards of a generation (default: about one for 20,000 documents, at least "
        "8)", minimum=1,
        maximum=100_000,
        shapes_bytes=False,  # the generation has it
    )  # fmt: skip


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    """A file to import: its path, its name in messages, its format, and its generation."""

    path: str
    name: str
    kind: str
    generation: int


def _groups(run: StageRun) -> list[list[SourceFile]]:
    return msgspec.json.decode(run.work.read(_GROUPS_NAME), type=list[list[SourceFile]])


def place_group(run: StageRun, group: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 1: send the records of a group of files to their shards; or the ids of a shard of an
    earlier generation."""
    groups = _groups(run)
    if group >= len(groups):
        assert run.before is not None
        _send_ids(run, 0, DatasetReader(run.workdir, run.before).ids(group - len(groups)), writer)
        return
    generation = groups[group][0].generation
    of = run.root.generations[generation]

    def send(rows: list[dict[str, Any]]) -> None:
        batch = pa.RecordBatch.from_pylist(rows, PLACED)
        ids = batch["url_id"].to_numpy()
        writer.send(of.first + (ids % np.uint64(of.shards)).astype(np.int64), batch)
        _send_ids(
            run,
            generation + 1,
            ids[batch["reason"].is_null().to_numpy(zero_copy_only=False)],
            writer,
        )
        progress.advance(len(rows))

    rows: list[dict[str, Any]] = []
    size = 0
    for record, names in _records(groups[group], run.options):
        rows.append(place(record, names))
        size += len(rows[-1]["text"])
        if size >= _BATCH_BYTES or len(rows) == 1024:
            send(rows)
            rows, size = [], 0
    if rows:
        send(rows)


def _send_ids(run: StageRun, since: int, ids: np.ndarray, writer: ShardWriter) -> None:
    """Send ids that an earlier generation has to the shards of the generations that are made,
    from `since` on."""
    for generation in run.root.generations[since:]:
        if generation.first >= run.settled:
            shards = generation.first + (ids % np.uint64(generation.shards)).astype(np.int64)
            writer.send(shards, pa.record_batch([pa.array(ids)], SEEN))


def _records(
    files: Sequence[SourceFile], options: ImportOptions
) -> Iterator[tuple[Record, Mapping[str, str]]]:
    """Each record with the names of its fields."""
    given = {field: getattr(options, f"{field}_field") for field in FIELDS}
    columns = {
        name for field in given.values() if field for name in (field, field.partition(".")[0])
    }
    for file in files:
        names = {**dict.fromkeys(FIELDS, ""), "text": "text"} if file.kind == "text" else given
        for record in read_records(
            file.path, file.name, file.kind, columns=columns, split_text=options.split_text
        ):
            yield record, names


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 2: write one shard in the order of the files, keeping the first document of each id."""
    is_seen = [table.schema.names == SEEN.names for table in read_slices(run.work, slices)]
    seen = read_slices(run.work, list(itertools.compress(slices, is_seen)))
    own = [slice for slice, known in zip(slices, is_seen, strict=True) if not known]
    ids = pa.concat_tables([SEEN.empty_table(), *seen])["url_id"].to_numpy()
    first = first_of_each_id(
        (table.select(["url_id", "reason"]) for table in read_slices(run.work, own)), ids
    )
    start = 0
    for table in read_slices(run.work, own):
        for batch in table.to_batches(max_chunksize=256):
            writer.add(batch.num_rows, outcome(batch, first[start : start + batch.num_rows]))
            start += batch.num_rows


def _named(options: ImportOptions) -> tuple[dict[str, str], list[str]]:
    """As `named_files`."""
    if not options.files:
        raise UserError("import: no files given: name at least one")
    return named_files(options.files, "import", by_extension=options.format == "auto")


class Import(Stage):
    """Import your own text as documents/, in place of collect, fetch and extract. A document's
    id is the hash of its canonical URL, or of its text if it has no URL; the first document with
    an id is kept.
    """

    name = "import"
    inputs = ()
    output = "documents"
    options = ImportOptions
    version = 7
    steps = (
        Step(place_group, "records", keys=lambda run: range(len(_groups(run)) + run.settled)),
        Step(merge_shard),
    )
    example = "owt import runs/mine posts/*.jsonl.zst --text_field body --url_field link"

    def sources(self, options: ImportOptions, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """The files to import, and those that were imported before, which need not be named
        again."""
        named = [
            {"kind": "file", **describe_file(path, name, find_recorded(recorded, path, name))}
            for path, name in _named(options)[0].items()
        ]
        names = {source["name"] for source in named}
        return named + [dict(source) for source in recorded if source["name"] not in names]

    def shards_for(self, options: ImportOptions, sources: Sequence[Mapping[str, Any]]) -> int:
        if options.num_shards is not None:
            return options.num_shards
        return max(_LEAST_SHARDS, round(sum(source["bytes"] for source in sources) / _SHARD_BYTES))

    def set_up(self, run: StageRun) -> None:
        """Group the files; each group is one part, the unit of work and of resuming."""
        if run.options.files and (left_out := _named(run.options)[1]):
            some = ", ".join(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
            logger.warning("import: files of folders left out, name them to import them: %s", some)
        self._warn_of_held_out(run.options)
        groups: list[list[SourceFile]] = []
        size = 0
        made = [
            (number, source)
            for number, generation in enumerate(run.root.generations)
            for source in generation.sources
            if generation.first >= run.settled
        ]
        for number, source in made:
            path, size = source["uri"], size + source["bytes"]
            kind = format_of(path) if run.options.format == "auto" else run.options.format
            is_other = (
                not groups or groups[-1][0].generation != number or len(groups[-1]) == _GROUP_FILES
            )
            if is_other or size > _GROUP_BYTES:
                groups.append([])
                size = source["bytes"]
            groups[-1].append(SourceFile(path, source["name"], kind, number))
        run.work.write(_GROUPS_NAME, msgspec.json.encode(groups))

    def _warn_of_held_out(self, options: ImportOptions) -> None:
        if not options.files:
            return
        held_out = held_out_files(options.files, _named(options)[0])
        if held_out:
            shown = ", ".join(held_out[:5]) + (", ..." if len(held_out) > 5 else "")
            logger.warning(
                "import: test or validation splits next to a training split are imported too; to "
                "leave them out, name the training files only: %s",
                shown,
            )

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> None:
        if not any(record.counts.left for record in records):
            logger.warning(
                "import: no documents imported; %s says why (is --text_field right?)",
                run.workdir.path("ledger/documents/rejects/"),
            )


STAGE = Import()

_DOCUMENTS = DATASETS["documents"].schema

# A row sent from step 1 to step 2: a document, or a reject with its reason and detail.
PLACED = pa.schema(
    [*_DOCUMENTS, pa.field("reason", pa.string()), pa.field("detail", pa.string(), nullable=False)]
)

SEEN = pa.schema([pa.field("url_id", pa.uint64())])
"""An id that an earlier generation has."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ABSENT = object()

FIELDS = ("text", "url", "title", "author", "date", "language")
"""What is read from a record; the option FIELD_field names the record's field for it, "" for
none."""


def place(record: Record, names: Mapping[str, str]) -> dict[str, Any]:
    """The record as a row of `PLACED`, by field.

    The id is the hash of the canonical URL, of the text without a URL, or of the record's place in
    the files without either. A URL that is not http or https counts as no URL.
    """
    row: dict[str, Any] = dict.fromkeys(PLACED.names)
    row |= {"text": "", "subreddits": [], "detail": record.where}
    fields = record.fields
    if fields is None:
        return _rejected(row, Reason.BAD_RECORD, record.problem)
    with suppress(BadURL):
        row["url"] = canonical_url(_string(fields, names["url"]) or "")
    text = field_value(fields, names["text"], _ABSENT)
    if names["text"] in record.undecodable:
        return _rejected(row, Reason.BAD_RECORD, f"not UTF-8 in column {names['text']}")
    if text is _ABSENT:
        return _rejected(
            row, Reason.BAD_RECORD, f"no field '{names['text']}'; it has {_some(fields)}"
        )
    if text is not None and not isinstance(text, str):
        return _rejected(
            row, Reason.BAD_RECORD, f"'{names['text']}' is {type(text).__name__}, not text"
        )
    if text is None or not text.strip():
        return _rejected(row, Reason.EMPTY_TEXT, None)
    row["url_id"] = id_of(row["url"]) if row["url"] else xxhash.xxh3_64_intdigest(text.encode())
    row["text"] = text
    row["title"], row["author"] = _string(fields, names["title"]), _string(fields, names["author"])
    row["date"] = _date(fields, names["date"])
    row["language"] = _string(fields, names["language"])
    return row


def first_of_each_id(rows: Iterable[pa.Table], seen: np.ndarray) -> np.ndarray:
    """bool (n,): whether each row, with `url_id` and `reason`, is the first document with its
    id, none of `seen`."""
    columns = [(table["url_id"].to_numpy(), table["reason"].is_null().to_numpy()) for table in rows]
    ids = np.concatenate([np.zeros(0, np.uint64), *(ids for ids, _ in columns)])
    good = np.flatnonzero(np.concatenate([np.zeros(0, bool), *(good for _, good in columns)]))
    first = np.zeros(len(ids), bool)
    first[good[np.unique(ids[good], return_index=True)[1]]] = True
    return first & ~np.isin(ids, seen)


def outcome(rows: pa.RecordBatch, first: np.ndarray) -> Outcome:
    """The documents and rejects among rows of schema `PLACED`; `first` is the result of
    `first_of_each_id`."""
    others = rows.filter(pa.array(~first))
    reason = pc.fill_null(others["reason"], str(Reason.REPEATED_ID))  # the rest are repeated ids
    rejects = [others["url_id"], others["url"], reason, others["detail"]]
    kept = rows.filter(pa.array(first)).select(_DOCUMENTS.names).cast(_DOCUMENTS)
    return Outcome(kept, pa.RecordBatch.from_arrays(rejects, schema=REJECTS))


def _rejected(row: dict[str, Any], reason: Reason, problem: str | None) -> dict[str, Any]:
    row["url_id"] = (
        id_of(row["url"]) if row["url"] else xxhash.xxh3_64_intdigest(row["detail"].encode())
    )
    row["reason"] = str(reason)
    if problem:
        row["detail"] += f": {problem}"
    return row


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = field_value(fields, name) if name else None
    return value if isinstance(value, str) and value else None


def _date(fields: Mapping[str, Any], name: str) -> str | None:
    value = field_value(fields, name) if name else None
    if isinstance(value, datetime.date):  # a datetime too
        return value.isoformat()[:10]
    found = _DATE.match(value) if isinstance(value, str) else None
    return found[0] if found else None


def _some(fields: Mapping[str, Any]) -> str:
    names = list(fields)
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "none"
