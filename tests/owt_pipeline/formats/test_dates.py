"""Dates are read if they have one reading, and counted if they have none or several."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.dates import UnreadDates, date_of, moment_of

DAY = date(2019, 1, 31)
OF_ONE_DAY = (
    "2019-01-31", "2019-1-31", "2019/01/31", "2019/1/31", "2019.01.31", "20190131", "20190131235959",
    "2019-01-31 of the page", "2019-01-31T23:00:00-0500", "2019-01-31 11:00 PM", "2019/1/31 11:00pm",
    "31 Jan 2019", "31 January 2019", "31. January 2019", "31-Jan-2019", "31-JAN-2019", "31st January, 2019",
    "Jan 31, 2019", "Jan. 31, 2019", "January 31 2019", "january 31st, 2019", "31st of January 2019",
    "2019 Jan 31", "2019-Jan-31", "Thursday, January 31, 2019", "Thu Jan 31 2019",
    "31/01/2019", "01/31/2019", "1/31/2019", "31.01.2019", "31-1-2019", "1/31/2019 3:04:05 PM",
    "31/01/2019 15:04", "Jan 31, 2019 3:04 PM", "Jan 31, 2019 at 3:04pm", "31 Jan 2019 3:04 p.m.",
    "Jan 31, 2019, 3:04:05 a.m.", "Thu, 31 Jan 2019 00:00:00 GMT", "Thu, 31 Jan 2019 23:00:00 -0500",
    "Thu Jan 31 00:00:00 2019", "Thu Jan 31 23:59:59 +0000 2019", "Jan 31, 2019 12:00 CET",
    "Thu Jan 31 2019 23:00:00 GMT+0100 (Central European Standard Time)", "12:30 31 Jan 2019",
)  # fmt: skip
OF_NO_DAY = (
    "01/02/2019", "1.2.2019", "1-2-2019", "2/1/2019 10:00", "1/31/19", "31 Jan 19", "31-JAN-19",
    "Jan 31 '19", "Jan 2019", "2019", "2019-01", "Jan 31", "31", "43496", "1548892800", "3:04 PM",
    "yesterday", "3 hours ago", "2019-13-01", "2019-02-30", "32 Jan 2019", "Feb 29, 2019", "2019-031",
    "2019-W05-4", "31 Januar 2019", "31 janvier 2019", "31 de enero de 2019", "2019年1月31日",
    "Jan 30-31, 2019", "30-31 Jan 2019", "Jan 30 2019 - Jan 31 2019", "31 Jan 2018 2019", "Jan 31, 2019 25:00", "Published Jan 31, 2019",
    "20191331", "0000-00-00", "1/1/1", "x" * 100, "\x00", "２０１９-01-31",
)  # fmt: skip


@pytest.mark.parametrize("text", OF_ONE_DAY)
def test_a_date_with_one_reading_is_read(text: str) -> None:
    assert date_of(text) == DAY
    assert date_of(f" {text}\n") == DAY


@pytest.mark.parametrize("text", OF_NO_DAY)
def test_a_date_without_a_single_reading_is_none(text: str) -> None:
    assert date_of(text) is None
    assert moment_of(text) is None


UTC = timezone.utc
TIMES = {
    "Jan 31, 2019 3:04 PM": datetime(2019, 1, 31, 15, 4),
    "2019-1-31 12:04 AM": datetime(2019, 1, 31, 0, 4),
    "31/01/2019 15:04:05": datetime(2019, 1, 31, 15, 4, 5),
    "31 January 2019": datetime(2019, 1, 31),
    "Thu, 31 Jan 2019 07:00:00 EST": datetime(2019, 1, 31, 12, tzinfo=UTC),
    "Thu Jan 31 12:00:00 +0000 2019": datetime(2019, 1, 31, 12, tzinfo=UTC),
    "Thu Jan 31 2019 13:00:00 GMT+0100 (Central European Standard Time)": datetime(
        2019, 1, 31, 12, tzinfo=UTC
    ),
    "Jan 31, 2019 13:00 UTC+1": datetime(2019, 1, 31, 12, tzinfo=UTC),
    "Jan 31, 2019 12:00 CEST": None,
    "Jan 31, 2019 12:00 +9900": None,
}


@pytest.mark.parametrize("text", TIMES)
def test_a_time_has_its_zone(text: str) -> None:
    assert moment_of(text) == TIMES[text]


FORMS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d %b %Y", "%d-%B-%Y", "%b %d, %Y", "%a, %d %B %Y")


@given(
    st.datetimes(datetime(1000, 1, 1), datetime(9998, 12, 31)).map(
        lambda m: m.replace(microsecond=0)
    ),
    st.sampled_from(FORMS),
    st.sampled_from((" %H:%M:%S", " %I:%M:%S %p", "T%H:%M:%S")),
    st.integers(-14 * 60, 14 * 60),
)
def test_each_form_is_read_back(moment: datetime, form: str, clock: str, minutes: int) -> None:
    text = moment.strftime(form).replace(moment.strftime("%Y"), f"{moment.year:04}")
    assert date_of(text) == moment.date()
    if clock.startswith("T") and form != "%Y-%m-%d":
        return
    time = moment.strftime(clock)
    assert moment_of(text + time) == moment
    offset = timezone(timedelta(minutes=minutes))
    sign = "-" if minutes < 0 else "+"
    zone = f"{sign}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"
    assert moment_of(f"{text}{time} {zone}") == moment.replace(tzinfo=offset)


@given(st.dates(date(1000, 1, 1)), st.sampled_from("/.-"), st.booleans())
def test_days_and_months_are_never_exchanged(day: date, between: str, day_first: bool) -> None:
    numbers = [day.day, day.month] if day_first else [day.month, day.day]
    text = between.join([f"{numbers[0]:02}", f"{numbers[1]:02}", f"{day.year:04}"])
    is_ambiguous = day.day <= 12 and day.day != day.month
    assert date_of(text) == (None if is_ambiguous else day)


@given(st.text(st.sampled_from("0123456789/-.:, +ZTAPMJanFebTueGMT()'\"\t2019"), max_size=40))
def test_odd_texts_raise_nothing(text: str) -> None:
    day = date_of(text)
    moment = moment_of(text)
    assert day is None or f"{day.year:04}" in text
    assert moment is None or moment.date() == day


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
    for example in dates.problem.partition("understood are ")[2].split(", with")[0].split(" and "):
        for text in example.replace(", 2019", " 2019").split(", "):
            assert date_of(text) == DAY, text
