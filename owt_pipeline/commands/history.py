"""What happened to one URL at every stage, from who posted it to where its tokens are."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.errors import NotFound
from owt_pipeline.formats.urls import BadURL, canonicalize, unescaped, url_id
from owt_pipeline.ledger.bases import open_chain, resolve_uri
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest, reading, require_run
from owt_pipeline.stages.collect.spread import home_bucket
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason
from schemas.manifest import ShardFile

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Asked:
    """What the user asked for: an id, and its URL if a URL was given.

    Attributes:
      text: as the user wrote it.
      url_id: the id that rows have.
      url: its canonical form; None for an id, or a URL that has none.
      host: the host of `url`.
    """

    text: str
    url_id: int
    url: str | None = None
    host: str | None = None


def asked_for(text: str) -> Asked:
    """What `text` names: a decimal id, or a URL in any spelling, with or without its scheme."""
    if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
        return Asked(text, int(text))
    for spelling in (text, f"https://{text}"):
        try:
            url, host = canonicalize(spelling)
            return Asked(text, url_id(url), url, host)
        except BadURL:
            continue
    return Asked(text, url_id(unescaped(text)))  # as collect names a URL that it rejects for having no canonical form


def readers_of(workdir: Storage) -> dict[str, DatasetReader]:
    """A reader for each finished dataset, in the order of the stages.

    Raises NotFound if the folder is not a run, or has no finished dataset.
    """
    require_run(workdir)
    found = {name: read_manifest(workdir, name) for name in DATASETS}
    readers = {name: DatasetReader(workdir, manifest) for name, manifest in found.items() if manifest}
    if not readers:
        raise NotFound(f"no stage of {workdir} has finished yet; owt ls --workdir {workdir} shows how far it is")
    return readers


def history(readers: Mapping[str, DatasetReader], asked: Asked) -> dict[str, Any] | None:
    """What happened to a URL, or None if no stage has it.

    The result has `asked`, `url` (canonical), `url_id`, `host`, `shard`, `verdict` (that of the last stage:
    `kept`, `rejected`, or `pending` if later stages have not run), and `stages`: an entry per stage in order, with
    `stage`, `verdict` (`kept`, `rejected` or `duplicate`) and what the stage knows of it.
    """
    entries: list[dict[str, Any]] = []
    shard: int | None = None
    url = asked.url
    for name, reader in readers.items():
        shards = _shards(asked, reader) if shard is None else [shard]
        found = find_id(reader, asked.url_id, shards)
        if found:
            shard = found[0].file.shard
            url = url or found[0].row.get("url")
            entries += _entries(readers, reader, found)
        elif name == "duplicates" and shard is not None:
            entries += _removed_for(reader, asked.url_id)
    if not entries:
        return None
    verdict = "rejected" if entries[-1]["verdict"] == "duplicate" else entries[-1]["verdict"]
    if verdict == "kept" and entries[-1]["stage"] != "tokenize":
        verdict = "pending"
    about = {"asked": asked.text, "url": url, "url_id": asked.url_id, "host": asked.host, "shard": shard}
    return {**about, "verdict": verdict, "stages": entries}


def in_bases(workdir: Storage, text: str) -> list[dict[str, Any]]:
    """What happened to a URL, in any spelling, in the runs that this one builds on: the newest first.

    Each has what `history` gives, and `run`, its folder. Raises UserError as `open_chain`.
    """
    found = []
    for base in reversed(open_chain(workdir)):
        was = history(readers_of(base.workdir), asked_for(text))
        if was is not None:
            found.append({"run": base.workdir.uri, **was})
    return found


def _shards(asked: Asked, reader: DatasetReader) -> list[int]:
    """All shards, the URL's home shard first: it has a host's rows, unless the host is very large."""
    if reader.manifest.stage == "import":
        home = asked.url_id % reader.num_shards
    elif asked.host is not None:
        home = home_bucket(asked.host, reader.num_shards)
    else:
        home = 0
    return [(home + step) % reader.num_shards for step in range(reader.num_shards)]


def _entries(
    readers: Mapping[str, DatasetReader], reader: DatasetReader, found: list[Found]
) -> Iterator[dict[str, Any]]:
    stage = reader.manifest.stage
    kept = any(row.file.kind == "data" for row in found) and stage != "dedupe"
    repeats = [row.row["detail"] for row in found if kept and row.file.kind == "rejects"]
    for file, number, row in found:
        where = {"file": reader.workdir.path(file.path), "row": number}
        if file.kind == "rejects":
            if kept:
                continue  # another submission of a URL that is kept: shown with its row
            reason = Reason.of(row["reason"])
            what = {"reason": str(reason), "meaning": reason.description, "detail": row["detail"]}
            yield {"stage": stage, "verdict": "rejected", "url": row["url"], **what, **where}
        elif stage == "dedupe":
            yield {"stage": stage, "verdict": "duplicate", **_decision(readers, row), **where}
        elif stage == "tokenize":
            split = file.path.split("/")[1]
            yield {"stage": stage, "verdict": "kept", "split": split, "n_tokens": row["n_tokens"], **where}
        else:
            again = {"repeated_by": repeats} if repeats else {}
            yield {"stage": stage, "verdict": "kept", **_shown(row), **again, **where}


def _removed_for(decisions: DatasetReader, identifier: int) -> Iterator[dict[str, Any]]:
    removed: list[int] = []
    for batch in decisions.batches(columns=["url_id", "kept_url_id"], rows=1 << 16):
        ours = pc.equal(batch["kept_url_id"], pa.scalar(identifier, pa.uint64()))
        removed += batch["url_id"].filter(ours).to_pylist()
    if removed:
        yield {"stage": "dedupe", "verdict": "kept", "kept_for": len(removed), "duplicates": removed}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row to show: its text cut, its empty fields left out."""
    shown = {key: value for key, value in row.items() if value not in (None, [], "")}
    if "text" in shown:
        shown["characters"] = len(row["text"])
        shown["text"] = cut(row["text"])
    for key in ("created_utc", "fetched_at"):
        if key in shown:
            with contextlib.suppress(ValueError, OverflowError, OSError):  # dumps have dates of no calendar
                moment = datetime.datetime.fromtimestamp(shown[key], datetime.timezone.utc)
                shown[key] = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return shown


