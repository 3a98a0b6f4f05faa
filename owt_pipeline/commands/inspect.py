"""`owt inspect`, `owt sample-documents`: the schema, counts and rows of a dataset or a file; documents to read."""

from __future__ import annotations

import argparse
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.command_line import Command, CommandParser, aligned, at_least
from owt_pipeline.commands.history import find_id, readers_of, say
from owt_pipeline.errors import NotFound, UsageError, UserError
from owt_pipeline.ledger.dataset import (
    DatasetReader,
    arrow_batches,
    read_manifest,
    reading,
    require_manifest,
    require_run,
)
from owt_pipeline.storage.folder import Storage, folder_of
from owt_pipeline.storage.lease import mention_running
from schemas import DATASETS, Reason
from schemas.settings import did_you_mean

_WIDTH = 200
_ROWS = 1024


def _inspect_flags(parser: CommandParser) -> None:
    """Print the schema, the counts and some rows of a dataset (a folder with a manifest), of its
    rejects, or of one Parquet, Arrow or WARC file. For other queries, use DuckDB on the folder.

    examples:
      owt inspect runs/2013/corpus --rows 2
      owt inspect runs/2013/ledger/clean/rejects --where "reason = 'too_short'" --rows 20
      owt inspect runs/2013/urls --where "score >= 1000 and 'science' in subreddits" --columns url score
      owt inspect runs/2013/warc/part-00000-3f2a9c1b.warc.gz --json
    """
    parser.add_argument("dataset", metavar="DATASET", help="a dataset's folder, its rejects folder, or a file")
    parser.add_argument("--rows", type=at_least(0), default=3, metavar="N", help="rows to print (default: 3)")
    parser.add_argument("--columns", nargs="+", metavar="FIELD", help="fields to print (default: all)")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="SQL",
        help="print rows that meet this condition, in DuckDB's SQL; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one object, with complete texts")


def _inspect(arguments: argparse.Namespace) -> int:
    source = open_source(arguments.dataset)
    if source.schema is None:
        if arguments.where or arguments.columns:
            raise UsageError(f"{source.name} is a WARC file: --where and --columns are for its index in pages/")
        rows = list(islice(source.batches(None), arguments.rows))
    else:
        rows = _rows(source, source.schema, arguments)
    if arguments.json:
        fields = [{"name": f.name, "type": str(f.type), "description": _meaning(f)} for f in source.schema or []]
        found = {**source.about, "schema": fields, "rows_shown": rows}
        print(json.dumps(found, indent=1, ensure_ascii=False, default=str))
        return 0
    for key, value in source.about.items():
        print(f"{key}: {f'{value:,}' if isinstance(value, int) else json.dumps(value) if key == 'options' else value}")
    if source.schema is not None:
        print("schema:")
        for line in aligned([(field.name, _kind(field), _meaning(field)) for field in source.schema], left=(0, 1, 2)):
            print(f"  {line}")
    for number, row in enumerate(rows):
        print(f"row {number}:")
        print_row(row)
    if arguments.where and not rows:
        print("no row matches")
    return 0


def print_row(row: dict[str, Any], width: int = _WIDTH) -> None:
    """Print a row: one field per line, long ones cut."""
    for key, value in row.items():
        if isinstance(value, list):
            shown = f"[{', '.join(map(str, value[:20]))}{', …' if len(value) > 20 else ''}]"
        else:
            shown = "" if value is None else " ".join(str(value).split())
        say(f"  {key}: {shown[:width]}{'…' if len(shown) > width else ''}".rstrip())


