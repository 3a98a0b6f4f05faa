"""Archives on the web: requests to them, their failures, and pages looked up URL by URL in a CDX index.

An index answers with the captures of a URL, as JSON: an array, of arrays whose first one names the fields (the Wayback
Machine), or an object a line (pywb, Common Crawl; https://pywb.readthedocs.io/en/latest/manual/cdxserver_api.html). It
compares URLs by their SURT form, which ignores more than canonical URLs do, such as case; so what it finds is compared
once more.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from yarl import URL

from owt_pipeline.engine.errors import UserError
from owt_pipeline.fetch.answers import Answer, NoPage, Origin, Page, wanted_moment
from owt_pipeline.fetch.archives import page_of_record
from owt_pipeline.fetch.client import Received
from owt_pipeline.fetch.connections import Stop
from owt_pipeline.fetch.live import Fetcher, LiveOptions
from owt_pipeline.fetch.manners import Failed, Gate
from owt_pipeline.fetch.recorder import Recorder
from owt_pipeline.fetch.sources import Crawl
from owt_pipeline.formats.messages import is_html
from owt_pipeline.formats.urls import BadURL, canonical_url
from schemas import Reason

_CAPTURES_TRIED = 3
"""Captures of a URL that are read, where the best turn out to be no pages."""

_MAX_ANSWER_BYTES = 8 << 20
"""Of an index: some 25,000 captures of one URL in one collection, a site's first page at most."""


class BadIndex(ValueError):
    """An answer that is none of a CDX index; the message says what it is instead."""


@dataclass(frozen=True)
class Capture:
    """A capture of a URL, as far as the index says.

    Attributes:
      crawl: the collection that it is of.
      file: the archive file, below the root of the archive's files; "" where it is not known.
      offset: first byte of its record there.
      length: bytes of its record.
      date: when it was made, seconds since 1970 in UTC.
      url: the URL as it was archived.
    """

    crawl: str | None = None
    file: str = ""
    offset: int = 0
    length: int = 0
    date: int = 0
    url: str = ""

    def __str__(self) -> str:
        return f"{self.length:,} bytes at {self.offset} of {self.file}"

    def page(self, record: bytes, canonical: str, url_rules: int, max_page_bytes: int, ms: int) -> Answer:
        """The page in its record, read within `ms`, if that is of the URL `canonical`."""
        origin = Origin("commoncrawl", self.crawl, self.file, self.offset)
        about: dict[str, Any] = {"where": str(self), "canonical": canonical, "url_rules": url_rules, "fetch_ms": ms}
        return page_of_record(record, origin, max_page_bytes, **about)


class ArchiveClient:
    """Asks an archive; made and used in one event loop, by any number of tasks at once."""

    of_page: ClassVar[tuple[Reason, ...]] = ()
    """Reasons of failures that are not the archive's."""

    def __init__(self, requests: LiveOptions, crawl: Crawl, gate: Gate | None = None):
        """A client that makes its requests as `requests` says, all processes of the crawl at one rate: to each host, or
        through one gate."""
        self._requests, self._crawl, self._gate = requests, crawl, gate
        self._fetcher = Fetcher(requests, crawl.may_ask)

    async def close(self) -> None:
        await self._fetcher.close()

    def status(self) -> str:
        return f"{self._fetcher.requests:,} requests"

    async def get(self, what: str, url: URL, most: int = 0, stop: Stop = lambda *_: False, **how: Any) -> Received:
        """The response, of at most `most` bytes (0: as the options have it); `how` is for `Fetcher.get`.

        Raises Failed with the reason `archive_failed`, whose detail says `what` was asked for.
        """
        limits = self._requests.limits
        gate = self._gate or self._fetcher.gates[url.raw_host or ""]
        gate.delay = self.delay
        try:
            limits = replace(limits, wire_bytes=most, body_bytes=most) if most else limits
            return await self._fetcher.get(url, limits, gate, stop, **how)
        except Failed as failure:
            if failure.reason in self.of_page:
                raise
            raise archive_failed(what, f"{failure.reason}, {failure.detail}") from failure

    async def get_part(self, what: str, url: URL, most: int, span: str, **how: Any) -> Received:
        """The response with the bytes `span` of a file; raises Failed as `get` does, also where it is another."""
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        # A complete file, sent by a server that knows no ranges, is not read.
        response = await self.get(what, url, most, lambda status, _: status != 206, headers=headers, **how)
        if response.status != 206:
            raise archive_failed(what, f"status {response.status} where a part (206) was asked for")
        return response

    @property
    def delay(self) -> float:
        """Seconds between two requests of this process."""
        return self._requests.host_delay * self._crawl.workers()


