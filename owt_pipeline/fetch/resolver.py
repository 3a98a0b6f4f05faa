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

_THREADS = 64
"""Lookups at once. A name whose servers are dead occupies a thread for as long as the system's resolver waits."""

_KEEP_SECONDS = 600.0


class CheckingResolver:
    """The system's resolver, behind the rules of `addresses`; it remembers the last names for some minutes.

    The client connects to the addresses that `resolve` returns and resolves no second time, so a name that
    changes its address between check and connection (DNS rebinding) gains nothing.
    """

    def __init__(self, addresses: Addresses, remembered: int = 10_000):
        self._addresses, self._remembered = addresses, remembered
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dns")
        self._lookups: OrderedDict[tuple[str, int], tuple[float, asyncio.Future[list[AddrInfoType]]]] = OrderedDict()

    async def resolve(self, host: str, port: int) -> list[AddrInfoType]:
        """The addresses of `host`; raises OSError where it has none, BlockedAddress where none is allowed."""
        begun, lookup = self._lookups.get((host, port), (0.0, None))
        if lookup is None or time.monotonic() - begun > _KEEP_SECONDS or (lookup.done() and _failed(lookup)):
            lookup = asyncio.ensure_future(self._resolve(host, port))
            self._lookups[host, port] = time.monotonic(), lookup
            if len(self._lookups) > self._remembered:
                self._lookups.popitem(last=False)
        return await asyncio.shield(lookup)  # others may wait for it too

    async def _resolve(self, host: str, port: int) -> list[AddrInfoType]:
        rule = self._addresses.rule(host)
        if rule is not None:
            return [_info(rule.address, rule.port or port)]
        infos = await asyncio.get_running_loop().run_in_executor(
            self._threads, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
        )
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

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _failed(lookup: asyncio.Future[Any]) -> bool:
    return lookup.cancelled() or lookup.exception() is not None


def _info(address: str, port: int) -> AddrInfoType:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
