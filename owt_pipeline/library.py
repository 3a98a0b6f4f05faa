"""The parts of the pipeline as functions on your own pages and texts: what the stages themselves
call.

Nothing here needs a working directory, and nothing imports Beam. `owt_pipeline` has all of it by
name; what a function needs is imported when it is first called. `owt_pipeline.transforms` has the
same as Beam transforms.
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

_SHARD_ROWS = 1 << 17


def url_id(url: str) -> int:
    """The id of a page in every dataset of a run: the 64-bit XXH3 of its canonical URL, unsigned.

    `url` may be in any spelling. Raises BadURL, a ValueError, for anything but a URL of http or
    https.
    """
    from owt_pipeline.formats import urls

    return urls.id_of(urls.canonical_url(url))


def extract(html: Html, url: str = "", **options: Any) -> Extracted | None:
    """The main text of a page with its title, author, date, site, language and licence; None if
    it has no text.

    Args:
      html: the page; bytes are decoded by the charset that the page declares, or one guessed from
        the bytes.
      url: the page's URL, if known; it helps to find date and site.
      **options: those of the stage: `text_format` ("plain" or "markdown"), `favor` ("balanced",
        "precision" or "recall"), `include_comments`, `include_tables`, `extractor`.

    It runs in this process, without limits; for untrusted pages, see `Extractor`. Raises TypeError
      for anything but
    text or bytes, ValueError for unknown options. The method is our own: a parse, a walk, and a
      model of blocks fitted
    on labelled pages (docs/benchmarks/figures.md has its measured quality).
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
      **options: those of `extract`; for isolated pages also the limits `page_cpu_seconds` (20) and
        `page_memory_mb` (1,024).

    Raises ValueError for unknown options.
    """

    def __init__(self, *, isolated: bool = False, workers: int | None = None, **options: Any):
        from owt_pipeline.errors import UserError
        from owt_pipeline.stages.extract.extractor import load
        from owt_pipeline.stages.extract.options import Options
        from schemas.settings import from_table

        self.options = from_table(Options, options, "extract")
        self.isolated, self.workers = isolated, workers or _cores()
        try:
            load(self.options)
        except UserError as error:
            raise ValueError(str(error)) from error

    def __call__(self, html: Html, url: str = "") -> Extracted | None:
        """The main text of one page, in this process; None if it has none."""
        from owt_pipeline.stages.extract.pages import Found

        result = _extract_given(self.options, _page(html, url))
        return result.document if isinstance(result, Found) else None

    def map(self, pages: Iterable[Html | tuple[Html, str]]) -> Iterator[Extracted | Rejected]:
        """The result of each page, in order: what was found, or why there is nothing.

        `pages` has texts or bytes, or pairs of a page and its URL; it is read lazily, so it may be
        of any length. `Rejected.reason` is one of the stage's: `no_text`, `extract_timeout`,
        `extract_memory`, `extract_crash`.
        """
        from owt_pipeline.stages.extract.pages import Found, extract_all

        given = (_page(*page) if isinstance(page, tuple) else _page(page, "") for page in pages)
        if self.isolated:
            found: Iterable[Any] = (
                r for _, r in extract_all(given, self.options, self.workers, _extract_given)
            )
        else:
            found = (_extract_given(self.options, page) for page in given)
        for result in found:
            yield result.document if isinstance(result, Found) else result


def _extract_given(options: Any, page: tuple[Html, str, int]) -> Any:
    from owt_pipeline.stages.extract.pages import Rejected, extract_body
    from schemas import Reason

    body, url, moment = page
    if not body:
        return Rejected(Reason.NO_TEXT, "an empty page")
    return extract_body(options, url, moment, body)


def _page(html: Html, url: str) -> tuple[Html, str, int]:
    if not isinstance(html, (str, bytes)):
        raise TypeError(f"a page is text or bytes, not {type(html).__name__}")
    if not isinstance(url, str):
        raise TypeError(f"a page's URL is text, not {type(url).__name__}")
    return html, url, int(time.time())


def clean(text: str, **options: Any) -> Cleaned:
    """Repair a text, detect its language, measure it, and decide whether the stage `clean` would
    keep it.

    Args:
      text: the text.
      **options: options of the stage, which `owt run --until clean --help` lists: `min_tokens=128`,
        `languages=("en",)`, `filters=("gopher_quality", "c4", ...)`,
        `gopher_quality={"max_word_length": 12}`, ...

    Raises TypeError for anything but a str, ValueError for unknown options. For many texts, use a
      `Cleaner`.
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
    """Which texts repeat which: exact copies, and pairs whose exact similarity reaches the
    threshold.

    Candidates come from MinHash LSH (Broder 1997), and each is verified by the Jaccard similarity
    of the two sets of word 5-grams, so no row of the result is wrong; a pair exactly at the
    threshold is missed about once in a thousand. Of texts that repeat each other the longest is
    kept, of equally long ones the first. No kept text is itself removed.

    Intermediate files, about as much as the compressed texts and 400 bytes per text, are in the
    system's folder for temporary files (`$TMPDIR`). Memory grows by a few bytes per text.

    Args:
      texts: a sequence of strings, an Arrow array or column (also of pandas or Polars), or a
        `pathlib.Path`, or several, of Parquet or JSON Lines files (.gz, .zst, .xz, .bz2). A missing
        text (None, null) has no duplicates.
      text_field: the column or field of a file that holds the text; `a.b` is field b of field a.
      workers: processes; this machine's cores by default.
      **options: those of the stage `dedupe`: `threshold=0.8`, `ngram=5`.

    Returns:
      A table with one row per removed text, in the order of the texts: `row` int64, its number,
        counted through all
      files. `kept_row` int64, the number of the text that is kept instead. `cluster` int64, the
        same number for all
      that are removed in favour of one text. `similarity` float32, exact. `rule` string, `exact` or
        `near`.

    Raises:
      TypeError: `texts`, or an item of it, is of another type.
      ValueError: an unknown option, a file that cannot be read, or a record without the field.
    """
    return find_duplicates(_arrays_of(texts, text_field), workers, **options)