def _rows(source: Source, schema: pa.Schema, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    for name in arguments.columns or ():
        if name not in schema.names:
            raise UsageError(f"--columns: no field '{name}'{did_you_mean(name, schema.names)}")
    wanted = ", ".join(f'"{name}"' for name in arguments.columns or schema.names)
    where = f" where {' and '.join(f'({condition})' for condition in arguments.where)}" if arguments.where else ""
    query = f"select {wanted} from rows{where} limit {arguments.rows}"
    columns = [name for name in schema.names if re.search(rf"(?i)\b{re.escape(name)}\b", query)]  # only these are read
    return _queried(query, pa.schema([schema.field(name) for name in columns]), source.batches(columns))


def _queried(
    query: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], **values: object
) -> list[dict[str, Any]]:
    """The result of a query on `rows`, a table of those batches."""
    import duckdb

    damaged: list[UserError] = []

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except UserError as error:  # DuckDB would wrap it
            damaged.append(error)
            raise

    with duckdb.connect(config={"enable_external_access": False}) as connection:
        connection.register("rows", pa.RecordBatchReader.from_batches(schema, read()))
        try:
            rows: list[dict[str, Any]] = connection.sql(query, params=values).to_arrow_table().to_pylist()
        except duckdb.Error as error:
            if damaged:
                raise damaged[0] from None
            raise UsageError(" ".join(str(error).partition("\n\n")[0].split())) from error
    return rows


def _warc_records(folder: Storage, path: str) -> Iterator[dict[str, Any]]:
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    with folder.open(path) as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.any_type):
            http = record.http_headers
            yield {
                "type": record.headers.get("WARC-Type"),
                "url": record.headers.get("WARC-Target-URI"),
                "date": record.headers.get("WARC-Date"),
                "status": http.status_code if http is not None else None,
                "content_type": (record.headers if http is None else http).get("Content-Type"),
                "bytes": record.content_length,
                "offset": record.stream_pos,
            }


def _kind(field: pa.Field) -> str:
    kind = re.sub(r"<\w+: (\w+)( not null)?>", r"<\1>", str(field.type))
    return kind + (" or null" if field.nullable else "")


def _meaning(field: pa.Field) -> str:
    return (field.metadata or {}).get(b"description", b"").decode()


_WARC = (".warc", ".warc.gz", ".arc", ".arc.gz")


@dataclass(frozen=True)
class Source:
    """Rows of one schema, and what is known of them.

    Attributes:
      name: as the user gave it.
      about: facts to show, by name.
      schema: of the rows; None for a WARC file.
      batches: gives some columns of the rows, batch by batch, and raises UserError on a damaged file; of a WARC file,
        a description of each record.
    """

    name: str
    about: dict[str, Any]
    schema: pa.Schema | None
    batches: Callable[[list[str] | None], Iterator[Any]]


def open_source(name: str) -> Source:
    """The dataset's folder, the folder of its rejects (`RUN/ledger/corpus/rejects`), or the Parquet, Arrow or WARC file
    that `name` is.

    Raises NotFound for what is not there, UserError for what is none of these.
    """
    parent, tail = folder_of(name.rstrip("/"))
    if tail == "rejects":  # of ledger/DATASET/rejects
        ledger, dataset = folder_of(parent.uri)
        workdir = folder_of(ledger.uri)[0]
        if (manifest := read_manifest(workdir, dataset)) is not None:
            return _dataset(name, DatasetReader(workdir, manifest), "rejects")
    if read_manifest(parent, tail) is not None:
        return _dataset(name, DatasetReader.open(parent, tail), "data")
    if not parent.exists(tail):
        if tail.endswith((*_WARC, ".parquet", ".arrow")):
            raise NotFound(f"no such file or folder: {name}")
        if tail in DATASETS:
            require_manifest(parent, tail)
        require_run(Storage(name))
    if os.path.isdir(name):
        inside = [dataset for dataset in DATASETS if read_manifest(Storage(name), dataset) is not None]
        hint = f"; it is a run: look into {', '.join(f'{name}/{dataset}' for dataset in inside)}" if inside else ""
        raise UserError(f"{name} is not a finished dataset of a run{hint}")
    return _file(name, parent, tail)


