"""Names about which the resolver gives no answer (SERVFAIL, a timeout), at the end of a shard.

Such a failure may be the name's or the resolver's. A resolver that is overloaded or half broken
fails for many names, and hosts that respond in between hide it from the circuit breaker. So the
share of these names decides. That a name does not exist is an answer.
"""

from __future__ import annotations

from collections.abc import Callable

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import FetchedResponse, FetchFailure, FetchResult
from owt_pipeline.stages.fetch.recorder import ResultTaker

# With fewer names than this, their share says little.
_MIN_NAMES = 10

_MAX_NAMES_IN_MESSAGE = 3


class UnansweredNames:
    """Passes results on to a recorder, but holds back those of names without an answer.

    They are held back until no request is left. If the names are too many, the run stops, and
    their URLs have no outcome, so the next run requests them again.
    """

    def __init__(self, recorder: ResultTaker, max_share: float, count_hosts: Callable[[], int]):
        """Return a holder of the results that go to `recorder`.

        Args:
          max_share: the largest share of the shard's hosts that may be without an answer; with 1,
            the run never stops.
          count_hosts: returns the number of the shard's hosts.
        """
        self._recorder = recorder
        self._max_share = max_share
        self._count_hosts = count_hosts
        self._held_failures: list[tuple[int, FetchFailure]] = []
        # In the order of the failures, for the message.
        self._names: dict[str, None] = {}

    async def take(self, url_id: int, result: FetchedResponse | FetchResult) -> None:
        """Take a result; raises the error of writing, such as OSError for a full disk."""
        if not isinstance(result, FetchFailure) or not result.unanswered_name:
            await self._recorder.take(url_id, result)
            return
        self._held_failures.append((url_id, result))
        self._names[result.unanswered_name] = None

    async def settle(self) -> None:
        """Record the failures that were held back; raises UserError if the names are too many."""
        num_names = len(self._names)
        if num_names >= _MIN_NAMES and self._max_share < 1:
            num_hosts = self._count_hosts()
            if num_names > self._max_share * num_hosts:
                raise UserError(self._problem(num_hosts))
        for url_id, failure in self._held_failures:
            await self._recorder.take(url_id, failure)

    def _problem(self, num_hosts: int) -> str:
        examples = ", ".join(list(self._names)[:_MAX_NAMES_IN_MESSAGE])
        _, last_failure = self._held_failures[-1]
        return (
            f"the resolver gave no answer about {len(self._names):,} names, and the shard has "
            f"{num_hosts:,} hosts ({examples}, ...; {last_failure.detail}). Their URLs have no "
            "outcome yet: check the resolver, and run the same command again; it continues where "
            "it stopped. If the names are dead, add --max_unanswered_names 1"
        )