def _decision(readers: Mapping[str, DatasetReader], row: dict[str, Any]) -> dict[str, Any]:
    """A dedupe decision with the kept document's URL."""
    shown = {key: value for key, value in row.items() if key != "url_id"}
    keeper, kept_shard = keeper_of(readers, row["kept_shard"])
    if keeper is not None and (kept := find_id(keeper, row["kept_url_id"], [kept_shard])):
        shown["kept_url"] = kept[0].row["url"]
    return shown


def keeper_of(readers: Mapping[str, DatasetReader], shard: int) -> tuple[DatasetReader | None, int]:
    """Where the documents of a `kept_shard` are, and which shard that is there: corpora compared with come last."""
    decisions = readers["duplicates"]
    if shard < decisions.num_shards:
        return readers.get("clean"), shard
    shard -= decisions.num_shards
    compared = decisions.manifest.properties
    others = [(resolve_uri(decisions.workdir, base["uri"]), base["shards"]) for base in compared.get("bases", [])]
    against = zip(compared.get("against", []), compared.get("against_shards", []), strict=False)
    others += [(resolve_uri(decisions.workdir, uri), shards) for uri, shards in against]
    for place, shards in others:
        if shard < shards:
            other = Storage(place)
            manifest = read_manifest(other, "clean")
            return (DatasetReader(other, manifest) if manifest else None), shard
        shard -= shards
    return None, shard


def cut(text: str, length: int = 160) -> str:
    """The beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[:length] + "…"


def say(line: str) -> None:
    """Print a line of untrusted text, with control characters escaped."""
    print(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", line))


class Found(NamedTuple):
    """A row of a dataset: the file it is in, its number there from 0, and the row.

    Of `tokens/`, the row holds `url_id` and `n_tokens`.
    """

    file: ShardFile
    number: int
    row: dict[str, Any]


def find_id(reader: DatasetReader, identifier: int, shards: Iterable[int]) -> list[Found]:
    """The rows of the id in the first of `shards` that has any, in its data and its rejects.

    Raises UserError on a damaged file.
    """
    for shard in shards:
        found = [
            row
            for file in (*reader.files("data", shard), *reader.files("rejects", shard))
            if file.rows
            for row in _rows_in(reader, file, identifier)
        ]
        if found:
            return found
    return []


def _rows_in(reader: DatasetReader, file: ShardFile, identifier: int) -> Iterator[Found]:
    if file.path.endswith(".arrow"):
        start = 0
        for batch in reader.batches_of(file, columns=["url_id", "n_tokens"], rows=1 << 16):
            for place in np.flatnonzero(batch["url_id"].to_numpy() == np.uint64(identifier)).tolist():
                yield Found(file, start + place, batch.slice(place, 1).to_pylist()[0])
            start += batch.num_rows
    else:
        with reading(reader.workdir.path(file.path)), reader.workdir.open(file.path) as source:
            yield from _rows_of_parquet(pq.ParquetFile(source), file, identifier)


def _rows_of_parquet(parquet: pq.ParquetFile, file: ShardFile, identifier: int) -> Iterator[Found]:
    column = parquet.schema_arrow.get_field_index("url_id")
    start = 0
    for group in range(parquet.num_row_groups):
        about = parquet.metadata.row_group(group)
        statistics = about.column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.min <= identifier <= statistics.max:
            ids = parquet.read_row_group(group, columns=["url_id"], use_threads=False)["url_id"].to_numpy()
            places = np.flatnonzero(ids == np.uint64(identifier))
            if len(places):
                table = parquet.read_row_group(group)
                for place in places.tolist():
                    yield Found(file, start + place, table.slice(place, 1).to_pylist()[0])
        start += about.num_rows