def _dataset(name: str, reader: DatasetReader, kind: str) -> Source:
    mention_running(reader.workdir)
    manifest, files = reader.manifest, reader.files(kind)
    about = {
        "dataset": manifest.dataset + ("/rejects" if kind == "rejects" else ""),
        "written_by": f"{manifest.stage} (version {manifest.stage_version})",
        "rows": sum(file.rows for file in files),
        "shards": manifest.num_shards,
        "bytes": manifest.total(kind).bytes if kind == "rejects" else manifest.total_bytes,
        "counts": str(manifest.counts),
        "options": manifest.options,
    }
    if not files:
        raise NotFound(f"{name} holds no rows")
    schema = reader.schema(files[0])
    return Source(name, about, schema, lambda columns: reader.batches(kind=kind, columns=columns, rows=_ROWS))


def _file(name: str, parent: Storage, path: str) -> Source:
    about: dict[str, Any] = {"file": name, "bytes": parent.size(path)}
    if path.endswith(_WARC):
        return Source(name, {**about, "format": "WARC"}, None, lambda _: _warc_records(parent, path))
    if not path.endswith((".parquet", ".arrow")):
        raise UserError(f"{name} is neither Parquet (.parquet), nor Arrow (.arrow), nor WARC ({', '.join(_WARC)})")
    is_arrow = path.endswith(".arrow")
    with reading(name), parent.open(path) as file:
        if is_arrow:
            opened = pa.ipc.open_file(file)
            schema, counts = opened.schema, {"record_batches": opened.num_record_batches}
        else:
            parquet = pq.ParquetFile(file)
            schema = parquet.schema_arrow
            counts = {"rows": parquet.metadata.num_rows, "row_groups": parquet.num_row_groups}

    def batches(columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        with reading(name), parent.open(path) as file:
            if is_arrow:
                yield from arrow_batches(file, columns, _ROWS)
            else:
                yield from pq.ParquetFile(file).iter_batches(batch_size=_ROWS, columns=columns)

    return Source(name, {**about, "format": "Arrow IPC" if is_arrow else "Parquet", **counts}, schema, batches)


def _sample_flags(parser: CommandParser) -> None:
    """Print random documents of the corpus, or of those rejected for a reason, to read.
    The same seed gives the same documents.

    examples:
      owt sample-documents --workdir runs/2013 --n 3
      owt sample-documents --workdir runs/2013 --reason too_short --seed 7 | less
      owt sample-documents --workdir runs/2013 --domain example.org --json | jq -r .url
    """
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument("--n", type=at_least(1), default=5, metavar="N", help="documents (default: 5)")
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="other seeds give other documents (default: 0)"
    )
    parser.add_argument(
        "--domain", default="", metavar="D", help="only documents of this domain and the hosts below it"
    )
    parser.add_argument("--reason", default="", metavar="R", help="documents rejected for this reason (docs/data.md)")
    parser.add_argument(
        "--characters",
        type=at_least(0),
        default=800,
        metavar="N",
        help="characters of each text (default: 800); 0 for all of it",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON Lines: one document per line, with all its text"
    )


def _sample(arguments: argparse.Namespace) -> int:
    mention_running(Storage(arguments.workdir))
    readers = readers_of(Storage(arguments.workdir), discarded=True)
    for row in sample(readers, arguments.n, arguments.seed, domain=arguments.domain, reason=arguments.reason):
        if arguments.json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            _print_document(row, arguments.characters)
    return 0


def _print_document(row: dict[str, Any], characters: int) -> None:
    say(f"── {row.get('title') or row['url'] or row['url_id']}")
    for key in ("url", "url_id", "reason", "detail", "language", "date", "n_words", "score"):
        if row.get(key) is not None:
            say(f"   {key}: {row[key]}")
    text = row.get("text") or ""
    shown = text[:characters] if characters else text
    for paragraph in shown.splitlines():
        for line in textwrap.wrap(paragraph, 100) or [""]:
            say(line)
    if len(shown) < len(text):
        print(f"… {len(text) - len(shown):,} more characters")
    print()


