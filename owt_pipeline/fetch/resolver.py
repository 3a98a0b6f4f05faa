"""Names to addresses: only such as may be connected to, so what was checked is what is connected to."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohappyeyeballs import AddrInfoType

from owt_pipeline.fetch.addresses import Addresses, BlockedAddress
from owt_pipeline.fetch.politeness import Slots

_THREADS = 512
"""Lookups at once, a thread each, started as they are needed. A name whose servers are dead occupies one for as long as
the system's resolver waits, some 20 seconds; were they few, links of ten years ago would keep them all."""

_KEEP_SECONDS = 600.0


class CheckingResolver:
    """The system's resolver, behind the rules of `addresses`; it remembers the last names for some minutes.

    The client connects to the addresses that `resolve` returns and resolves no second time, so a name that
    changes its address between check and connection (DNS rebinding) gains nothing.
    """

    def __init__(self, addresses: Addresses, remembered: int = 10_000):
        self._addresses, self._remembered = addresses, remembered
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dns")
        self._free_threads = Slots(_THREADS)
        self._lookups: OrderedDict[tuple[str, int], tuple[float, asyncio.Future[list[AddrInfoType]]]] = OrderedDict()

    async def resolve(self, host: str, port: int, seconds: float) -> list[AddrInfoType]:
        """The addresses of `host`; raises OSError where it has none, or none was told within `seconds` (which do not
        count while other names are looked up), BlockedAddress where none is allowed."""
        begun, lookup = self._lookups.get((host, port), (0.0, None))
        if lookup is None or time.monotonic() - begun > _KEEP_SECONDS or (lookup.done() and _failed(lookup)):
            lookup = asyncio.ensure_future(self._resolve(host, port, seconds))
            self._lookups[host, port] = time.monotonic(), lookup
            if len(self._lookups) > self._remembered:
                self._lookups.popitem(last=False)
        return await asyncio.shield(lookup)  # others may wait for it too

    async def _resolve(self, host: str, port: int, seconds: float) -> list[AddrInfoType]:
        rule = self._addresses.rule(host)
        if rule is not None:
            return [_info(rule.address, rule.port or port)]
        infos = await self._look_up(host, port, seconds)
        allowed: list[AddrInfoType] = []
        blocked = None
        for info in infos:
            address: Any = info[4][0]
            try:
                self._addresses.check_address(address)
            except BlockedAddress as error:
                blocked = error
            else:
                allowed.append(_info(address, port))
        if not allowed:
            raise blocked or OSError(f"{host} has no address")
        return allowed

    async def _look_up(self, host: str, port: int, seconds: float) -> list[Any]:
        await self._free_threads.acquire()
        lookup = asyncio.get_running_loop().run_in_executor(
            self._threads, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
        )
        lookup.add_done_callback(self._end_lookup)
        try:
            return await asyncio.wait_for(asyncio.shield(lookup), seconds)  # the thread cannot be stopped
        except asyncio.TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, f"no answer about the name within {seconds:g} s") from None

    def _end_lookup(self, lookup: asyncio.Future[Any]) -> None:
        self._free_threads.release()
        _failed(lookup)  # asks for its exception, which nobody may have waited for

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _failed(lookup: asyncio.Future[Any]) -> bool:
    return lookup.cancelled() or lookup.exception() is not None


def _info(address: str, port: int) -> AddrInfoType:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
