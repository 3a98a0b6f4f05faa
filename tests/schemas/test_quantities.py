"""Numbers are written as a person reads them."""

from __future__ import annotations

import pytest

from schemas.quantities import format_bytes, format_duration, format_percent, pluralize


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "window", "1 window"),
        (0, "file", "0 files"),
        (1234, "URL", "1,234 URLs"),
        (2, "micro-batch", "2 micro-batches"),
        (2, "class", "2 classes"),
        (1, "copy", "1 copy"),
        (3, "copy", "3 copies"),
        (3, "day", "3 days"),
        (2, "evaluation set", "2 evaluation sets"),
    ],
)
def test_a_count_is_written_with_its_noun(count: int, noun: str, text: str) -> None:
    assert pluralize(count, noun) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.0 kB"),
        (812, "0.8 kB"),
        (17_000, "17.0 kB"),
        (1_000_000, "1.0 MB"),
        (40_000_000_000, "40.0 GB"),
        (2_500_000_000_000_000, "2,500.0 TB"),
    ],
)
def test_a_size_has_one_decimal_and_powers_of_1000(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3600, "60 min"),
        (5400, "1.5 h"),
        (172_800, "2.0 days"),
    ],
)
def test_a_duration_has_its_largest_suitable_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0, "0.0 %"), (0.0004, "<0.1 %"), (0.123, "12.3 %"), (1, "100.0 %")],
)
def test_a_small_share_is_not_shown_as_zero(share: float | None, text: str) -> None:
    assert format_percent(share) == text
