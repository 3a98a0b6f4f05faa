"""Patient requests to archives on the web: an archive that is busy or down for some minutes costs no page.

A request that fails temporarily is retried, with growing waits. If it still fails while others succeed, its URL is
rejected. If many fail in a row, the archive is down: the run stops, and continues when it is run again.
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
from owt_pipeline.stages.fetch.answers import NoPage, Received, wanted_moment
from owt_pipeline.stages.fetch.breaker import Breaker
from owt_pipeline.stages.fetch.client import Client, Stop
from owt_pipeline.stages.fetch.manners import Failed, Gate, for_each, patiently, retry_after
from owt_pipeline.stages.fetch.nearest import Asked, Refusal, Refused, nearest_page
from owt_pipeline.stages.fetch.recorder import Recorder
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.segments import Answered
    from owt_pipeline.stages.fetch.stage import Options

logger = logging.getLogger("owt")

LONGEST_PAUSE = 3600.0
"""The longest Retry-After, in seconds, that is waited for; if an archive asks for more, the run ends."""

RETRIES = 10
"""How often a request is retried after a failed connection, a timeout, 429 or 5xx."""

MAX_RETRY_WAIT = 60.0
"""The longest wait before such a retry, in seconds; the first one is a second, each further one twice as long."""

MAX_FAILURES = 20
"""Failed requests in a row, after all retries, after which the archive is down."""

_PASSING = (Reason.DNS, Reason.CONNECT, Reason.PROXY, Reason.TIMEOUT, Reason.BAD_RESPONSE)
_SHOWN_AFTER = 3  # busy answers to one request
_FIRST_WAIT = 1.0  # seconds; doubled at each retry, and spread by half of it


class ArchiveClient:
    """Makes requests to an archive; to be made and used in one event loop, by any number of tasks at once. A subclass
    is an `Archive`.

    Attributes:
      works: whether any answer came from an archive; until then, all other answers mean that it is down.
    """

    columns: ClassVar[Sequence[str]] = ("url_id", "url", "posted_url", "created_utc")

    busy: ClassVar[Collection[int]] = (429, 503)
    """Statuses after which a request is retried, in addition to 5xx."""

    tries: float = 3

    def __init__(self, options: Options, holdings: str, connections: int, delay: float, least_pause: float = 0.0):
        """A client for `connections` requests at once to each host, with `delay` seconds between two of them, and
        `least_pause` seconds without any after a busy answer without Retry-After."""
        asking = replace(
            options,
            allowed_ports=(),
            allow_private_hosts=True,  # the user names them
            host_delay=delay,
        )
        self.holdings, self.works = holdings, False
        self._options = options
        self._connections, self._delay, self._least_pause = connections, delay, least_pause
        self._client = Client(asking)
        self._gates: dict[str, Gate] = defaultdict(partial(Gate, delay, connections))
        self._retries = RETRIES

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, urls: pa.Table, recorder: Recorder, before: Answered | None) -> None:
        """Find the page of each URL of `urls` (with `columns`, and `captures` if they are known), answers to
        `recorder`.

        Raises UserError if the archive fails for MAX_FAILURES URLs in a row; but not for those that failed before and
        are retried at the end, since their failures say nothing about the archive.
        """
        if before is not None:
            await asyncio.sleep(self._delay)
        self._retries = 0 if recorder.is_last else RETRIES
        most = math.inf if recorder.is_last else MAX_FAILURES
        what = "requests in a row to the archive failed after all retries"
        held = Breaker(recorder, most, self._is_down, what)

        async def ask(row: int) -> None:
            url_id, url, posted, created, *captures = (urls[name][row].as_py() for name in urls.column_names)
            begun = time.monotonic()
            asked = Asked(url, posted, wanted_moment(self._options.archive_choice, created), *captures)
            await held.take(url_id, await nearest_page(self, asked), begun)  # type: ignore[arg-type]

        await for_each(ask, range(len(urls)), self._connections)
        await held.settle()

    async def get(
        self,
        what: str,
        url: URL,
        most: int | None = None,
        stop: Stop = lambda *_: False,
        *,
        headers: Mapping[str, str] | None = None,
        cut: bool = False,
        retries: float = math.inf,
    ) -> Received:
        """The response, of at most `most` bytes (by default those of a page); `stop`, `headers` and `cut` as in
        `Client.get`. After a temporary failure, there are at most `retries` and RETRIES more requests.

        Raises Failed with the reason `archive_failed`, whose detail names `what` was requested; UserError if the
        archive asks for a wait longer than LONGEST_PAUSE.
        """
        gate = self._gates[url.raw_host or ""]
        attempts = itertools.count(1)

        def is_busy(response: Received) -> bool:
            if response.status not in self.busy and response.status < 500:
                return False
            problem = f"status {response.status} {response.beginning()}".strip()
            if response.status in self.busy:
                gate.pause(self._least_pause)
                if (asked := retry_after(response) or 0.0) > LONGEST_PAUSE:
                    raise UserError(
                        f"{what}: the archive asks for a wait of {asked:,.0f} s ({problem}): run the same command "
                        "again after that, with a longer delay between requests; it continues where it stopped"
                    )
            if next(attempts) == _SHOWN_AFTER:
                logger.warning("fetch: %s: %s, %d times; trying again", what, problem[:80], _SHOWN_AFTER)
            return True

        get = partial(self._client.get, url, stop, gate, most=most, cut=cut, headers=headers)
        waits = [min(_FIRST_WAIT * 2**n, MAX_RETRY_WAIT) for n in range(int(min(retries, self._retries)))]
        try:
            response = await patiently(get, gate, waits, is_busy, lambda failure: failure.reason in _PASSING)
        except Failed as failure:
            if failure.reason == Reason.TOO_LARGE:  # concerns the page, and not the archive
                raise
            problem = f"{failure.reason}, {failure.detail}"
            if failure.reason not in _PASSING:
                raise refused(what, problem) from failure
            raise Failed(Reason.ARCHIVE_FAILED, f"{what}: {problem}") from failure
        if response.status in self.busy or response.status >= 500:
            problem = f"status {response.status} {response.beginning()}".strip()
            raise Failed(Reason.ARCHIVE_FAILED, f"{what}: {problem}")
        return response

    def _is_down(self, answer: NoPage) -> bool:
        return answer.reason == Reason.ARCHIVE_FAILED and not (self.works and isinstance(answer, Refusal))


def refused(what: str, problem: str) -> Refused:
    """The failure of the request for `what` by an answer that no retry can change."""
    return Refused(Reason.ARCHIVE_FAILED, f"{what}: {problem}")
