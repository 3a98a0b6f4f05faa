"""Whether failures are the hosts' or our own network's: URLs are not rejected because of an outage.

A URL without a connection waits until some host answers: then the failure is its host's. If every URL that is being
fetched waits, it is an outage (the network, the resolver or the proxy fails) if

    - hosts that answered before (the witnesses) do not answer either, and these are at least three hosts together; or
    - no host has ever answered, and they are at least 20, or fewer without a sign that the network works: a refused
      connection, or the resolver's answer that a name does not exist; or
    - the proxy itself reports a failure.

Then fetching pauses. After each of several growing waits, the witnesses and some of the URLs are tried again; once one
answers, fetching continues. If none ever does, the run stops, and these URLs have no outcome. In all other cases the
hosts are dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import NoPage
from schemas import Reason

logger = logging.getLogger("owt")

OUTAGE_HOSTS = 20
"""If so many hosts, which are all that are being fetched from, fail together, it is an outage, however they fail."""

_FEW_HOSTS = 3
"""So many hosts are enough if some answered before: one or two may go down at the same time by chance."""

_OF_NETWORK = (Reason.DNS, Reason.CONNECT, Reason.TIMEOUT, Reason.PROXY)
_PROBED = 20  # URLs that are tried again after each wait
_WITNESSES = 5
_REMEMBERED = 10_000  # hosts
_FIRST_WAIT = 1 / 63  # of the total: six waits, each twice as long as the one before


class Outages:
    """Decides whether failures are the hosts' or an outage's; used in one event loop, by all tasks that fetch.

    Attributes:
      tasks: how many tasks fetch now, or wait here.
      is_paused: whether there is an outage.
      network_works: whether a failure has shown that the network works, such as a refused connection.
    """

    def __init__(self, wait_seconds: float, probe: Callable[[str], Awaitable[bool]], forgive: Callable[[], None]):
        """After waiting `wait_seconds` in all, an outage raises a UserError; with 0, each failure is its host's.

        `probe` returns whether the host of a URL answers; `forgive` allows requests to hosts that were given up.
        """
        self._wait_seconds, self._probe, self._forgive = wait_seconds, probe, forgive
        self.tasks, self.is_paused, self.network_works = 0, False, False
        self._waiting: dict[asyncio.Future[bool], tuple[str, NoPage]] = {}
        self._witnesses: OrderedDict[str, None] = OrderedDict()  # URLs, the latest at the end
        self._failing: OrderedDict[str, None] = OrderedDict()  # hosts that failed while others answered
        self._pause: asyncio.Task[None] | None = None

    def forget_failures(self) -> None:
        """Forget which hosts failed while others answered; further failures of those are always their own."""
        self._failing.clear()

    def trust(self, urls: Iterable[str]) -> None:
        """Use URLs that have answered as witnesses."""
        for url in urls:
            self._witnesses[url] = None
            self._witnesses.move_to_end(url)
        while len(self._witnesses) > _WITNESSES:
            self._witnesses.popitem(last=False)

    def answered(self, url: str) -> None:
        """Note that a host has answered, so that the network works."""
        if not self._waiting and not self.is_paused and url in self._witnesses:
            return
        self.trust([url])
        self._settle(self._waiting, is_final=not self.is_paused)
        self.is_paused = False

    async def is_final(self, url: str, failure: NoPage) -> bool:
        """Whether the failure of a URL is its host's; otherwise the URL has to be requested again. Raises UserError."""
        host = _host_of(url)
        if failure.reason not in _OF_NETWORK or not self._wait_seconds or host in self._failing:
            return True
        verdict = asyncio.get_running_loop().create_future()
        self._waiting[verdict] = host, failure
        self.judge()
        try:
            is_final = await verdict
        finally:
            self._waiting.pop(verdict, None)
        if is_final:
            self._failing[host] = None
            while len(self._failing) > _REMEMBERED:
                self._failing.popitem(last=False)
        return is_final

    def judge(self) -> None:
        """Decide if all tasks wait; to be called when a task has ended."""
        if len(self._waiting) < self.tasks or not self._waiting or (self._pause is not None and not self._pause.done()):
            return
        of_proxy = all(failure.reason == Reason.PROXY for _, failure in self._waiting.values())
        hosts = {host for host, _ in self._waiting.values()}
        silent = len(hosts | set(map(_host_of, self._witnesses)))
        is_dark = silent >= _FEW_HOSTS if self._witnesses else not self.network_works
        if of_proxy or len(hosts) >= OUTAGE_HOSTS or is_dark:
            self._pause = asyncio.ensure_future(self._wait_for_an_answer())
        else:
            self._settle(self._waiting, is_final=True)

    async def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            await asyncio.gather(self._pause, return_exceptions=True)

    async def _wait_for_an_answer(self) -> None:
        if await self._a_witness_answers():
            return
        self.is_paused, wait, waited = True, self._wait_seconds * _FIRST_WAIT, 0.0
        while waited < self._wait_seconds * 0.99 and self._waiting:
            reasons = Counter(str(failure.reason) for _, failure in self._waiting.values())
            said = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
            last = next(reversed(self._waiting.values()))[1].detail
            logger.warning(
                "fetch: every host fails (%s; at last: %s): fetching pauses for %.3g s; is the network, the resolver "
                "or the proxy down?", said, last, wait,
            )  # fmt: skip
            await asyncio.sleep(wait)
            waited, wait = waited + wait, 2 * wait
            self._forgive()
            if not await self._a_witness_answers():
                self._settle(list(self._waiting)[:_PROBED], is_final=False)
                while self.is_paused and len(self._waiting) < self.tasks:
                    await asyncio.sleep(0.01)
            if not self.is_paused:
                logger.warning("fetch: hosts answer again: fetching continues")
                return
        error = UserError(
            f"no host has answered in {waited:,.3g} s ({said}; at last: {last}). Their URLs have no outcome yet: run "
            "the same command again once the network, the resolver and the proxy work, and it continues. If these "
            "hosts are gone for good, take that as their outcome with --outage_wait 0"
        )
        for verdict in self._waiting:
            if not verdict.done():
                verdict.set_exception(error)

    async def _a_witness_answers(self) -> bool:
        """Whether a host that has answered before does so now."""
        for url in list(reversed(self._witnesses)):
            if await self._probe(url):
                self.answered(url)
                return True
        return False

    def _settle(self, verdicts: Iterable[asyncio.Future[bool]], is_final: bool) -> None:
        for verdict in list(verdicts):
            self._waiting.pop(verdict, None)
            if not verdict.done():
                verdict.set_result(is_final)


def _host_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].lower()