@dataclass(frozen=True)
class LookupSource:
    """An archive that is asked URL by URL.

    Attributes:
      requests: how requests are made; `host_connections` and `host_delay` hold for each host.
      choice: which capture of several is taken.
      url_rules: version of the rules by which URLs are canonical.
    """

    requests: LiveOptions
    choice: str
    url_rules: int
    columns: ClassVar = ("url_id", "url", "posted_url", "created_utc")


class LookupClient(ArchiveClient, ABC):
    """Looks URLs up in an index, and reads captures."""

    reads_untyped: ClassVar[bool] = False
    """Whether a capture whose type the index does not know may be a page."""

    def __init__(self, source: LookupSource, crawl: Crawl, gate: Gate | None = None):
        super().__init__(source.requests, crawl, gate)
        self._choice, self._url_rules = source.choice, source.url_rules
        self._together = source.requests.host_connections

    @abstractmethod
    async def look_up(self, url: str, canonical: str, moment: int) -> tuple[Sequence[Capture], str]:
        """The captures found under `url` that are of `canonical`, at least those near to `moment`, and what was asked
        for them; may raise Failed."""

    @abstractmethod
    async def read(self, capture: Capture, canonical: str) -> Answer:
        """The page that a capture is, or why it is none; may raise Failed."""

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Look up every URL of `urls`; raises UserError where the archive fails for `host_failures` URLs in a row."""
        rows = iter(range(len(urls)))
        held = HeldBack(recorder, self._requests.host_failures)

        async def ask() -> None:
            for row in rows:
                url_id, *about = (urls[name][row].as_py() for name in urls.column_names)
                begun = time.monotonic()
                answer = await self.fetch(*about)
                if isinstance(answer, NoPage) and answer.reason == Reason.ARCHIVE_FAILED:
                    held.fail(url_id, answer)
                else:
                    await held.settle(begun)
                    await recorder.take(url_id, answer)

        await at_once(ask() for _ in range(self._together))
        await held.settle()

    async def fetch(self, url: str, posted: str, created_utc: int | None) -> Answer:
        """The page of a canonical URL: its capture nearest in time to `created_utc`, or the last without a date; or,
        as the options have it, the earliest or the latest.

        Where there is no capture of it, the URL as it was `posted` is looked up: indexes keep parameters that canonical
        URLs lack, such as those for tracking. A capture that is no page makes way for the next. Where the archive does
        not answer as it should, the reason is `archive_failed`.
        """
        moment = wanted_moment(self._choice, created_utc)
        try:
            captures, asked = await self.look_up(url, url, moment)
            if not captures and posted.partition("?")[2] != url.partition("?")[2]:
                captures, asked = await self.look_up(posted, url, moment)
            first: NoPage | None = None
            nearest = sorted(
                captures, key=lambda each: (abs(each.date - moment), each.date, each.file, each.offset, each.url)
            )
            for capture in nearest[:_CAPTURES_TRIED]:
                answer = await self.read(capture, url)
                if isinstance(answer, Page):
                    return answer
                first = first or answer
        except Failed as failure:
            return NoPage(failure.reason, failure.detail)
        return first or NoPage(Reason.NOT_ARCHIVED, f"no capture of a page in {asked}")

    async def ask_index(
        self, what: str, query: URL, canonical: str, has_none: Callable[[Received], bool]
    ) -> list[Capture]:
        """The captures of an index' answer to a query; `has_none` knows the answers that say that there are none."""
        response = await self.get(what, query, _MAX_ANSWER_BYTES, cut=True)
        if response.status != 200:
            if has_none(response):
                return []
            about = " ".join(response.body[:200].decode("utf-8", "replace").split())
            raise archive_failed(what, f"status {response.status} {about}".strip())
        try:
            return parse_captures(response.body, canonical, self._url_rules, self.reads_untyped)
        except BadIndex as error:
            raise archive_failed(what, str(error)) from error