def find_duplicates(
    texts: Iterator[pa.Array], workers: int | None = None, **options: Any
) -> pa.Table:
    """`near_duplicates` for texts in arrays of strings."""
    import numpy as np
    import pyarrow as pa

    from owt_pipeline.engine.parts import make_here
    from owt_pipeline.engine.stage import Runtime
    from owt_pipeline.errors import UserError
    from owt_pipeline.ledger.dataset import DatasetReader
    from owt_pipeline.stages.dedupe.options import Comparison, Options
    from owt_pipeline.stages.dedupe.stage import STAGE
    from owt_pipeline.storage.folder import Storage
    from schemas.settings import from_table

    chosen = Options(**vars(from_table(Comparison, options, "near_duplicates")))
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        workdir = Storage(folder)
        try:
            _write_all(workdir, texts)
            make_here(STAGE, chosen, Runtime(workdir, workers or _cores()))
        except UserError as error:
            raise ValueError(str(error)) from error
        columns = ["url_id", "kept_url_id", "similarity", "rule"]
        found = DatasetReader.open(workdir, "duplicates").table(columns=columns).sort_by("url_id")
    row, kept_row = (found[name].to_numpy().astype(np.int64) for name in columns[:2])
    _, cluster = np.unique(kept_row, return_inverse=True)
    return pa.table(
        {
            "row": row,
            "kept_row": kept_row,
            "cluster": cluster.astype(np.int64),
            "similarity": found["similarity"],
            "rule": found["rule"],
        }
    )


def _arrays_of(texts: Any, text_field: str) -> Iterator[pa.Array]:
    """Yield the texts in arrays of strings of bounded size; raise ValueError for a text that is
    not UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from owt_pipeline.formats.batches import slices_of, strings_of
    from owt_pipeline.formats.records import texts_of_files

    if isinstance(texts, (str, bytes, Mapping, type(None))):
        raise TypeError(
            f"texts is {type(texts).__name__}: give a list of texts, a column, or a pathlib.Path"
        )
    if isinstance(texts, os.PathLike) or (
        isinstance(texts, (list, tuple)) and texts and isinstance(texts[0], os.PathLike)
    ):
        paths = [texts] if isinstance(texts, os.PathLike) else texts
        yield from texts_of_files(
            [os.fspath(path) for path in paths], text_field, "near_duplicates"
        )
        return
    if isinstance(texts, (pa.Array, pa.ChunkedArray)):
        column = texts
    elif hasattr(texts, "__arrow_c_stream__"):  # of Polars, pandas
        column = pa.chunked_array(texts)
    elif hasattr(texts, "dtype"):  # of NumPy, pandas
        column = pa.array(texts, from_pandas=True)
    else:
        yield from strings_of(_checked_texts(texts))
        return
    number = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if pa.types.is_dictionary(chunk.type):
            values = chunk.dictionary
            if pa.types.is_string_view(values.type):  # of Polars; Arrow cannot take from these
                values = pc.cast(values, pa.string())
            chunk = values.take(chunk.indices)
        if not (
            pa.types.is_string(chunk.type)
            or pa.types.is_large_string(chunk.type)
            or pa.types.is_null(chunk.type)
            or pa.types.is_string_view(chunk.type)
        ):
            raise TypeError(f"texts is a column of {chunk.type}, not of strings")
        for some in slices_of(chunk):
            yield _valid_strings(pc.cast(some, pa.string()), number)
            number += len(some)


def _checked_texts(texts: Iterable[Any]) -> Iterator[str | None]:
    for number, text in enumerate(texts):
        if not isinstance(text, (str, type(None))):
            raise TypeError(f"texts[{number}] is {type(text).__name__}, not str")
        yield text


def _valid_strings(texts: pa.Array, first: int) -> pa.Array:
    """Return `texts`; raise ValueError for the first that is not UTF-8. `first` is the number of
    the first text."""
    import pyarrow as pa

    try:
        texts.validate(full=True)  # which decodes its strings
    except pa.ArrowInvalid:
        for number, text in enumerate(texts.cast(pa.binary()).to_pylist(), first):
            try:
                (text or b"").decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"texts[{number}] is not UTF-8 at byte {error.start}") from None
        raise
    return texts


def _write_all(workdir: Storage, texts: Iterator[pa.Array]) -> None:
    """Write texts as the dataset that `dedupe` reads: the id of each is its number; nulls are
    left out."""
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

    shards = itertools.groupby(numbered(), lambda pair: pair[0] // _SHARD_ROWS)
    records = [_write_shard(workdir, shard, some) for shard, some in shards] or [
        _write_shard(workdir, 0, ())
    ]
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
    """Write a shard from (id of the first text, texts)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from owt_pipeline.ledger.commit import RecordPath, ShardWriter
    from schemas import DATASETS

    schema = pa.schema(
        [DATASETS["clean"].schema.field(name) for name in ("url_id", "text", "n_chars")]
    )
    with ShardWriter(
        workdir, RecordPath(workdir / ".records", shard), {"": schema}, dataset="clean"
    ) as writer:
        for first, array in texts:
            rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
            some = array.take(pa.array(rows))
            columns = [
                pa.array((first + rows).astype(np.uint64)),
                some,
                pc.utf8_length(some).cast(pa.uint32()),
            ]
            writer.enter(len(rows))
            writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    return writer.record


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
