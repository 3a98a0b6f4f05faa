"""Submissions from Reddit's API, read with PRAW, in the layout of a monthly dump."""

from __future__ import annotations

import configparser
import datetime
import logging
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import orjson

from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.formats.lines import Block
from owt_pipeline.stages.collect.submissions import Submission

if TYPE_CHECKING:
    import praw

    from owt_pipeline.stages.collect.options import Options

logger = logging.getLogger("owt")

_MOST_WAITS = 5  # for one request
_LONGEST_WAIT = 600.0  # seconds: the period for which Reddit counts requests

_asking = Lock()  # PRAW's session is not thread-safe, and Reddit's rate limit holds for all threads


class SubredditReader:
    """The submissions of a subreddit, as one block of lines of JSON.

    Its attributes are those of `sources.Reader`; the bytes are those of the lines.
    """

    broken, ends_within_line = None, False

    def __init__(self, subreddit: str, options: Options):
        self._subreddit, self._options = subreddit, options
        self.bytes_read = self.bytes_decompressed = 0
        self.overlong: list[int] = []

    def __iter__(self) -> Iterator[Block]:
        """PRAW obeys Reddit's rate limits; after a 429, this waits as long as Reddit asks for.

        A subreddit that cannot be read (banned, private, misspelt) is logged and yields nothing. Raises UserError if
        Reddit cannot be reached or the credentials are wrong.
        """
        with _asking:
            lines = list(self._lines())
        if lines:
            data = b"\n".join(lines)
            self.bytes_read = self.bytes_decompressed = len(data)
            yield Block(data, 1, len(lines))

    def _lines(self) -> Iterator[bytes]:
        import prawcore

        name = self._subreddit
        try:
            for submission in _listed(_reddit(self._options.praw_site), name, self._options):
                yield orjson.dumps(_record(submission))
        except (prawcore.NotFound, prawcore.Forbidden, prawcore.Redirect, prawcore.UnavailableForLegalReasons) as error:
            logger.warning("r/%s cannot be read, continuing without it: %s", name, error)
        except prawcore.PrawcoreException as error:
            raise UserError(
                f"Reddit's API fails for r/{name}: {error}. Check the credentials (praw.ini, or "
                "praw_client_id and praw_client_secret in the environment) and the network; then run the same "
                "command again: it continues at this subreddit"
            ) from error


def days_asked_for(options: Options) -> tuple[float, float]:
    """(first moment, end) of the submissions to read, in seconds since 1970.

    Raises UsageError for a search without a query or the reverse, UserError for text that is not a date.
    """
    if (options.praw_listing == "search") != (options.praw_query is not None):
        raise UsageError('praw_listing = "search" and praw_query go together: set both or neither')
    found = []
    for option, otherwise in (("praw_after", -math.inf), ("praw_before", math.inf)):
        date = getattr(options, option)
        try:
            day = datetime.datetime.strptime(f"{date} +0000", "%Y-%m-%d %z") if date is not None else None
        except ValueError:
            raise UserError(f"{option}: {date!r} is not a date; write it as 2019-12-31") from None
        found.append(day.timestamp() if day is not None else otherwise)
    return found[0], found[1]


@lru_cache(1)  # one session for all subreddits: it keeps the token and the state of the rate limit
def _reddit(site: str | None) -> praw.Reddit:
    import praw

    try:
        return praw.Reddit(site, check_for_updates=False, requestor_class=_patient_requestor())
    except configparser.NoSectionError as error:
        raise UserError(f"praw_site: praw.ini has no section [{error.section}]") from error
    except praw.exceptions.MissingRequiredAttributeException as error:
        raise UserError(
            f"PRAW lacks credentials: {str(error).splitlines()[0]} Register a script at "
            "https://www.reddit.com/prefs/apps, and write client_id, client_secret and user_agent into praw.ini "
            "(or praw_client_id, praw_client_secret and praw_user_agent into the environment)"
        ) from error


def _patient_requestor() -> Any:
    """A prawcore.Requestor that retries after 429; prawcore does not."""
    import prawcore

    class PatientRequestor(prawcore.Requestor):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            for _ in range(_MOST_WAITS):
                response = super().request(*args, **kwargs)
                if response.status_code != 429:
                    return response
                asked = response.headers.get("retry-after") or response.headers.get("x-ratelimit-reset") or ""
                seconds = min(float(asked), _LONGEST_WAIT) if asked.isdecimal() else 60.0
                logger.warning("Reddit asks to wait %g s before the next request", seconds)
                time.sleep(seconds)
            return super().request(*args, **kwargs)

    return PatientRequestor


def _listed(reddit: praw.Reddit, name: str, options: Options) -> Iterator[praw.models.Submission]:
    ask = getattr(reddit.subreddit(name), options.praw_listing)
    further = {"time_filter": options.praw_time} if options.praw_listing in ("top", "search") else {}
    query = [options.praw_query] if options.praw_listing == "search" else []
    after, before = days_asked_for(options)
    for submission in ask(*query, limit=options.praw_limit, **further):
        if submission.created_utc < after:
            if options.praw_listing == "new":
                return  # all that follow are older
        elif submission.created_utc < before:
            yield submission


def _record(submission: praw.models.Submission) -> dict[str, Any]:
    """The fields that `submissions` reads, as the API returned them."""
    fields = vars(submission)
    record = {name: fields[name] for name in Submission.__struct_fields__ if name in fields}
    return {**record, "subreddit": str(fields.get("subreddit", ""))}
