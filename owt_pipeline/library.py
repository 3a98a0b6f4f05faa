"""The parts of the pipeline as functions on your own pages and texts, as the stages call them.

No function needs a working directory, and none imports Beam. `owt_pipeline` exports all of them. A
function imports its modules when it is first called. `owt_pipeline.transforms` has the same parts
as Beam transforms.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

    from owt_pipeline.stages.clean.documents import Cleaned
    from owt_pipeline.stages.extract.extractor import Extracted
    from owt_pipeline.stages.extract.pages import Rejected
    from owt_pipeline.storage.folder import Storage
    from schemas.manifest import ShardRecord

Html: TypeAlias = "str | bytes"
Texts: TypeAlias = "Sequence[str | None] | pa.Array | pa.ChunkedArray | Path | Sequence[Path]"

_Page: TypeAlias = tuple[Html, str, int]
"""A page, its URL, and the time when it was fetched in seconds since 1970."""

_ROWS_PER_SHARD = 1 << 17


def url_id(url: str) -> int:
    """Return the id of a page in every dataset of a run.

    It is the 64-bit XXH3 of the canonical URL, unsigned. `url` may be in any spelling. Raises
    BadURL, a ValueError, for anything but a URL of http or https.
    """
    from owt_pipeline.formats import urls

    return urls.id_of(urls.canonical_url(url))


def extract(html: Html, url: str = "", **options: Any) -> Extracted | None:
    """Return the main text of a page with its title, author, date, site, language and licence.

    The result is None if the page has no text. The page is extracted in this process, without
    limits; use `Extractor` for untrusted pages. The method is our own: a parse, a walk, and a model
    of blocks that was fitted on labelled pages (docs/benchmarks/figures.md has its measured
    quality).

    Args:
      html: the page. Bytes are decoded by the charset that the page declares, or by one that is
        guessed from the bytes.
      url: the page's URL, if known. It helps to find date and site.
      **options: options of the stage: `text_format` ("plain" or "markdown"), `favor` ("balanced",
        "precision" or "recall"), `include_comments`, `include_tables`, `extractor`.

    Raises:
      TypeError: `html` is neither text nor bytes.
      ValueError: an unknown option.
    """
    return Extractor(**options)(html, url)


class Extractor:
    """Extraction of many pages with the same options.

        extractor = owt.Extractor(text_format="markdown", isolated=True, workers=8)
        for page, result in zip(pages, extractor.map(pages)):
            ...

    Args:
      isolated: whether `map` uses separate processes, so that a page which crashes or exhausts one
        is only rejected.
      workers: number of these processes; this machine's cores by default.
      **options: options of `extract`. Isolated pages also have the limits `page_cpu_seconds` (20)
        and `page_memory_mb` (1,024).

    Raises ValueError for unknown options.
    """

    def __init__(self, *, isolated: bool = False, workers: int | None = None, **options: Any):
        from owt_pipeline.errors import UserError
        from owt_pipeline.stages.extract.extractor import load
        from owt_pipeline.stages.extract.options import Options
        from schemas.settings import from_table

        self.options = from_table(Options, options, "extract")
        self.isolated = isolated
        self.workers = workers or _num_cores()
        # An unknown extractor is an error here, and not for the first page.
        try:
            load(self.options)
        except UserError as error:
            raise ValueError(str(error)) from error

    def __call__(self, html: Html, url: str = "") -> Extracted | None:
        """Return the main text of a page, extracted in this process; None if it has no text."""
        from owt_pipeline.stages.extract.pages import Found

        result = _extract_page(self.options, _checked_page(html, url))
        return result.document if isinstance(result, Found) else None

    def map(self, pages: Iterable[Html | tuple[Html, str]]) -> Iterator[Extracted | Rejected]:
        """Yield the text of each page in order, or the reason why it has none.

        `pages` has texts or bytes, or pairs of a page and its URL. It is read lazily, so it may be
        of any length. `Rejected.reason` is a reason of the stage: `no_text`, `extract_timeout`,
        `extract_memory` or `extract_crash`.
        """
        from owt_pipeline.stages.extract.pages import Found, extract_all

        results: Iterable[Any]
        checked_pages = _checked_pages(pages)
        if self.isolated:
            pairs = extract_all(checked_pages, self.options, self.workers, _extract_page)
            results = (result for _, result in pairs)
        else:
            results = (_extract_page(self.options, page) for page in checked_pages)
        for result in results:
            yield result.document if isinstance(result, Found) else result


def _extract_page(options: Any, page: _Page) -> Any:
    from owt_pipeline.stages.extract.pages import Rejected, extract_body
    from schemas import Reason

    html, url, fetched_at = page
    if not html:
        return Rejected(Reason.NO_TEXT, "an empty page")
    return extract_body(options, url, fetched_at, html)


def _checked_pages(pages: Iterable[Html | tuple[Html, str]]) -> Iterator[_Page]:
    for page in pages:
        if isinstance(page, tuple):
            yield _checked_page(*page)
        else:
            yield _checked_page(page, "")


def _checked_page(html: Html, url: str) -> _Page:
    """Return a page with its URL and the time now; raise TypeError if one is of another type."""
    if not isinstance(html, (str, bytes)):
        raise TypeError(f"a page is text or bytes, not {type(html).__name__}")
    if not isinstance(url, str):
        raise TypeError(f"a page's URL is text, not {type(url).__name__}")
    return html, url, int(time.time())


def clean(text: str, **options: Any) -> Cleaned:
    """Repair a text, detect its language, measure it, and decide whether `clean` would keep it.

    Args:
      text: the text.
      **options: options of the stage, which `owt run --until clean --help` lists: `min_tokens=128`,
        `languages=("en",)`, `filters=("gopher_quality", "c4", ...)`,
        `gopher_quality={"max_word_length": 12}`, ...

    For many texts, use a `Cleaner`.

    Raises:
      TypeError: `text` is not a str.
      ValueError: an unknown option.
    """
    return Cleaner(**options)(text)


class Cleaner:
    """`clean` for many texts with the same options."""

    def __init__(self, **options: Any):
        from owt_pipeline.errors import UserError
        from owt_pipeline.stages.clean.options import Options
        from owt_pipeline.stages.clean.stage import checked_sets
        from schemas.settings import from_table

        self.options = from_table(Options, options, "clean")
        try:
            self._sets = checked_sets(self.options)
        except UserError as error:
            raise ValueError(str(error)) from error

    def __call__(self, text: str) -> Cleaned:
        from owt_pipeline.stages.clean.documents import clean_document

        if not isinstance(text, str):
            raise TypeError(f"a text is a str, not {type(text).__name__}")
        return clean_document(text, self.options, self._sets)


def near_duplicates(
    texts: Texts, *, text_field: str = "text", workers: int | None = None, **options: Any
) -> pa.Table:
    """Return which texts repeat which: exact copies and near-duplicates.

    Candidates come from MinHash LSH (Broder 1997), and each is verified by the Jaccard similarity
    of the two sets of word 5-grams, so no row of the result is wrong. A pair exactly at the
    threshold is missed about once in a thousand. Of texts that repeat each other the longest is
    kept, and the first of equally long ones. No kept text is itself removed.

    Intermediate files are in the system's folder for temporary files (`$TMPDIR`). They take about
    as much space as the compressed texts, and 400 bytes per text. Memory grows by a few bytes per
    text.

    Args:
      texts: a sequence of strings, an Arrow array or column (also of pandas or Polars), or a
        `pathlib.Path`, or several, of Parquet or JSON Lines files (.gz, .zst, .xz, .bz2). A missing
        text (None, null) has no duplicates.
      text_field: the column or field of a file that holds the text; `a.b` is field b of field a.
      workers: number of processes; this machine's cores by default.
      **options: options of the stage `dedupe`: `threshold=0.8`, `ngram=5`.

    Returns:
      A table with one row per removed text, in the order of the texts.
        row: int64, the text's number, counted through all files.
        kept_row: int64, the number of the text that is kept instead.
        cluster: int64, the same number for all texts that are removed in favour of one text.
        similarity: float32, exact.
        rule: string, `exact` or `near`.

    Raises:
      TypeError: `texts`, or an item of it, is of another type.
      ValueError: an unknown option, a file that cannot be read, or a record without the field.
    """
    return find_duplicates(_arrays_of(texts, text_field), workers, **options)


def find_duplicates(
    texts: Iterator[pa.Array], workers: int | None = None, **options: Any
) -> pa.Table:
    """Return `near_duplicates` of texts in arrays of strings."""
    import numpy as np
    import pyarrow as pa

    from owt_pipeline.engine.runner import make_here
    from owt_pipeline.engine.stage import Runtime
    from owt_pipeline.errors import UserError
    from owt_pipeline.ledger.dataset import DatasetReader
    from owt_pipeline.stages.dedupe.options import Comparison, Options
    from owt_pipeline.stages.dedupe.stage import STAGE
    from owt_pipeline.storage.folder import Storage
    from schemas.settings import from_table

    comparison = from_table(Comparison, options, "near_duplicates")
    stage_options = Options(**vars(comparison))
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        workdir = Storage(folder)
        try:
            _write_all(workdir, texts)
            runtime = Runtime(workdir, workers or _num_cores())
            make_here(STAGE, stage_options, runtime)
        except UserError as error:
            raise ValueError(str(error)) from error
        columns = ["url_id", "kept_url_id", "similarity", "rule"]
        reader = DatasetReader.open(workdir, "duplicates")
        duplicates = reader.table(columns=columns).sort_by("url_id")
    # The id of a text is its number, see `_write_all`.
    kept_rows = duplicates["kept_url_id"].to_numpy().astype(np.int64)
    _, clusters = np.unique(kept_rows, return_inverse=True)
    return pa.table(
        {
            "row": duplicates["url_id"].to_numpy().astype(np.int64),
            "kept_row": kept_rows,
            "cluster": clusters.astype(np.int64),
            "similarity": duplicates["similarity"],
            "rule": duplicates["rule"],
        }
    )


def _arrays_of(texts: Any, text_field: str) -> Iterator[pa.Array]:
    """Yield the texts in arrays of strings of bounded size.

    Raises TypeError for another type, ValueError for a text that is not UTF-8.
    """
    from owt_pipeline.formats.batches import strings_of
    from owt_pipeline.formats.records import texts_of_files
    from owt_pipeline.formats.text_columns import arrays_of_column, column_of

    if isinstance(texts, (str, bytes, Mapping, type(None))):
        raise TypeError(
            f"texts is {type(texts).__name__}: give a list of texts, a column, or a pathlib.Path"
        )
    paths = _paths_of(texts)
    if paths:
        yield from texts_of_files(paths, text_field, "near_duplicates")
        return
    column = column_of(texts)
    if column is None:
        yield from strings_of(_checked_texts(texts))
    else:
        yield from arrays_of_column(column)


def _paths_of(texts: Any) -> list[str]:
    """Return the paths if `texts` is a path or a sequence of paths; else an empty list."""
    if isinstance(texts, os.PathLike):
        return [os.fspath(texts)]
    if isinstance(texts, (list, tuple)) and texts and isinstance(texts[0], os.PathLike):
        return [os.fspath(path) for path in texts]
    return []


def _checked_texts(texts: Iterable[Any]) -> Iterator[str | None]:
    for number, text in enumerate(texts):
        if not isinstance(text, (str, type(None))):
            raise TypeError(f"texts[{number}] is {type(text).__name__}, not str")
        yield text


def _write_all(workdir: Storage, texts: Iterator[pa.Array]) -> None:
    """Write texts as the dataset that `dedupe` reads.

    The id of a text is its number. Nulls are left out.
    """
    import msgspec

    from owt_pipeline.ledger.commit import publish_dataset
    from owt_pipeline.ledger.root import change_root
    from schemas import DATASETS
    from schemas.manifest import Counts, Generation

    def numbered() -> Iterator[tuple[int, pa.Array]]:
        first = 0
        for array in texts:
            yield first, array
            first += len(array)

    # The numbers of texts grow, so the arrays of a shard are adjacent.
    shards = itertools.groupby(numbered(), lambda pair: pair[0] // _ROWS_PER_SHARD)
    records = [_write_shard(workdir, shard, arrays) for shard, arrays in shards]
    # Without texts, dedupe reads one empty shard.
    if not records:
        records = [_write_shard(workdir, 0, ())]
    generations = [Generation("import", 0, len(records))]
    _, version = change_root(
        workdir, lambda root: msgspec.structs.replace(root, generations=generations), ""
    )
    publish_dataset(
        workdir,
        records,
        version=version,
        dataset="clean",
        stage=DATASETS["clean"].stage,
        stage_version=0,
        num_shards=len(records),
        counts=sum((record.counts for record in records), Counts()),
    )


def _write_shard(
    workdir: Storage, shard: int, texts: Iterable[tuple[int, pa.Array]]
) -> ShardRecord:
    """Write a shard from arrays of texts, each with the id of its first text."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from owt_pipeline.ledger.commit import RecordPath, ShardWriter
    from schemas import DATASETS

    clean = DATASETS["clean"].schema
    schema = pa.schema([clean.field(name) for name in ("url_id", "text", "n_chars")])
    path = RecordPath(workdir / ".records", shard)
    with ShardWriter(workdir, path, {"": schema}, dataset="clean") as writer:
        for first, array in texts:
            # Arrow stores booleans as bits, which NumPy has to copy.
            is_text = array.is_valid().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(is_text)
            present_texts = array.take(pa.array(rows))
            ids = pa.array((first + rows).astype(np.uint64))
            num_chars = pc.utf8_length(present_texts).cast(pa.uint32())
            columns = [ids, present_texts, num_chars]
            writer.enter(len(rows))
            writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    return writer.record


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