def parse_captures(body: bytes, canonical: str, url_rules: int, untyped: bool) -> list[Capture]:
    """The captures of an index' answer that may be pages of the URL whose canonical form is `canonical`.

    With `untyped`, captures whose type the index does not know may be pages, too.
    Rows that are none are passed over, such as a last line that is cut off; raises BadIndex for an answer that is none.
    """
    found = set()
    for row in _rows(body):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, BadURL):
            url = row.get("original") or row["url"]
            types = {row[name] for name in ("mimetype", "mime", "mime-detected") if row.get(name)} - {"unk"}
            is_page = any(map(is_html, types)) if types else untyped
            is_good = str(row.get("statuscode") or row["status"]) == "200"
            if is_page and is_good and canonical_url(url, url_rules) == canonical:
                file = str(row.get("filename") or "")
                offset, length = (int(row["offset"]), int(row.get("length") or 0)) if file else (0, 0)
                found.add(Capture(None, file, offset, length, seconds_of(row["timestamp"]), url))
    return list(found)


def seconds_of(timestamp: str) -> int:
    """A time as archives write it, YYYYMMDDhhmmss in UTC, in seconds since 1970; raises ValueError."""
    return calendar.timegm(time.strptime(timestamp, "%Y%m%d%H%M%S"))


def _rows(body: bytes) -> Iterator[dict[str, Any]]:
    text, problem = body.strip(), ""
    rows: list[Any] = []
    if text.startswith(b"["):
        try:
            names, *values = json.loads(text) or [[]]
            yield from (dict(zip(names, row, strict=True)) for row in values)
            return
        except (ValueError, TypeError) as error:
            problem = f" ({error})"
    for line in [] if problem else text.split(b"\n"):
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict) and "timestamp" in row]
    if text and not rows:
        raise BadIndex(f"no captures as JSON{problem} but {text[:100]!r}")
    yield from rows


def archive_failed(what: str, problem: str) -> Failed:
    return Failed(Reason.ARCHIVE_FAILED, f"{what}: {problem}")


async def at_once(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await them all; where one fails, the others end first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HeldBack:
    """Failures of an archive, held back until it is known whether they are those of their URLs or of the archive.

    An archive that is down is no reason to turn URLs away: those are asked for again by the next run. A failure is
    that of its URLs once a later request succeeds.
    """

    def __init__(self, recorder: Recorder, most: int):
        """Failures that go to `recorder`; `most` in a row are the archive's."""
        self._recorder, self._most = recorder, most
        self._held: deque[tuple[float, int, NoPage]] = deque()  # when, and whose

    def fail(self, url_id: int, answer: NoPage) -> None:
        """Hold a failure back; raises UserError once there are too many in a row."""
        self._held.append((time.monotonic(), url_id, answer))
        if len(self._held) >= self._most:
            raise UserError(
                f"the archive failed {self._most} times in a row, at last: {answer.detail}; run again later: "
                "it continues where it stopped"
            )

    async def settle(self, begun: float = math.inf) -> None:
        """A request that was begun then has succeeded, so earlier failures are those of their URLs; at the end, all."""
        while self._held and self._held[0][0] < begun:
            _, url_id, answer = self._held.popleft()
            await self._recorder.take(url_id, answer)
