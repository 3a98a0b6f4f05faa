"""Turns: so many at once, in order, whatever is cancelled meanwhile."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.fetch.politeness import Slots


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=20))
def test_slots_are_given_in_order_and_none_is_lost_to_a_cancelled_task(count: int, cancelled: list[bool]) -> None:
    async def run() -> list[int]:
        slots = Slots(count)
        began: list[int] = []

        async def use(number: int) -> None:
            async with slots:
                began.append(number)
                assert slots.taken <= count
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(use(number)) for number in range(len(cancelled))]
        await asyncio.sleep(0)
        for task, is_cancelled in zip(tasks, cancelled, strict=True):
            if is_cancelled:
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert slots.taken == 0
        return began

    began = asyncio.run(run())
    assert began == sorted(began)
    assert {number for number, is_cancelled in enumerate(cancelled) if not is_cancelled} <= set(began)
