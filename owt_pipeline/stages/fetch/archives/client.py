"""Requests to archives on the web. They are patient: an archive that is busy or down for some
minutes costs no page.

A request that fails temporarily is retried, with growing waits. If it still fails while others
succeed, its URL is rejected. If many fail in a row, the archive is down: the run stops, and
continues when it is run again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import FetchFailure, HttpResponse, target_time
from owt_pipeline.stages.fetch.archives.search import (
    Archive,
    ArchiveQuery,
    ArchiveReject,
    PermanentError,
    best_capture,
)
from owt_pipeline.stages.fetch.recorder import CircuitBreaker, Recorder
from owt_pipeline.stages.fetch.web.client import Client, Stop
from owt_pipeline.stages.fetch.web.politeness import (
    Gate,
    RequestError,
    for_each,
    retry_after,
    with_retries,
)
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.options import Options
    from owt_pipeline.stages.fetch.segments import SegmentReader

logger = logging.getLogger("owt")

LONGEST_PAUSE = 3600.0
"""The longest Retry-After, in seconds, that is waited for; if an archive asks for more, the run
ends."""

RETRIES = 10
"""How often a request is retried after a failed connection, a timeout, 429 or 5xx."""

MAX_RETRY_WAIT = 60.0
"""The longest wait before such a retry, in seconds; the first one is a second, each further one
twice as long."""

MAX_FAILURES = 20
"""Requests that fail in a row, after all retries, after which the archive is down."""

# Failures that may pass, so that the request is retried.
_TEMPORARY = (Reason.DNS, Reason.CONNECT, Reason.PROXY, Reason.TIMEOUT, Reason.BAD_RESPONSE)

# After this many busy responses to one request, a warning is shown.
_NUM_BUSY_SHOWN = 3

# Seconds before the first retry; doubled at each retry, and spread by half of it.
_FIRST_WAIT = 1.0


class ArchiveClient:
    """Makes requests to an archive; to be made and used in one event loop, by any number of
    tasks at once. A subclass is an `Archive`.

    Attributes:
      columns: the columns of urls/ that it needs.
      busy: statuses after which a request is retried, in addition to 5xx.
      max_tries: as of `Archive`.
      works: whether any response came from an archive; until then, all other responses mean that it
        is down.
    """

    columns: ClassVar[Sequence[str]] = ("url_id", "url", "posted_url", "created_utc")
    busy: ClassVar[Collection[int]] = (429, 503)
    max_tries: float = 3

    def __init__(
        self,
        options: Options,
        holdings: str,
        connections: int,
        delay: float,
        min_pause: float = 0.0,
    ):
        """Return a client for `connections` requests at once to each host.

        There are `delay` seconds between two of them, and `min_pause` seconds without any after a
        busy response without Retry-After.
        """
        # The user names the archive, so no address is refused.
        options_of_archive = replace(
            options, allowed_ports=(), allow_private_hosts=True, host_delay=delay
        )
        self.holdings = holdings
        self.works = False
        self._options = options
        self._connections = connections
        self._delay = delay
        self._min_pause = min_pause
        self._client = Client(options_of_archive)
        self._gates: dict[str, Gate] = defaultdict(partial(Gate, delay, connections))
        self._num_retries = RETRIES

    async def close(self) -> None:
        await self._client.close()

    async def fetch_all(
        self, urls: pa.Table, recorder: Recorder, earlier_results: SegmentReader | None
    ) -> None:
        """Find the page of each URL of `urls` (with `columns`), and give the results to
        `recorder`.

        Raises UserError if the archive fails for MAX_FAILURES URLs in a row; but not for those that
        failed before and are retried at the end, since the archive may still work.
        """
        # The earlier lease may have sent a request a moment ago.
        if earlier_results is not None:
            await asyncio.sleep(self._delay)
        self._num_retries = 0 if recorder.is_last_try else RETRIES
        breaker = CircuitBreaker(
            recorder,
            math.inf if recorder.is_last_try else MAX_FAILURES,
            self._is_down,
            "requests in a row to the archive failed after all retries",
        )
        archive: Archive = self  # type: ignore[assignment]

        async def fetch(row: int) -> None:
            url_id, url, posted, created = (urls[name][row].as_py() for name in urls.column_names)
            started = time.monotonic()
            query = ArchiveQuery(url, posted, target_time(self._options.archive_choice, created))
            await breaker.take(url_id, await best_capture(archive, query), started)

        await for_each(fetch, range(len(urls)), self._connections)
        await breaker.settle()

    async def get(
        self,
        request_name: str,
        url: URL,
        max_bytes: int | None = None,
        stop: Stop = lambda *_: False,
        *,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
    ) -> HttpResponse:
        """Return the response, of at most `max_bytes` (by default as many as a page may have).

        `stop`, `headers` and `cut` are as in `Client.get`. After a temporary failure, there are at
        most RETRIES more requests.

        Raises:
          RequestError: with the reason `archive_failed`, whose detail names the request.
          UserError: the archive asks for a wait longer than LONGEST_PAUSE.
        """
        gate = self._gates[url.raw_host or ""]
        num_requests = itertools.count(1)

        def is_busy(response: HttpResponse) -> bool:
            if not self._is_busy(response):
                return False
            if response.status in self.busy:
                gate.pause(self._min_pause)
                _check_pause(request_name, response)
            if next(num_requests) == _NUM_BUSY_SHOWN:
                problem = _problem_of(response)[:80]
                logger.warning(
                    "fetch: %s failed %d times (%s); trying again",
                    request_name,
                    _NUM_BUSY_SHOWN,
                    problem,
                )
            return True

        get = partial(
            self._client.get, url, stop, gate, max_bytes=max_bytes, cut=cut, headers=headers
        )
        waits = [min(_FIRST_WAIT * 2**n, MAX_RETRY_WAIT) for n in range(self._num_retries)]
        try:
            response = await with_retries(
                get, gate, waits, is_busy, lambda error: error.reason in _TEMPORARY
            )
        except RequestError as error:
            # It concerns the page, and not the archive.
            if error.reason == Reason.TOO_LARGE:
                raise
            problem = f"{error.reason}, {error.detail}"
            if error.reason not in _TEMPORARY:
                raise permanent_error(request_name, problem) from error
            raise RequestError(Reason.ARCHIVE_FAILED, f"{request_name}: {problem}") from error
        if self._is_busy(response):
            raise RequestError(Reason.ARCHIVE_FAILED, f"{request_name}: {_problem_of(response)}")
        return response

    def _is_busy(self, response: HttpResponse) -> bool:
        return response.status in self.busy or response.status >= 500

    def _is_down(self, failure: FetchFailure) -> bool:
        """Return whether a failure may mean that the archive is down."""
        if failure.reason != Reason.ARCHIVE_FAILED:
            return False
        return not (self.works and isinstance(failure, ArchiveReject))


def _problem_of(response: HttpResponse) -> str:
    return f"status {response.status} {response.beginning()}".strip()


def _check_pause(request_name: str, response: HttpResponse) -> None:
    """Raise UserError if the archive asks for a wait that is too long."""
    seconds = retry_after(response) or 0.0
    if seconds > LONGEST_PAUSE:
        raise UserError(
            f"{request_name}: the archive asks for a wait of {seconds:,.0f} s "
            f"({_problem_of(response)}): wait that long, then run the same command with a longer "
            "delay between requests to continue"
        )


def permanent_error(request_name: str, problem: str) -> PermanentError:
    """Return the failure of the request `request_name` by a response that no retry can change."""
    return PermanentError(Reason.ARCHIVE_FAILED, f"{request_name}: {problem}")
