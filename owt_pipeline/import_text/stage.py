"""import: text of one's own as documents/, in place of collect, fetch and extract."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from owt_pipeline.engine import progress
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.stage import Stage, StageRun, Step
from owt_pipeline.engine.storage import Storage, describe_source, expand_globs, open_source
from schemas import option

if TYPE_CHECKING:
    from owt_pipeline.engine.commit import ShardWriter
    from owt_pipeline.engine.exchange import Slice
    from owt_pipeline.import_text.documents import FieldNames
    from owt_pipeline.import_text.records import Record
    from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

_GROUPS_NAME = "groups.json"
_GROUP_BYTES, _GROUP_FILES = 64 << 20, 1000
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class ImportOptions:
    files: tuple[str, ...] = option(
        (),
        "JSON Lines, Parquet or plain text, as they are or compressed (.gz, .zst, .xz, .bz2): paths, folders, globs",
        metavar="FILE",
        shapes_bytes=False,  # their content does, and is in the fingerprint; where they lie does not
    )
    format: str = option(
        "auto", "what the files are; auto goes by the extension", choices=("auto", "jsonl", "parquet", "text")
    )
    text_field: str = option("text", "field (a.b for field b of field a) or column that holds the text")
    url_field: str = option("url", "field of the URL, which gives the document its id; without one the text does")
    title_field: str = option("title", "field of the title")
    author_field: str = option("author", "field of the author")
    date_field: str = option("date", "field of the date of publication (YYYY-MM-DD...)")
    language_field: str = option("language", "field of the language (ISO 639-1)")
    split_text: str = option(
        "file",
        "a plain text file is one document; or blank lines separate them; or each article of WikiText is one",
        choices=("file", "blank_lines", "wikitext"),
    )
    url_rules: int | None = option(
        None,
        "version of the rules for URLs, which ids follow from (default: that of existing documents/, else the newest)",
        minimum=1,
        maximum=2,
    )
    num_shards: int = option(8, "shards of the dataset, and of all that follow", minimum=1, maximum=100_000)


def sources(options: ImportOptions) -> list[dict[str, Any]]:
    """What identifies each file: complete digests of uncompressed ones, which end in no checksum of their own."""
    described = []
    for path, name in _named(options):
        entry = describe_source(path)
        if not path.endswith((".gz", ".zst", ".xz", ".bz2", ".parquet")):
            entry = {"bytes": entry["bytes"], "sha256": _sha256(path)}
        described.append({**entry, "name": name})
    return described


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    """A file to be imported: where it is, what to call it, its format and length in bytes."""

    path: str
    name: str
    kind: str
    bytes: int


def prepare(run: StageRun) -> None:
    """Put the files into groups, many small ones together: each group is a unit of work and of resume."""
    from owt_pipeline.import_text.records import format_of

    groups: list[list[SourceFile]] = []
    size = 0
    for path, name in _named(run.options):
        kind = format_of(path) if run.options.format == "auto" else run.options.format
        with open_source(path) as source:
            file = SourceFile(path, name, kind, source.size())
        if not groups or size + file.bytes > _GROUP_BYTES or len(groups[-1]) == _GROUP_FILES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    run.work.write(_GROUPS_NAME, msgspec.json.encode(groups))


def _groups(run: StageRun) -> list[list[SourceFile]]:
    return msgspec.json.decode(run.work.read(_GROUPS_NAME), type=list[list[SourceFile]])


def place_group(run: StageRun, group: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 1: the records of a group of files, to their shards."""
    from owt_pipeline.formats.urls import version_of
    from owt_pipeline.import_text.documents import by_shard, place, placed_batch

    def send(rows: list[dict[str, Any]]) -> None:
        for shard, batch in by_shard(placed_batch(rows), run.num_shards):
            writer.send(shard, batch)
        progress.advance(len(rows))

    version = version_of(run.plan.options)
    rows: list[dict[str, Any]] = []
    size = 0
    for record, names in _records(_groups(run)[group], run.options):
        rows.append(place(record, names, version))
        size += len(rows[-1]["text"])
        if size >= _BATCH_BYTES or len(rows) == 1024:
            send(rows)
            rows, size = [], 0
    if rows:
        send(rows)


def _records(files: Sequence[SourceFile], options: ImportOptions) -> Iterator[tuple[Record, FieldNames]]:
    """The records of some files, and the names of their fields."""
    from owt_pipeline.import_text.documents import FieldNames
    from owt_pipeline.import_text.records import read_records

    given = FieldNames(
        options.text_field,
        options.url_field,
        options.title_field,
        options.author_field,
        options.date_field,
        options.language_field,
    )
    for file in files:
        names = FieldNames("text", "", "", "", "", "") if file.kind == "text" else given
        for record in read_records(
            file.path, file.name, file.kind, columns=names.columns(), split_text=options.split_text
        ):
            yield record, names


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Step 2: one shard, in the order of the files: of each id the first document."""
    from owt_pipeline.engine.exchange import read_slices
    from owt_pipeline.import_text.documents import first_of_each_id, outcome

    first = first_of_each_id(read_slices(run.work, slices, ["url_id", "reason"]))
    start = 0
    for table in read_slices(run.work, slices):
        for batch in table.to_batches(max_chunksize=256):
            writer.add(batch.num_rows, outcome(batch, first[start : start + batch.num_rows]))
            start += batch.num_rows


def finish(run: StageRun, records: Sequence[ShardRecord]) -> None:
    if not any(record.counts.left for record in records):
        logger.warning("import: no document came in; ledger/documents/rejects/ says why (is --text_field right?)")


def _named(options: ImportOptions) -> list[tuple[str, str]]:
    """(path, name) of each file; the names are relative to the folder that holds them all, so they are distinct."""
    if not options.files:
        raise UserError("import: no files given: `owt import FILE... --workdir DIR`")
    paths = sorted(expand_globs(options.files, "import"))
    places = ["/" + path if "://" in path else os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(place) for place in places])
    return [(path, os.path.relpath(place, folder)) for path, place in zip(paths, places, strict=True)]


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open_source(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _shaping(options: ImportOptions, workdir: Storage) -> dict[str, Any]:
    from owt_pipeline.formats.urls import shaping_with_url_rules

    return shaping_with_url_rules(options, workdir, "documents")


STAGE = Stage(
    name="import",
    output="documents",
    inputs=(),
    options=ImportOptions,
    version=3,
    steps=(
        Step(place_group, "records", keys=lambda run: range(len(_groups(run))), spread="shards"),
        Step(merge_shard, spread="shards"),
    ),
    shaping=_shaping,
    prepare=prepare,
    finish=finish,
    module="owt_pipeline.import_text.stage",
    help="Bring text of your own in as documents/, in place of collect, fetch and extract. A document's id is\n"
    "the hash of its canonical URL, or of its text where it has none; of equal ids the first one stays.",
    sources=sources,
    num_shards=lambda options: options.num_shards,
    positional="files",
    example="owt import posts/*.jsonl.zst --workdir runs/mine --text_field body --url_field link",
)

if __name__ == "__main__":
    from owt_pipeline.commands.stage import main

    sys.exit(main(STAGE))
