"""The archive files of `--pages_from` as a source of pages.

    index      some archive files           -> their captures, by range of shards
    captures   the captures of a range      -> one file of them, by shard

A capture goes to the shard of its host, in each generation that takes pages from its file. So no
cost is a product of files and shards. A shard reads the best capture of each URL, and finds the
targets of redirects in the captures of other shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.errors import UserError
from owt_pipeline.formats.archives import archive_kind_of
from owt_pipeline.formats.captures import OR_DAMAGED, Broken
from owt_pipeline.formats.messages import MAX_HEAD_BYTES
from owt_pipeline.formats.urls import BadURL, canonicalize, host_hash, host_of, id_of
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.ledger.exchange import SliceWriter, read_index, read_slices
from owt_pipeline.stages.fetch.answers import (
    EARLIEST,
    FetchFailure,
    FetchResult,
    Origin,
    target_time,
)
from owt_pipeline.stages.fetch.archives.search import (
    ArchivedRedirect,
    ArchiveQuery,
    Capture,
    best_capture,
    read_capture,
)
from owt_pipeline.storage.folder import folder_of, open_source
from schemas import Reason
from schemas.manifest import ShardRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.ledger.exchange import Slice
    from owt_pipeline.stages.fetch.options import Options
    from schemas.manifest import Generation

# Captures that are sent at once.
_ROWS_AT_ONCE = 1 << 16

_CAPTURES = pa.schema(
    [
        ("url_id", pa.uint64()),
        ("date", pa.int64()),
        ("status", pa.uint16()),
        # The number of the archive file, and the place in it.
        ("file", pa.int32()),
        ("offset", pa.uint64()),
        ("length", pa.uint64()),
        ("shard", pa.uint32()),
    ]
)


def index_archives(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the captures of a part's archive files to the ranges of their shards.

    With many files, a part has more than one. Also write the counts of each file, with its first
    damage. Raises UserError for a broken record, unless `--allow_damaged`.
    """
    missing = set(run.properties["missing_archives"])
    counts_by_uri: dict[str, dict[str, Any]] = {}
    archives = run.properties["archives"]
    for number in range(part, len(archives), run.properties["index_parts"]):
        uri, generation_numbers = archives[number]
        if uri in missing:
            continue
        counts_by_uri[uri] = {"responses": 0, "broken": 0, "unusable": 0}
        generations = [run.root.generations[number] for number in generation_numbers]
        rows = _rows_of_file(number, uri, run.options, counts_by_uri[uri])
        while chunk := list(islice(rows, _ROWS_AT_ONCE)):
            for generation in generations:
                _send(run, generation, chunk, writer)
    writer.open_file(".json", "counts").write(msgspec.json.encode(counts_by_uri))


