"""Submissions from Reddit's API, by PRAW, in the layout of a monthly dump."""

from __future__ import annotations

import configparser
import datetime
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import orjson

from owt_pipeline.collect.submissions import Submission
from owt_pipeline.engine.errors import UserError
from owt_pipeline.formats.lines import Block

if TYPE_CHECKING:
    import praw

logger = logging.getLogger("owt")

_MOST_WAITS = 5  # for one request
_LONGEST_WAIT = 600.0  # seconds: the span over which Reddit counts requests


@dataclass(frozen=True)
class Listing:
    """Which submissions of a subreddit to ask for.

    Attributes:
      sort: `new`, `top`, `hot`, or `search`.
      query: what to search for.
      time: `hour`, `day`, `week`, `month`, `year` or `all`, for `top` and `search`.
      limit: the most submissions of a subreddit; None for as many as Reddit gives (some 1,000).
      after, before: submissions from this time on, and before that one, in seconds since 1970 in UTC.
    """

    sort: str = "top"
    query: str | None = None
    time: str = "all"
    limit: int | None = None
    after: float | None = None
    before: float | None = None


_asking = Lock()  # PRAW's session is not for several threads, and Reddit's rate limit holds for all of them


class SubredditReader:
    """The submissions of a subreddit, as a block of lines of JSON.

    Attributes are those of `sources.Reader`; the bytes are those of the lines.
    """

    broken = None

    def __init__(self, subreddit: str, listing: Listing, site: str | None):
        self._subreddit, self._listing, self._site = subreddit, listing, site
        self.bytes_read = self.bytes_decompressed = 0
        self.overlong: list[int] = []

    def __iter__(self) -> Iterator[Block]:
        """PRAW keeps to Reddit's rate limits, and where Reddit still says 429, this waits as long as it says.

        A subreddit that cannot be read (banned, private, misspelt) is logged and yields none. Raises UserError where
        Reddit cannot be reached or the credentials are wrong.
        """
        lines: list[bytes] = []
        with _asking:
            lines += self._lines()
        if lines:
            data = b"\n".join(lines)
            self.bytes_read = self.bytes_decompressed = len(data)
            yield Block(data, 1, len(lines))

    def _lines(self) -> Iterator[bytes]:
        import prawcore

        name, listing = self._subreddit, self._listing
        try:
            for submission in _within(listing, _listed(_reddit(self._site), name, listing)):
                yield orjson.dumps(_record(submission))
        except (prawcore.NotFound, prawcore.Forbidden, prawcore.Redirect, prawcore.UnavailableForLegalReasons) as error:
            logger.warning("r/%s cannot be read, continuing without it: %s", name, error)
        except prawcore.PrawcoreException as error:
            raise UserError(
                f"Reddit did not answer about r/{name}: {error}. Check the credentials (praw.ini, or "
                "praw_client_id and praw_client_secret in the environment) and the network; then run the same "
                "command again: it continues at this subreddit"
            ) from error


def timestamp(date: str | None, option: str) -> float | None:
    """Seconds since 1970 of the start of a day YYYY-MM-DD in UTC; raises UserError that names the option."""
    if date is None:
        return None
    try:
        day = datetime.datetime.strptime(date, "%Y-%m-%d")
    except ValueError:
        raise UserError(f"{option}: {date!r} is not a date; write it as 2019-12-31") from None
    return day.replace(tzinfo=datetime.timezone.utc).timestamp()


@lru_cache(1)  # one session: its token and what it knows of the rate limit serve all subreddits
def _reddit(site: str | None) -> praw.Reddit:
    import praw

    try:
        return praw.Reddit(site, check_for_updates=False, requestor_class=_patient_requestor())
    except configparser.NoSectionError as error:
        raise UserError(f"--praw_site: praw.ini has no section [{error.section}]") from error
    except praw.exceptions.MissingRequiredAttributeException as error:
        raise UserError(
            f"PRAW lacks credentials: {str(error).splitlines()[0]} Register a script at "
            "https://www.reddit.com/prefs/apps, and write client_id, client_secret and user_agent into praw.ini "
            "(or praw_client_id, praw_client_secret and praw_user_agent into the environment)"
        ) from error


def _patient_requestor() -> Any:
    """A prawcore.Requestor that sends a request again after 429; prawcore gives up at once."""
    import prawcore

    class PatientRequestor(prawcore.Requestor):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            for _ in range(_MOST_WAITS):
                response = super().request(*args, **kwargs)
                if response.status_code != 429:
                    return response
                seconds = _seconds_asked(response.headers)
                logger.warning("Reddit asks to wait %g s before the next request", seconds)
                time.sleep(seconds)
            return super().request(*args, **kwargs)

    return PatientRequestor


def _seconds_asked(headers: Mapping[str, str]) -> float:
    asked = headers.get("retry-after") or headers.get("x-ratelimit-reset") or ""
    return min(float(asked), _LONGEST_WAIT) if asked.isdecimal() else 60.0


def _listed(reddit: praw.Reddit, name: str, listing: Listing) -> Iterator[praw.models.Submission]:
    subreddit = reddit.subreddit(name)
    if listing.sort == "search":
        return subreddit.search(listing.query or "", time_filter=listing.time, limit=listing.limit)
    if listing.sort == "top":
        return subreddit.top(time_filter=listing.time, limit=listing.limit)
    return subreddit.new(limit=listing.limit) if listing.sort == "new" else subreddit.hot(limit=listing.limit)


def _within(listing: Listing, submissions: Iterable[praw.models.Submission]) -> Iterator[praw.models.Submission]:
    for submission in submissions:
        if listing.after is not None and submission.created_utc < listing.after:
            if listing.sort == "new":
                return  # newest first: all that follow are older
            continue
        if listing.before is None or submission.created_utc < listing.before:
            yield submission


def _record(submission: praw.models.Submission) -> dict[str, Any]:
    """The fields that `submissions` reads, as the API gave them."""
    fields = vars(submission)
    record = {name: fields[name] for name in Submission.__struct_fields__ if name in fields}
    return {**record, "subreddit": str(fields.get("subreddit", ""))}
