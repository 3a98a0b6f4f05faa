"""Pages over HTTP: redirects, robots.txt, retries, and a turn at the host before every request."""

from __future__ import annotations

import asyncio
import email.utils
import random
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from yarl import URL

from owt_pipeline.collect.urls import unescaped
from owt_pipeline.fetch.acceptance import REDIRECTS, refuse_head
from owt_pipeline.fetch.addresses import Addresses
from owt_pipeline.fetch.answers import NoPage
from owt_pipeline.fetch.client import Client, Failed, Limits, Received, Stop, parse_url
from owt_pipeline.fetch.fetched import Fetched
from owt_pipeline.fetch.http_message import Headers
from owt_pipeline.fetch.politeness import HostGate, HostGates, Slots
from owt_pipeline.fetch.robots import MAX_BYTES, RobotsCache
from schemas import Reason

_HOST = re.compile("[!-~]+")  # yarl lets blanks through

_IPV4_AS_NUMBERS = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)

_FIRST_BACKOFF = 1.0  # seconds; doubled at each retry, and spread by half of it


@dataclass(frozen=True)
class LiveOptions:
    """How pages are fetched; fields as the stage's options of the same names."""

    addresses: Addresses
    limits: Limits
    user_agent: str
    connections: int
    host_connections: int
    host_delay: float
    host_failures: int
    max_redirects: int
    retries: int
    max_retry_wait: float
    verify_tls: bool