def _rows_of_file(
    number: int, uri: str, options: Options, counts: dict[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield the captures of a file as rows of _CAPTURES, with the host's hash as the shard.

    Add to its `counts`: responses, broken records that are skipped, responses without a usable URL.
    """
    with open_source(uri) as file:
        for capture in archive_kind_of(uri).captures(file):
            if isinstance(capture, Broken):
                if not options.allow_damaged:
                    raise UserError(f"{uri}: {capture}; {capture.remedy}{OR_DAMAGED}")
                counts["broken"] += 1
                counts.setdefault("problem", str(capture))
                continue
            try:
                url, host = canonicalize(capture.url)
            except BadURL:
                counts["unusable"] += 1
                continue
            counts["responses"] += 1
            place = (number, capture.offset, capture.length)
            yield (id_of(url), capture.date, capture.status, *place, host_hash(host))


def _send(
    run: StageRun, generation: Generation, rows: Iterable[tuple[Any, ...]], writer: ShardWriter
) -> None:
    """Send captures to the ranges of their shards in a generation."""
    rows = [(*row, _shard_of_host(generation, home)) for *row, home in rows]
    batch = batch_of(rows, _CAPTURES)
    writer.send(_range_of(run, batch["shard"].to_numpy()), batch)


def _shard_of_host(generation: Generation, hash_of_host: int) -> int:
    """Return the shard of a generation that has the URLs of a host."""
    return generation.first + hash_of_host % generation.shards


def _range_of(run: StageRun, shard: Any) -> Any:
    """Return the range of a shard, or of each shard of an array."""
    return shard // run.properties["shards_of_range"]


def write_captures(
    run: StageRun, _range: int, slices: Sequence[Slice], writer: ShardWriter
) -> None:
    """Write the captures of a range of shards to one file, by shard."""
    captures = SliceWriter(writer.open_file(".slices", "captures"))
    for table in read_slices(run.work, slices):
        for batch in table.to_batches():
            captures.send(batch["shard"].to_numpy(), batch)
        progress.advance(len(table))
    captures.close()


class Archives:
    """Archive files of a shard's generation, an `Archive`.

    Attributes:
      holdings, max_tries: as of `Archive`.
    """

    max_tries = math.inf

    def __init__(
        self, run: StageRun, shard: int, ids: Sequence[int], files: Sequence[Mapping[str, Any]]
    ):
        """Read the captures in `files` of the URLs with `ids`, which are of the shard."""
        self._run = run
        self._generation = run.generation_of(shard)
        self._uris = {file["uri"] for file in files}
        self.holdings = f"{len(files)} archive files"
        self._slices_by_range: dict[int, list[tuple[int, Slice]]] = {}
        self._ids = set(ids)
        self._captures_by_id = self._captures(shard, ids)

    async def result(self, url: str, created_utc: int | None) -> FetchResult:
        """Return the page of a canonical URL, from its capture nearest in time to `created_utc`,
        or the earliest or latest one, by the options.

        Without a date, the nearest one is the earliest.
        """
        time = target_time(self._run.options.archive_choice, created_utc, EARLIEST)
        return await best_capture(self, ArchiveQuery(url, url, time))

    async def find(self, query: ArchiveQuery) -> Sequence[Capture]:
        url_id = id_of(query.url)
        if url_id in self._ids:
            return self._captures_by_id.get(url_id, ())
        # A redirect leads to hosts of any shard.
        shard = _shard_of_host(self._generation, host_hash(host_of(query.url)))
        return self._captures(shard, [url_id]).get(url_id, ())

    async def read(self, capture: Capture, url: str) -> FetchResult | ArchivedRedirect:
        file, offset, length = capture.place
        path, _ = self._run.properties["archives"][file]
        folder, name = folder_of(path)
        location = f"at byte {offset} of {name}"
        max_bytes = self._run.options.max_page_bytes
        # A record may be a video of gigabytes.
        if length > max_bytes + MAX_HEAD_BYTES:
            return FetchFailure(Reason.TOO_LARGE, f"{length:,} bytes {location}")
        content = folder.read_range(name, offset, length)
        record = archive_kind_of(path).read(content, url, capture.date)
        origin = Origin("archive", None, name, offset)
        return read_capture(record, origin, max_bytes, location)

    def _captures(self, shard: int, ids: Sequence[int]) -> Mapping[int, list[Capture]]:
        """Return the captures of the URLs with `ids` on hosts of a shard, by url_id."""
        work = self._run.work
        number = _range_of(self._run, shard)
        if number not in self._slices_by_range:
            path = self._run.record_path("captures", number)
            (file,) = ShardRecord.from_json(path.records.read(path.name), path.name).files
            self._slices_by_range[number] = read_index(work, file.path)
        slices = [slice for key, slice in self._slices_by_range[number] if key == shard]
        wanted_ids = pa.array(ids, pa.uint64())
        captures_by_id: dict[int, list[Capture]] = {}
        for table in read_slices(work, slices):
            for row in table.filter(pc.is_in(table["url_id"], wanted_ids)).to_pylist():
                uri, _ = self._run.properties["archives"][row["file"]]
                if uri not in self._uris:
                    continue
                place = (row["file"], row["offset"], row["length"])
                capture = Capture(row["date"], row["status"], place=place)
                captures_by_id.setdefault(row["url_id"], []).append(capture)
        return captures_by_id


def counts_of(run: StageRun) -> dict[str, dict[str, Any]]:
    """Return counts and damage of each archive file, by its path or URI, for the manifest."""
    counts_by_uri: dict[str, dict[str, Any]] = {}
    for record in run.records_of_step("index"):
        path = next(file.path for file in record.files if file.kind == "counts")
        counts_by_uri |= msgspec.json.decode(run.work.read(path))
    return counts_by_uri
