"""The limit on open files is raised as far as each system allows it."""

from __future__ import annotations

import resource

import pytest

from owt_pipeline.stages.fetch import options

UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """A system's limits on open files; `highest` is the highest soft limit that it accepts."""

    def __init__(self, soft: int, hard: int, highest: int):
        self.soft, self.hard, self.highest = soft, hard, highest

    def get(self, _: int) -> tuple[int, int]:
        return self.soft, self.hard

    def set(self, _: int, limits: tuple[int, int]) -> None:
        soft, hard = limits
        if soft == UNLIMITED or soft > self.highest:
            raise ValueError("current limit exceeds maximum limit")
        self.soft, self.hard = soft, hard


@pytest.mark.parametrize(
    ("limits", "soft_limit", "num_allowed"),
    [
        pytest.param(Limits(256, UNLIMITED, 10_240), 10_240, 2435, id="macOS"),
        pytest.param(Limits(61_440, UNLIMITED, 61_440), 61_440, 4000, id="macOS, raised by hand"),
        pytest.param(Limits(1024, 1_048_576, 1_048_576), 1_048_576, 4000, id="Linux"),
        pytest.param(Limits(1024, 4096, 4096), 4096, 899, id="Linux, with a low hard limit"),
        pytest.param(Limits(UNLIMITED, UNLIMITED, 0), UNLIMITED, 4000, id="without a limit"),
    ],
)
def test_as_many_files_may_be_open_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, soft_limit: int, num_allowed: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert options.allowed_connections.__wrapped__(4000) == num_allowed
    assert limits.soft == soft_limit