_WITH_TEXT = ("corpus", "clean", "documents")
_TEXT_BEFORE = {"clean": "documents", "export": "clean", "tokenize": "corpus"}  # by the stage that rejects
_DRAWN_FROM = pa.schema(
    [("url_id", pa.uint64()), ("url", pa.string()), ("reason", pa.string()), ("shard", pa.uint32())]
)


def sample(
    readers: Mapping[str, DatasetReader], n: int, seed: int, *, domain: str = "", reason: str = ""
) -> list[dict[str, Any]]:
    """`n` documents at random: of the corpus (or of the last stage before it), or of those rejected for `reason`.

    Args:
      readers: the run's datasets.
      n: how many, or all where there are fewer.
      seed: other seeds give other documents.
      domain: only documents of this domain and the hosts below it.
      reason: a reject reason. Its rows have `detail`, and the text if a stage made one.

    Raises UsageError for an unknown reason, NotFound if there is no such document.
    """
    reader, kind = _where(readers, reason)

    def rows() -> Iterator[pa.RecordBatch]:
        columns = ["url_id", "url", *(["reason"] if reason else [])]
        for shard in range(reader.num_shards):
            for batch in reader.batches(shard, kind=kind, columns=columns, rows=1 << 16):
                reasons = batch["reason"] if reason else pa.repeat("", batch.num_rows)
                shards = pa.repeat(pa.scalar(shard, pa.uint32()), batch.num_rows)
                yield pa.record_batch([batch["url_id"], batch["url"], reasons, shards], _DRAWN_FROM)

    found = _queried(
        "select url_id, shard from rows where reason = $reason and regexp_matches(coalesce(url, ''), $site) "
        "order by md5(url_id || ' ' || $seed), url_id limit $n",
        _DRAWN_FROM,
        rows(),
        reason=reason,
        site=rf"^https://([^/:]*\.)?{re.escape(domain.lower())}[:/]" if domain else "",
        seed=str(seed),
        n=n,
    )
    if not found:
        named = " ".join(filter(None, [f"of {domain}" if domain else "", f"rejected as {reason}" if reason else ""]))
        raise NotFound(f"{reader.workdir}/{reader.name} holds no document {named}".rstrip())
    return [_document(readers, reader, row["url_id"], row["shard"], kind, reason) for row in found]


def _where(readers: Mapping[str, DatasetReader], reason: str) -> tuple[DatasetReader, str]:
    if not reason:
        for name in _WITH_TEXT:
            if name in readers and not readers[name].discarded:
                return readers[name], "data"
        raise NotFound("the run has no documents yet: run `owt run` until extract or further")
    try:
        stage = Reason.of(reason).stage
    except ValueError:
        raise UsageError(f"--reason: unknown reason '{reason}'{did_you_mean(reason, map(str, Reason))}") from None
    for name, reader in readers.items():
        if stage in (DATASETS[name].stage, reader.manifest.stage):
            return reader, "rejects"
    raise NotFound(f"the stage {stage}, which rejects as {reason}, has not run")


def _document(
    readers: Mapping[str, DatasetReader], reader: DatasetReader, identifier: int, shard: int, kind: str, reason: str
) -> dict[str, Any]:
    found = [row for row in find_id(reader, identifier, [shard]) if row.file.kind == kind]
    row = next(f for f in found if not reason or f.row["reason"] == reason).row
    if kind == "data":
        return row
    before = _TEXT_BEFORE.get(reader.manifest.stage, "")
    if before in readers and (with_text := find_id(readers[before], identifier, [shard])):
        return {**row, "title": with_text[0].row["title"], "text": with_text[0].row["text"]}
    return row


main = Command("owt inspect", _inspect_flags, _inspect)

sample_main = Command("owt sample-documents", _sample_flags, _sample)