class Fetcher:
    """Fetches pages; to be made and used in one event loop, by any number of tasks at once.

    Attributes:
      gates: the hosts' gates.
    """

    def __init__(self, options: LiveOptions, may_ask: Callable[[], bool] = lambda: True):
        """A fetcher that makes no request while `may_ask` says no."""
        self.options, self._may_ask = options, may_ask
        remembered = 4 * options.connections + 1000  # hosts: more than are open, since redirects lead to others
        self.gates = HostGates(options.host_delay, options.host_connections, remembered)
        self._client = Client(
            options.addresses,
            options.user_agent,
            verify_tls=options.verify_tls,
            keep_alive=max(15.0, 2 * options.host_delay),
            kept_connections=options.connections,
            remembered_names=remembered,
        )
        self._agent = options.user_agent.partition("/")[0].strip()
        self._slots = Slots(options.connections)
        self._robots = RobotsCache(self._get_robots, remembered)

    async def close(self) -> None:
        await self._client.close()

    @property
    def requests(self) -> int:
        """Requests that are under way."""
        return self._slots.taken

    async def fetch(self, posted_url: str, spread: int = 1) -> Fetched | NoPage:
        """What a URL, as it was posted, answers in the end, or why it does not.

        `spread` is over how many processes the host's URLs are: its delay grows with it.
        """
        try:
            url = requested_url(posted_url)
        except ValueError as error:
            return NoPage(Reason.BAD_URL, f"{error}")
        try:
            return await self._follow(url, spread)
        except Failed as failure:
            return failure.answer

    async def _follow(self, url: URL, spread: int) -> Fetched | NoPage:
        started = int(time.time())
        redirects: list[Received] = []
        seen: list[URL] = []
        limits, ms = self.options.limits, 0
        while True:
            seen.append(url)
            try:
                response = await self._get_page(url, limits, spread)
            except Failed as failure:
                if not redirects:
                    raise
                reason = Reason.BAD_REDIRECT if failure.answer.reason == Reason.BAD_URL else failure.answer.reason
                return NoPage(reason, f"redirected to {url}: {failure.answer.detail}")
            ms += response.ms
            if response.status not in REDIRECTS:
                return Fetched(response, tuple(redirects), started, ms, self.options.limits.body_bytes)
            limits = replace(limits, total=max(self.options.limits.total - ms / 1000, 0.001))
            redirects.append(response)
            url = redirect_target(response)
            if url in seen:
                return NoPage(Reason.REDIRECT_LOOP, f"back to {url} after {len(redirects)} redirects")
            if len(redirects) > self.options.max_redirects:
                return NoPage(Reason.REDIRECT_LOOP, f"more than {self.options.max_redirects} redirects")

    async def _get_page(self, url: URL, limits: Limits, spread: int) -> Received:
        robots = await self._robots.of(url)
        ban = robots.refuse(url, self._agent)
        if ban is not None:
            raise Failed(ban.reason, ban.detail)
        gate = self.gates[url.raw_host or ""]
        gate.delay = max(self.options.host_delay, robots.crawl_delay(self._agent)) * spread
        return await self.get(url, limits, gate, has_no_page, encoded=True)

    async def _get_robots(self, url: URL) -> Received:
        limits = replace(self.options.limits, wire_bytes=MAX_BYTES, body_bytes=MAX_BYTES)
        return await self.get(url, limits, self.gates[url.raw_host or ""], lambda status, _: status != 200, cut=True)

    async def get(
        self,
        url: URL,
        limits: Limits,
        gate: HostGate,
        stop: Stop,
        *,
        encoded: bool = False,
        cut: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Received:
        """As `Client.get`, at the turns of `gate`, and again after 429, 503 and passing failures; raises Failed."""
        for attempt in range(self.options.retries + 1):
            last = attempt == self.options.retries
            async with gate:
                while not self._may_ask():
                    await asyncio.sleep(0.1)
                if gate.failures >= self.options.host_failures and gate.failure is not None:
                    reason, detail = gate.failure.reason, gate.failure.detail
                    raise Failed(reason, f"given up after {gate.failures} failures of the host in a row: {detail}")
                try:
                    async with self._slots:
                        response = await self._client.get(url, limits, stop, encoded=encoded, cut=cut, headers=headers)
                except Failed as failure:
                    gate.note(failure.answer)
                    if last or not failure.transient:
                        raise
                    response = None
                else:
                    gate.note(None)
            if response is not None and (last or response.status not in (429, 503)):
                return response
            backoff = _FIRST_BACKOFF * 2**attempt * random.uniform(0.5, 1.5)
            if response is not None:
                asked = retry_after(response)
                backoff = max(backoff, asked) if asked is not None else backoff
            if backoff > self.options.max_retry_wait:
                if response is None:
                    backoff = self.options.max_retry_wait
                else:
                    return response
            gate.pause(backoff)
        raise AssertionError("the last attempt returns or raises")


def requested_url(posted: str) -> URL:
    """The URL to request for one as posted: encoded, without user, password and fragment; raises ValueError."""
    url = parse_url(unescaped(posted))
    host = url.raw_host or ""
    if url.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ValueError(f"not a URL of http or https: {posted[:100]!r}")
    if _IPV4_AS_NUMBERS.fullmatch(host):  # such as 2130706433, which systems take for 127.0.0.1
        try:
            url = url.with_host(socket.inet_ntoa(socket.inet_aton(host)))
        except OSError:
            raise ValueError(f"not a host: {host}") from None
    elif host != host.lower():
        url = url.with_host(host.lower())
    if url.raw_user is not None or url.raw_password is not None:
        url = url.with_user(None)
    return url.with_fragment(None) if url.raw_fragment else url


def redirect_target(response: Received) -> URL:
    """Where a redirect leads; raises Failed where that is nowhere that can be requested."""
    location = response.header("location")
    if not location:
        raise Failed(Reason.BAD_REDIRECT, f"status {response.status} without a Location")
    try:
        return requested_url(str(response.location()))
    except ValueError:
        raise Failed(Reason.BAD_REDIRECT, f"status {response.status} to {location[:200]}") from None


def has_no_page(status: int, headers: Headers) -> bool:
    """Whether the head tells that the body is no page, and need not be read."""
    content_type = next((value for name, value in headers if name.lower() == "content-type"), None)
    return status in REDIRECTS or refuse_head(status, content_type) is not None


def retry_after(response: Received) -> float | None:
    """Seconds to wait by the Retry-After header, a number or a date; None without a valid one."""
    value = (response.header("retry-after") or "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
