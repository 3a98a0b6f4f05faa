"""Extraction of pages in worker processes, each page under its own limits of CPU time and memory.

The result of a page is a document, or the reason why there is none. A page may kill its worker.
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
from typing import Any, TypeVar

import pyarrow as pa

from owt_pipeline.engine.workers import TIMEOUT_SIGNAL, WorkerDied, shared_pool
from owt_pipeline.formats.messages import Headers
from owt_pipeline.formats.warc import read_record, read_records
from owt_pipeline.ledger.dataset import Outcome, rejects_batch, replace_columns
from owt_pipeline.stages.extract.charset import decode
from owt_pipeline.stages.extract.extractor import Extracted, Page, load
from owt_pipeline.stages.extract.not_pages import reason_for_no_page
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.reserved import reserved
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason

T = TypeVar("T")

# Limits on the wall clock, for a page that sleeps or ignores the signal and so never uses up its
# CPU time. A busy page reaches them only if fifteen other processes share its core throughout.
_MIN_SECONDS = 30.0
_SECONDS_PER_CPU_SECOND = 15

# A worker that dies of anything but a timeout may have been killed from outside (by the kernel,
# because other processes used up the memory), so its page is tried a second time.
_TRIES = 2

# Controls and undecodable bytes.
_NO_CHARACTER = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd]")
# A body with a larger share of them at its start is not a text.
_MAX_BINARY_SHARE = 0.1
_BINARY_SAMPLE_CHARS = 4096


@dataclass(frozen=True)
class Rejected:
    """A page without a document.

    Attributes:
      reason: why the page has no document.
      detail: the evidence for the reason; None if the reason is enough.
    """

    reason: Reason
    detail: str | None = None


@dataclass(frozen=True)
class Found:
    """A page with a document.

    Attributes:
      document: its text and metadata.
      charset: the charset of the page.
      reserved: the uses that the page reserves; None if it reserves none.
    """

    document: Extracted
    charset: str
    reserved: str | None


Result = Found | Rejected


def extract_batches(
    batches: Iterable[pa.RecordBatch], options: Options, workdir: Storage, workers: int
) -> Iterator[tuple[pa.RecordBatch, Outcome]]:
    """Yield batches of pages with their outcomes, in order.

    If the worker of a batch dies, each of its pages is a batch of its own. The limit of a page on
    the wall clock also holds for a batch, since it costs only the time of a second try.
    """
    fn = partial(extract_batch, options=options, workdir=workdir)
    pool = shared_pool(workers)
    seconds = _max_seconds(options)
    for pages, outcome in pool.map(fn, batches, seconds=seconds):
        if not isinstance(outcome, WorkerDied):
            yield pages, outcome
            continue
        single_pages = [pages.slice(row, 1) for row in range(pages.num_rows)]
        for page, result in pool.map(fn, single_pages, seconds=seconds, tries=_TRIES):
            if isinstance(result, WorkerDied):
                result = documents(page, [_rejected(result, options)])
            yield page, result


def extract_batch(pages: pa.RecordBatch, options: Options, workdir: Storage) -> Outcome:
    """Return the outcome of a batch of `placed_pages`, in a worker."""
    columns = [pages["final_url"].to_pylist(), pages["fetched_at"].to_pylist()]
    records = zip(*columns, read_records(workdir, pages), strict=True)
    return documents(pages, [extract_one(record, options, extract_record) for record in records])


def extract_all(
    pages: Iterable[T], options: Options, workers: int, work: Callable[[Options, T], Result]
) -> Iterator[tuple[T, Result]]:
    """Yield each page with its result, in order.

    `work(options, page)` must be a module-level function. Even a single worker is a separate
    process.
    """
    fn = partial(extract_one, options=options, work=work)
    seconds = _max_seconds(options)
    for page, result in shared_pool(workers).map(fn, pages, seconds=seconds, tries=_TRIES):
        yield page, _rejected(result, options) if isinstance(result, WorkerDied) else result


def _max_seconds(options: Options) -> float:
    return max(_MIN_SECONDS, _SECONDS_PER_CPU_SECOND * options.page_cpu_seconds)


def extract_record(options: Options, page: tuple[str, int, bytes]) -> Result:
    """Return the result for a page: its URL, the time of its fetch, and its WARC record."""
    url, fetched_at, record = page
    response = read_record(record)
    return extract_body(
        options,
        url=url,
        fetched_at=fetched_at,
        body=response.body,
        declared=response.charset,
        headers=response.headers,
    )


def extract_one(page: T, options: Options, work: Callable[[Options, T], Result]) -> Result:
    """Return the result for one page under its own limits.

    If the page uses up its CPU time, the process is killed.
    """
    # Outside the limits, since loading may take longer than a page.
    load(options)
    try:
        with _limits(options.page_cpu_seconds, options.page_memory_mb << 20):
            return work(options, page)
    except Exception as error:
        if _is_out_of_memory(error):
            detail = f"more than {options.page_memory_mb:,} MiB of memory"
            return Rejected(Reason.EXTRACT_MEMORY, detail)
        return Rejected(Reason.EXTRACT_CRASH, f"{type(error).__name__}: {error}"[:500])


def _is_out_of_memory(error: Exception) -> bool:
    # libxml2 reports it in words only.
    return isinstance(error, MemoryError) or "memory allocation failed" in str(error).lower()


def extract_body(
    options: Options,
    url: str,
    fetched_at: int,
    body: bytes | str,
    declared: str | None = None,
    headers: Headers | None = None,
) -> Result:
    """Return the result for a page; raises UserError if its extractor does not exist.

    Args:
      options: the options of the stage.
      url: the URL that answered; "" for none.
      fetched_at: time of the fetch, in seconds since 1970; no date on the page can be later.
      body: bytes in some charset, or decoded text.
      declared: the charset in the HTTP header, if any.
      headers: the HTTP headers, if known.
    """
    if isinstance(body, str):
        html = body
        charset = "utf-8"
    elif body.startswith(b"%PDF-"):
        return Rejected(Reason.NO_TEXT, "the body is a PDF, whatever its content type says")
    else:
        html, charset = decode(body, declared)
    sample = html[:_BINARY_SAMPLE_CHARS]
    if len(_NO_CHARACTER.findall(sample)) > _MAX_BINARY_SHARE * len(sample):
        return Rejected(Reason.NO_TEXT, "the body is binary data, whatever its content type says")
    page = Page(url, html, fetched_at)
    if options.reject_walls:
        reason_and_signal = reason_for_no_page(page)
        if reason_and_signal is not None:
            return Rejected(*reason_and_signal)
    document = load(options)(page)
    if document is None or not document.text.strip():
        return Rejected(
            Reason.NO_TEXT, f"{len(html):,} characters of {charset} without a main text"
        )
    return Found(document, charset, reserved(headers or [], page))


def _rejected(death: WorkerDied, options: Options) -> Rejected:
    """Return the reject of a page whose worker died."""
    if not death.timed_out:
        return Rejected(Reason.EXTRACT_CRASH, str(death))
    if death.overdue:
        return Rejected(Reason.EXTRACT_TIMEOUT, str(death))
    detail = f"more than {options.page_cpu_seconds:g} s of CPU time"
    return Rejected(Reason.EXTRACT_TIMEOUT, detail)


@contextlib.contextmanager
def _limits(cpu_seconds: float, memory_bytes: int) -> Iterator[None]:
    """Let the block use `cpu_seconds` of CPU time and `memory_bytes` more than the process has now.

    CPU time, not wall-clock time: results must not depend on how busy the machine is. At the limit,
    the kernel kills the process by TIMEOUT_SIGNAL, since a Python handler would wait for C code to
    return, which may never happen. When memory runs out, allocation fails with a MemoryError, or
    however C code reports it. Both limits are lifted at the end. Memory is not limited where the
    system does not report a process' size (macOS).
    """
    # An earlier page may have changed both.
    signal.signal(TIMEOUT_SIGNAL, signal.SIG_DFL)
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
    """Return the size of this process' address space in bytes; None if it is not known."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def documents(rows: pa.RecordBatch, results: Sequence[Result]) -> Outcome:
    """Return the documents and the rejects of rows of `pages/`, whose results these are."""
    found = [result for result in results if isinstance(result, Found)]
    columns: dict[str, list[Any]] = {}
    for field in dataclasses.fields(Extracted):
        columns[field.name] = [getattr(result.document, field.name) for result in found]
    columns["reserved"] = [result.reserved for result in found]
    is_found = pa.array([isinstance(result, Found) for result in results], pa.bool_())
    kept = replace_columns(rows.filter(is_found), DATASETS["documents"].schema, **columns)
    rejects = []
    ids = zip(rows["url_id"].to_pylist(), rows["url"].to_pylist(), results, strict=True)
    for url_id, url, result in ids:
        if isinstance(result, Rejected):
            rejects.append((url_id, url, result.reason, result.detail))
    counters = Counter(name for result in found for name in _counters(result))
    return Outcome(kept, rejects_batch(rejects), counters)


def _counters(found: Found) -> Iterator[str]:
    """Yield the names of the statistics that count a page."""
    yield f"charset_{found.charset}"
    if found.document.blocks_left_out:
        yield "pages_cut"
