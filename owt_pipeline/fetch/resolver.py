"""Names to addresses for aiohttp: only such as may be connected to, so what was checked is what is connected to."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from owt_pipeline.fetch.addresses import Addresses, BlockedAddress

_THREADS = 64
"""Lookups at once. A name whose servers are dead occupies a thread for as long as the system's resolver waits."""


class CheckingResolver(AbstractResolver):
    """The system's resolver, behind the rules of `addresses`.

    aiohttp connects to the addresses that `resolve` returns and resolves no second time, so a name that
    changes its address between check and connection (DNS rebinding) gains nothing.
    """

    def __init__(self, addresses: Addresses):
        self._addresses = addresses
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of `host`; raises OSError where it has none, BlockedAddress where none is allowed."""
        rule = self._addresses.rule(host)
        if rule is not None:
            return [_result(host, rule.address, rule.port or port)]
        infos = await asyncio.get_running_loop().run_in_executor(
            self._threads, socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
        )
        allowed, blocked = [], None
        for info in infos:
            address: Any = info[4][0]
            try:
                self._addresses.check_address(address)
            except BlockedAddress as error:
                blocked = error
            else:
                allowed.append(_result(host, address, port))
        if not allowed:
            raise blocked or OSError(f"{host} has no address")
        return allowed

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=family,
        proto=socket.IPPROTO_TCP,
        flags=socket.AI_NUMERICHOST,
    )
