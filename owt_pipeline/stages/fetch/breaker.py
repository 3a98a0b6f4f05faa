"""A breaker: no URL is rejected because the network, the resolver, the proxy or an archive is down.

Failures without an answer are held back. They become their URLs' outcomes once a later request succeeds, or when no
request is left. If too many in a row are held, the run stops, and these URLs have no outcome: the next run requests
them again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import Answer, Fetched, NoPage
from owt_pipeline.stages.fetch.recorder import Recorder


class Breaker:
    """Takes the answers of one source to the URLs of one shard; used in one event loop, by any number of tasks."""

    def __init__(
        self,
        recorder: Recorder,
        most: float,
        is_silent: Callable[[NoPage], bool],
        what: str,
        works: Callable[[], Awaitable[bool]] | None = None,
    ):
        """Outcomes go to `recorder`. After failures of `most` names in a row, for which `is_silent` returns True, the
        run stops with a message about `what`; but not if `works` finds that an answer comes from elsewhere."""
        self._recorder, self._most, self._is_silent = recorder, most, is_silent
        self._what, self._works = what, works
        self._held: deque[tuple[float, str, int, NoPage]] = deque()  # when, whose
        self._names: Counter[str] = Counter()  # of those held
        self._judging = asyncio.Lock()

    async def take(self, url_id: int, answer: Answer | Fetched, begun: float, name: str = "") -> None:
        """Take the answer to a request that began at `begun`, in `time.monotonic` seconds; raises UserError. `name` is
        whose failure it is: by default the URL's."""
        if not isinstance(answer, NoPage) or not self._is_silent(answer):
            await self.settle(begun)
            await self._recorder.take(url_id, answer)
            return
        name = name or str(url_id)
        self._held.append((time.monotonic(), name, url_id, answer))
        self._names[name] += 1
        if len(self._names) < self._most:
            return
        async with self._judging:
            if len(self._names) < self._most:
                return
            if self._works is None or not await self._works():
                raise UserError(self._problem())
            await self.settle()

    async def settle(self, begun: float = math.inf) -> None:
        """Record the failures before `begun`, when a request that succeeded began; at the end, all of them."""
        while self._held and self._held[0][0] < begun:
            _, name, url_id, answer = self._held.popleft()
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
            await self._recorder.take(url_id, answer)

    def _problem(self) -> str:
        reasons = Counter(str(answer.reason) for _, _, _, answer in self._held)
        counted = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
        return (
            f"{len(self._names):,} {self._what} ({counted}); the last one: {self._held[-1][3].detail}. Their URLs have "
            "no outcome yet: run the same command again later, and it continues where it stopped"
        )
