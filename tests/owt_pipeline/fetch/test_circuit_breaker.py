"""A response that comes while a task waits for the witnesses counts, whatever the task saw before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import FetchedResponse, FetchFailure, FetchResult
from owt_pipeline.stages.fetch.recorder import CircuitBreaker
from schemas import Reason

MAX_FAILURES = 3
RESPONSE = FetchFailure(Reason.HTTP_404, "status 404")
SILENT = FetchFailure(Reason.TIMEOUT, "nothing came")


class ListRecorder:
    """Keeps the ids of the results, and gives way to other tasks as a full batch does."""

    def __init__(self) -> None:
        self.url_ids: list[int] = []

    async def take(self, url_id: int, _: FetchedResponse | FetchResult) -> None:
        self.url_ids.append(url_id)
        await asyncio.sleep(0)


def make_breaker(
    recorder: ListRecorder, is_network_up: Callable[[], Awaitable[bool]]
) -> CircuitBreaker:
    return CircuitBreaker(
        recorder,
        MAX_FAILURES,
        lambda failure: failure.reason == Reason.TIMEOUT,
        "hosts in a row gave no answer",
        is_network_up,
    )


async def fail(breaker: CircuitBreaker, *url_ids: int) -> None:
    """Let the requests of some URLs fail at the same time; each URL has a host of its own."""
    now = time.monotonic()
    await asyncio.gather(*(breaker.take(url_id, SILENT, now) for url_id in url_ids))


@pytest.mark.parametrize("num_later", [0, 1, MAX_FAILURES - 1])
def test_a_response_meanwhile_lets_the_run_go_on(num_later: int) -> None:
    """The witnesses' silence is older than the response, and few hosts failed after it."""
    recorder = ListRecorder()
    later_ids = range(10, 10 + num_later)

    async def run() -> None:
        async def is_network_up() -> bool:
            await breaker.take(9, RESPONSE, time.monotonic())
            for url_id in later_ids:
                await breaker.take(url_id, SILENT, time.monotonic())
            return False

        breaker = make_breaker(recorder, is_network_up)
        await fail(breaker, *range(MAX_FAILURES))
        assert recorder.url_ids == [0, 1, 2, 9]
        await breaker.settle()

    asyncio.run(run())
    assert recorder.url_ids == [0, 1, 2, 9, *later_ids]


def test_a_url_rejected_without_a_request_ends_no_silence() -> None:
    recorder = ListRecorder()
    forbidden = FetchFailure(Reason.ROBOTS, "forbidden by a robots.txt that was read before")

    async def is_network_up() -> bool:
        return False

    async def run() -> None:
        breaker = make_breaker(recorder, is_network_up)
        for url_id in range(MAX_FAILURES - 1):
            await fail(breaker, url_id)
            await breaker.take(10 + url_id, forbidden, time.monotonic(), has_response=False)
        with pytest.raises(UserError, match="3 hosts in a row gave no answer"):
            await fail(breaker, MAX_FAILURES - 1)

    asyncio.run(run())
    assert recorder.url_ids == [10, 11]


@pytest.mark.parametrize("comes_back", [True, False])
def test_many_failures_after_a_response_are_judged_anew(comes_back: bool) -> None:
    recorder = ListRecorder()
    num_asked = 0
    later_failures: list[asyncio.Future[None]] = []

    async def run() -> None:
        async def is_network_up() -> bool:
            nonlocal num_asked
            num_asked += 1
            if num_asked == 1:
                await breaker.take(9, RESPONSE, time.monotonic())
                later_failures.append(asyncio.ensure_future(fail(breaker, 10, 11, 12)))
                await asyncio.sleep(0.01)
                return False
            return comes_back

        breaker = make_breaker(recorder, is_network_up)
        await asyncio.gather(fail(breaker, *range(MAX_FAILURES)), return_exceptions=True)
        (error,) = await asyncio.gather(*later_failures, return_exceptions=True)
        if comes_back:
            assert error is None
        else:
            assert isinstance(error, UserError)
            assert "3 hosts in a row gave no answer (timeout 3)" in str(error)

    asyncio.run(run())
    assert num_asked >= 2
    assert recorder.url_ids == [0, 1, 2, 9, *((10, 11, 12) if comes_back else ())]


def test_a_response_to_an_older_request_explains_only_what_failed_before_it() -> None:
    recorder = ListRecorder()

    async def run() -> None:
        async def is_network_up() -> bool:
            return False

        breaker = make_breaker(recorder, is_network_up)
        await breaker.take(0, SILENT, 0.0)
        await asyncio.sleep(0.01)
        started = time.monotonic()
        await breaker.take(1, SILENT, 0.0)
        await breaker.take(2, RESPONSE, started)
        assert recorder.url_ids == [0, 2]
        await breaker.take(3, SILENT, 0.0)
        with pytest.raises(UserError, match="3 hosts in a row"):
            await breaker.take(4, SILENT, 0.0)

    asyncio.run(run())
    assert recorder.url_ids == [0, 2]


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["fail", "respond"]), st.integers(0, 3), st.integers(0, 3)),
        max_size=30,
    ),
    verdicts=st.lists(st.booleans(), max_size=8),
)
def test_each_result_is_recorded_once_or_the_run_stops(
    steps: list[tuple[str, int, int]], verdicts: list[bool]
) -> None:
    """In any order of results, and however long the witnesses take."""
    recorder = ListRecorder()
    remaining_verdicts = list(verdicts)

    async def run() -> bool:
        async def is_network_up() -> bool:
            for _ in range(len(remaining_verdicts)):
                await asyncio.sleep(0)
            return remaining_verdicts.pop() if remaining_verdicts else False

        async def take(url_id: int, kind: str, num_waits: int, num_more_waits: int) -> None:
            for _ in range(num_waits):
                await asyncio.sleep(0)
            started = time.monotonic()
            for _ in range(num_more_waits):
                await asyncio.sleep(0)
            await breaker.take(url_id, SILENT if kind == "fail" else RESPONSE, started)

        breaker = make_breaker(recorder, is_network_up)
        taking = (take(url_id, *step) for url_id, step in enumerate(steps))
        outcomes = await asyncio.gather(*taking, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        assert all(isinstance(error, UserError) for error in errors), errors
        if not errors:
            await breaker.settle()
        return not errors

    goes_on = asyncio.run(run())
    assert len(set(recorder.url_ids)) == len(recorder.url_ids)
    if goes_on:
        assert sorted(recorder.url_ids) == list(range(len(steps)))
    else:
        assert sum(kind == "fail" for kind, *_ in steps) >= MAX_FAILURES
