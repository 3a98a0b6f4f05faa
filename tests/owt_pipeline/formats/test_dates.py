"""Dates are read in three forms, and counted in all others."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.dates import UnreadDates, moment_of

UTC = timezone.utc
NOON = datetime(2019, 1, 31, 12, tzinfo=UTC)
OF_NOON = (
    "2019-01-31T12:00:00Z", "2019-01-31 12:00:00+00:00", "2019-01-31 07:00:00-0500",
    "2019-01-31 12:00:00+00", "2019-01-31 13:00:00 +0100", "2019-01-31 12:00:00 UTC",
    "2019-01-31t12:00:00.123456789z", "20190131T120000Z", "Thu, 31 Jan 2019 12:00:00 GMT",
    "31 Jan 2019 13:00 +0100", "Thu, 31 Jan 2019 07:00:00 EST", 1_548_936_000, 1_548_936_000.5,
    1_548_936_000_000, "1548936000", "1.548936e9", " 1548936000000\n",
)  # fmt: skip
UNREAD = (
    "01/02/2019", "31.01.2019", "2019/01/31", "31 Jan 2019", "January 31, 2019", "2019", "2019-01",
    2019, "43496", 43496, "Jan 31 2019 3:04 PM", "Thu Jan 31 12:00:00 2019", "31/Jan/2019:12:00:00 +0000",
    "Thu, 31 Jan 2019 12:00:00 CEST", "Thu, 32 Jan 2019 12:00:00 GMT", "2019-02-30", "2019-01-31 of",
    "20190131120000", 20190131120000, 1_548_936_000 * 10**6, "yesterday", "nan", "inf", "1e999",
    "1_548_936_000", "２０１９-01-31", "１５４８９３６０００", "", "\x00", True, None, b"2019-01-31",
)  # fmt: skip


@pytest.mark.parametrize("value", OF_NOON)
def test_the_three_forms_are_read(value: object) -> None:
    moment = moment_of(value)
    assert moment is not None
    assert moment.replace(microsecond=0) == NOON


@pytest.mark.parametrize("value", ["2019-01-31", "20190131", 20190131, "2019-01-31 00:00"])
def test_a_date_without_a_zone_has_none(value: object) -> None:
    assert moment_of(value) == datetime(2019, 1, 31)


@pytest.mark.parametrize("value", UNREAD)
def test_all_else_is_none(value: object) -> None:
    assert moment_of(value) is None


MOMENTS = st.datetimes(datetime(1973, 4, 1), datetime(2099, 12, 31)).map(
    lambda moment: moment.replace(microsecond=0)
)


@given(MOMENTS, st.integers(-14 * 60, 14 * 60))
def test_what_programs_write_is_read_back(moment: datetime, minutes: int) -> None:
    moment = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert moment_of(moment.isoformat()) == moment
    assert moment_of(str(moment)) == moment
    assert moment_of(format_datetime(moment)) == moment
    assert moment_of(moment.strftime("%Y%m%dT%H%M%S%z")) == moment
    assert moment_of(int(moment.timestamp())) == moment
    assert moment_of(f"{moment.timestamp() * 1000:.0f}") == moment


@given(st.text(st.sampled_from("0123456789/-.:, +eZTAPMJanFebTueGMT()'\"\t2019"), max_size=40))
def test_odd_texts_raise_nothing(text: str) -> None:
    moment_of(text)


def test_unread_dates_are_counted_without_nulls() -> None:
    dates = UnreadDates()
    later = UnreadDates()
    for value in (None, "", " NaN ", "null", "-"):
        dates.add(value, False, "a:1")
    dates.add("2019-01-31", True, "a:2")
    assert (dates.num_values, dates.problem) == (1, "")
    later.add("Jan 2019", False, "b:1")
    later.add(43496, False, "b:2")
    dates.merge(later)
    assert dates.problem.startswith(
        "2 of 3 dates are not understood and become null, the first is 'Jan 2019' (b:1); "
    )
    examples = dates.problem.partition("understood are ")[2].partition(", and")[0]
    for example in examples.replace("Thu, ", "Thu,").split(", "):
        assert moment_of(example) is not None, example
