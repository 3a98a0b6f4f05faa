"""The report's second pass: exact counts of the keys that the first found frequent, and the documents it chose."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import lxml.html
import pyarrow as pa
import pyarrow.compute as pc
from lxml_html_clean import Cleaner

from owt_pipeline.engine import progress
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.formats.warc import Response, read_record
from owt_pipeline.report.first_pass import Piece, host_of, keys_of, site_of
from owt_pipeline.report.sketches import Candidates, Details, Summary, counts_of, sums_of

_ROWS = 1 << 14
_TEXT_CHARACTERS = 20_000


@dataclass(frozen=True)
class Wanted:
    """What the second pass is to find.

    Attributes:
      candidates: the keys to count, by the name of their list.
      urls: ids of documents whose URLs are wanted.
      texts: ids of documents whose texts are wanted.
      pages: ids of documents whose pages are wanted.
      sites: sites to count, as `first_pass.site_of` names them.
    """

    candidates: dict[str, Candidates]
    urls: frozenset[int]
    texts: frozenset[int]
    pages: frozenset[int]
    sites: frozenset[str]

    @classmethod
    def of(cls, summary: Summary, sites: frozenset[str]) -> Wanted:
        removals = summary.removals()
        shown = frozenset(row[name] for row in removals for name in ("url_id", "kept_url_id"))
        pages = frozenset(row["url_id"] for row in summary.rows("corpus/documents"))
        return cls(summary.candidates(), shown | summary.clustered_ids(), shown, pages, sites)


def kinds_of_second_pass(readers: Mapping[str, DatasetReader]) -> list[tuple[str, str]]:
    """(dataset, kind) of what `look_up` is to read."""
    return [(name, kind) for name, kind in _FIND if name in readers and (name != "pages" or "urls" in readers)]


def look_up(details: Details, piece: Piece, readers: Mapping[str, DatasetReader], wanted: Wanted) -> None:
    """Add the second pass over one piece to the details."""
    for rows in _FIND[piece.dataset, piece.kind](details, piece, readers[piece.dataset], wanted):
        progress.advance(rows)


def _count_keys(details: Details, piece: Piece, reader: DatasetReader, wanted: Wanted) -> Iterator[int]:
    column = "host" if piece.dataset == "urls" else "url"
    for batch in reader.batches(piece.shard, columns=[column, "subreddits"], rows=_ROWS):
        keys = keys_of(piece.dataset, batch)
        for name, values in keys.items():
            details.counter(name).update(wanted.candidates[name].count(values))
        if wanted.sites:
            for host, count in counts_of(keys[f"{piece.dataset}/domain"]).items():
                if (site := site_of(host)) in wanted.sites:
                    details.counter(f"{piece.dataset}/site")[site] += count
        yield batch.num_rows


def _add_pages(details: Details, piece: Piece, reader: DatasetReader, wanted: Wanted) -> Iterator[int]:
    ids = pa.array(sorted(wanted.pages), pa.uint64())
    columns = ["url_id", "url", "source", "fetch_ms", "body_bytes", "warc_offset", "warc_length"]
    for batch in reader.batches(piece.shard, columns=columns, rows=_ROWS):
        yield batch.num_rows
        _read_pages(details, batch.filter(pc.is_in(batch["url_id"], ids)), piece, reader)
        rows = batch.filter(wanted.candidates["urls/domain"].mask(host_of(batch["url"])))
        live = rows.filter(pc.equal(rows["source"], "live"))
        hosts, live_hosts = host_of(rows["url"]), host_of(live["url"])
        details.counter("pages/domain").update(counts_of(hosts))
        details.counter("live/domain").update(counts_of(live_hosts))
        details.counter("bytes/domain").update(sums_of(hosts, rows["body_bytes"]))
        details.counter("milliseconds/domain").update(sums_of(live_hosts, live["fetch_ms"]))


def _read_pages(details: Details, rows: pa.RecordBatch, piece: Piece, reader: DatasetReader) -> None:
    if not rows.num_rows:
        return
    (warc,) = reader.files("warc", piece.shard)
    with reader.workdir.open(warc.path) as file:
        for row in rows.select(["url_id", "warc_offset", "warc_length"]).to_pylist():
            file.seek(row["warc_offset"])
            if page := readable(read_record(file.read(row["warc_length"]))):
                details.pages[row["url_id"]] = page


def readable(response: Response) -> str | None:
    """A short page without scripts, styles, images and links: nothing in it acts or loads; None for a long one."""
    if len(response.body) > _BODY_BYTES:
        return None
    try:
        encoding = codecs.lookup(response.charset or "").name
    except LookupError:
        encoding = None  # lxml takes the page's word
    try:
        tree = lxml.html.document_fromstring(response.body, parser=lxml.html.HTMLParser(encoding=encoding))
        cleaned = lxml.html.tostring(_CLEANER.clean_html(tree), encoding="unicode")
    except (lxml.etree.LxmlError, ValueError, AssertionError):
        return None
    return cleaned if len(cleaned) <= _PAGE_CHARACTERS else None


_CLEANER = Cleaner(
    style=True,
    inline_style=True,
    page_structure=False,
    safe_attrs=frozenset({"title", "colspan", "rowspan", "dir", "lang"}),
    kill_tags=("img", "picture", "svg", "math", "video", "audio", "canvas", "template", "noscript"),
)
_BODY_BYTES, _PAGE_CHARACTERS = 1 << 20, 30_000


def _add_failures(details: Details, piece: Piece, reader: DatasetReader, wanted: Wanted) -> Iterator[int]:
    for batch in reader.batches(piece.shard, kind="rejects", columns=["url", "reason"], rows=_ROWS):
        yield batch.num_rows
        for reason in batch["reason"].unique().to_pylist():
            hosts = host_of(batch.filter(pc.equal(batch["reason"], reason))["url"])
            for host, count in wanted.candidates["urls/domain"].count(hosts).items():
                details.counter("failed/domain")[host, reason] += count


def _count_removed(details: Details, piece: Piece, reader: DatasetReader, wanted: Wanted) -> Iterator[int]:
    for batch in reader.batches(piece.shard, kind="rejects", columns=["url"], rows=_ROWS):
        removed = wanted.candidates["removed/domain"].count(host_of(batch["url"]))
        details.counter("removed/domain").update(removed)
        yield batch.num_rows


def _find_documents(details: Details, piece: Piece, reader: DatasetReader, wanted: Wanted) -> Iterator[int]:
    ids, texts = pa.array(sorted(wanted.urls), pa.uint64()), pa.array(sorted(wanted.texts), pa.uint64())
    any_text = False
    for batch in reader.batches(piece.shard, columns=["url_id", "url"], rows=_ROWS):
        found = batch.filter(pc.is_in(batch["url_id"], ids))
        details.urls.update(zip(found["url_id"].to_pylist(), found["url"].to_pylist(), strict=True))
        any_text |= bool(pc.any(pc.is_in(batch["url_id"], texts)).as_py())
        yield batch.num_rows
    if any_text:  # few shards hold any of the few: only these are read once more
        for batch in reader.batches(piece.shard, columns=["url_id", "text"], rows=512):
            found = batch.filter(pc.is_in(batch["url_id"], texts))
            cut = pc.utf8_slice_codeunits(found["text"], 0, _TEXT_CHARACTERS)
            details.texts.update(zip(found["url_id"].to_pylist(), cut.to_pylist(), strict=True))


_FIND = {
    ("urls", "data"): _count_keys,
    ("pages", "data"): _add_pages,
    ("pages", "rejects"): _add_failures,
    ("clean", "data"): _find_documents,
    ("corpus", "data"): _count_keys,
    ("corpus", "rejects"): _count_removed,
}
