"""Pages in, documents or the reasons why there is none out, in worker processes that a page may kill.

What a page may cost in CPU time and memory is limited in the process that it is at work in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from owt_pipeline.engine.workers import TIMEOUT_SIGNAL, WorkerDied, shared_pool
from owt_pipeline.extract import extractor as extractors
from owt_pipeline.extract.charset import decode
from owt_pipeline.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.extract.not_pages import what_instead
from owt_pipeline.formats.warc import read_record
from owt_pipeline.ledger.dataset import Outcome, empty, rejects_batch, replace_columns
from schemas import DATASETS, Reason

if TYPE_CHECKING:
    from owt_pipeline.extract.options import Options

T = TypeVar("T")

_LEAST_SECONDS, _SECONDS_TO_CPU_SECONDS = 30.0, 15
"""Wall clock after which a page is given up that has not used up its CPU time: it sleeps, or ignores the signal. A page
at work gets there only if fifteen others take its core all the while."""

_NO_CHARACTER = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd]")  # a control, or what was none before


@dataclass(frozen=True)
class Rejected:
    """A page without a document."""

    reason: Reason
    detail: str | None = None


@dataclass(frozen=True)
class Found:
    """A page's document, and the charset the page was in."""

    document: Extracted
    charset: str


Result = Found | Rejected


def extract_all(
    pages: Iterable[T], options: Options, workers: int, work: Callable[[Extract, T], Result]
) -> Iterator[tuple[T, Result]]:
    """Pairs of (page, result), in order; `work(extract, page)` is a function of a module.

    Also a single worker is a process of its own. One that dies of anything but a timeout may have been killed
    from outside (by the kernel, for memory that others used), so its page gets a second chance.
    """
    fn = partial(extract_one, options=options, work=work)
    seconds = max(_LEAST_SECONDS, _SECONDS_TO_CPU_SECONDS * options.page_cpu_seconds)
    for page, result in shared_pool(workers).map(fn, pages, seconds=seconds, tries=2):
        yield page, _rejected(result, options) if isinstance(result, WorkerDied) else result


def extract_row(extract: Extract, row: pa.RecordBatch) -> Result:
    """The result for a row of `pages/`: the columns `final_url`, `fetched_at` and `record`, a WARC record's bytes."""
    return extract_page(extract, _one(row, "final_url"), _one(row, "fetched_at"), _one(row, "record"))


def extract_one(page: T, options: Options, work: Callable[[Extract, T], Result]) -> Result:
    """The result for one page, under limits of its own: where it uses up its CPU time, they kill the process."""
    extract = load_extractor(options)
    try:
        with _limits(options.page_cpu_seconds, options.page_memory_mb << 20):
            return work(extract, page)
    except Exception as error:
        if isinstance(error, MemoryError) or "memory allocation failed" in str(error).lower():  # as libxml2 says it
            return Rejected(Reason.EXTRACT_MEMORY, f"more than {options.page_memory_mb:,} MiB of memory")
        return Rejected(Reason.EXTRACT_CRASH, f"{type(error).__name__}: {error}"[:500])


def load_extractor(options: Options) -> Extract:
    """The extractor of the options, as it is kept in this process; raises ExtractorError."""
    settings = Settings(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Settings)})
    extract = extractors.load(options.extractor, settings)
    return partial(_extract_no_wall, extract) if options.reject_walls else extract


class _Instead(Exception):
    """What came in place of the page: the reason and its detail."""


def _extract_no_wall(extract: Extract, page: Page) -> Extracted | None:
    if (instead := what_instead(page.html)) is not None:
        raise _Instead(*instead)
    return extract(page)


def extract_page(extract: Extract, url: str, fetched_at: int, record: bytes) -> Result:
    """The document of the page in the bytes of a WARC record."""
    response = read_record(record)
    return extract_body(extract, url, fetched_at, response.body, response.charset)


def extract_body(extract: Extract, url: str, fetched_at: int, body: bytes | str, declared: str | None = None) -> Result:
    """The document of a page.

    Args:
      extract: the extractor.
      url: the URL that answered; "" for none.
      fetched_at: when, in seconds since 1970: nothing on the page is younger.
      body: as bytes in some charset, or as decoded text.
      declared: the charset of the HTTP header, if one was there.
    """
    if isinstance(body, str):
        html, charset = body, "utf-8"
    elif body.startswith(b"%PDF-"):
        return Rejected(Reason.NO_TEXT, "the body is a PDF, whatever its content type says")
    else:
        html, charset = decode(body, declared)
    if len(_NO_CHARACTER.findall(html[:4096])) > 0.1 * len(html[:4096]):
        return Rejected(Reason.NO_TEXT, "the body is binary data, whatever its content type says")
    try:
        document = extract(Page(url, html, fetched_at))
    except _Instead as instead:
        return Rejected(*instead.args)
    if document is None or not document.text.strip():
        return Rejected(Reason.NO_TEXT, f"{len(html):,} characters of {charset} without a main text")
    return Found(document, charset)


def _rejected(death: WorkerDied, options: Options) -> Rejected:
    if death.timed_out and not death.overdue:
        return Rejected(Reason.EXTRACT_TIMEOUT, f"more than {options.page_cpu_seconds:g} s of CPU time")
    return Rejected(Reason.EXTRACT_TIMEOUT if death.timed_out else Reason.EXTRACT_CRASH, str(death))


@contextlib.contextmanager
def _limits(cpu_seconds: float, memory_bytes: int) -> Iterator[None]:
    """Let the block use `cpu_seconds` of CPU time and `memory_bytes` more than the process has now.

    CPU time, not wall clock: a busy machine must not change what comes out. When it is used up, the kernel kills
    the process by TIMEOUT_SIGNAL, whatever it is at: a handler of ours would wait for C code to return, which may
    be never. Where memory runs out, allocating fails: a MemoryError, or whatever C code makes of it. Both limits
    are lifted at the end. Where the system does not tell a process' size (macOS), memory is not limited.
    """
    signal.signal(TIMEOUT_SIGNAL, signal.SIG_DFL)  # a page before this one may have changed both
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {TIMEOUT_SIGNAL})
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = _address_space()
    if size is not None:
        allowed = size + memory_bytes
        if hard != resource.RLIM_INFINITY:
            allowed = min(allowed, hard)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if size is not None:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Bytes of address space this process has now."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def documents(pages: Sequence[tuple[pa.RecordBatch, Result]]) -> Outcome:
    """What happened to `pages`: pairs of a row of `pages/` and its result."""
    found = [(row, result) for row, result in pages if isinstance(result, Found)]
    rejected = [(row, result) for row, result in pages if isinstance(result, Rejected)]
    schema = DATASETS["documents"].schema
    kept = empty(schema)
    if found:
        # One chunk: the rows are slices of batches that hold complete records.
        (index,) = pa.Table.from_batches([row for row, _ in found]).combine_chunks().to_batches()
        columns = {
            field.name: [getattr(result.document, field.name) for _, result in found]
            for field in dataclasses.fields(Extracted)
        }
        kept = replace_columns(index, schema, **columns)
    return Outcome(
        kept,
        rejects_batch((_one(row, "url_id"), _one(row, "url"), r.reason, r.detail) for row, r in rejected),
        Counter(name for _, result in found for name in _counters(result)),
    )


def _counters(found: Found) -> Iterator[str]:
    yield f"charset_{found.charset}"
    if found.document.blocks_left_out:
        yield "pages_cut"


def _one(row: pa.RecordBatch, column: str) -> Any:
    return row[column][0].as_py()
