"""The hosts below `bad.test`: a function for each answers its requests, registered by name (`_` for `-`)."""

from __future__ import annotations

from collections.abc import Callable

from tests.owt_pipeline.fetch.bad_server import Way

WAYS: dict[str, tuple[Way, str | None]] = {}
"""By host name: its function, and the reason that a user would expect; None for a page."""


def way(reason: str | None) -> Callable[[Way], Way]:
    def register(answer: Way) -> Way:
        WAYS[answer.__name__.replace("_", "-")] = answer, reason
        return answer

    return register
