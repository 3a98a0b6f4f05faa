"""Submissions from Reddit's API, read with PRAW, in the layout of a monthly dump."""

from __future__ import annotations

import configparser
import logging
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from owt_pipeline.errors import UserError
from owt_pipeline.stages.collect.dumps import Dump
from owt_pipeline.stages.collect.kind import Tally
from owt_pipeline.stages.collect.submissions import Submission

if TYPE_CHECKING:
    import praw

    from owt_pipeline.stages.collect.options import Options

logger = logging.getLogger("owt")

# For one request.
_MAX_WAITS = 5
# Reddit counts requests for this long.
_MAX_WAIT_SECONDS = 600.0
_DEFAULT_WAIT_SECONDS = 60.0


class Subreddit(Dump):
    """The top submissions of a subreddit, stored in the run's folder in the layout of a dump."""

    name = "subreddit"
    option = "subreddits"
    # One listing has about 1,000 submissions: it never asks for another shard.
    bytes_per_shard = 1 << 30
    is_stored = True

    def names_of(
        self, uris: Sequence[str], recorded_by_uri: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        names = {subreddit_name(name) for name in uris}
        return {name: f"r/{name}" for name in sorted(names)}

    def describe(self, uri: str, name: str, recorded: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return its name only: its content is known when it is stored."""
        return {"name": name, "uri": uri}

    def store(self, uri: str, options: Options) -> bytes:
        return top_submissions(uri, options)

    def find_end(self, tally: Tally) -> str | None:
        return None


def subreddit_name(name: str) -> str:
    """Return a subreddit's name in lower case, without `r/`."""
    return name.strip("/").lower().removeprefix("r/")


def top_submissions(subreddit: str, options: Options) -> bytes:
    """Return the top submissions of all time, about 1,000, as lines of JSON.

    Among Reddit's listings, it has the most submissions that pass `min_score`. PRAW obeys Reddit's
    rate limits; after a 429, this waits as long as Reddit requests. A subreddit that cannot be read
    (banned, private, misspelt) is logged and has none. Raises UserError if Reddit cannot be reached
    or the credentials are wrong.
    """
    import prawcore

    try:
        reddit = _reddit(options.praw_site)
        listing = reddit.subreddit(subreddit).top(time_filter="all", limit=options.praw_limit)
        return b"".join(orjson.dumps(_record(submission)) + b"\n" for submission in listing)
    except (
        prawcore.NotFound,
        prawcore.Forbidden,
        prawcore.Redirect,
        prawcore.UnavailableForLegalReasons,
    ) as error:
        logger.warning("r/%s cannot be read, continuing without it: %s", subreddit, error)
        return b"\n"
    except prawcore.PrawcoreException as error:
        raise UserError(
            f"Reddit's API fails for r/{subreddit}: {error}. Check the credentials (praw.ini, or "
            "praw_client_id and praw_client_secret in the environment) and the network; then run "
            "the same command again: it continues at this subreddit"
        ) from error


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
            "https://www.reddit.com/prefs/apps, and write client_id, client_secret and user_agent "
            "into praw.ini (or praw_client_id, praw_client_secret and praw_user_agent into the "
            "environment)"
        ) from error


def _patient_requestor() -> Any:
    """Return a class of prawcore.Requestor that retries after 429; prawcore's does not."""
    import prawcore

    class PatientRequestor(prawcore.Requestor):
        def request(self, *args: Any, **kwargs: Any) -> Any:
            for _ in range(_MAX_WAITS):
                response = super().request(*args, **kwargs)
                if response.status_code != 429:
                    return response
                seconds = _requested_wait(response.headers)
                logger.warning("Reddit asks to wait %g s before the next request", seconds)
                time.sleep(seconds)
            return super().request(*args, **kwargs)

    return PatientRequestor


def _requested_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds that Reddit requests to wait, of at most _MAX_WAIT_SECONDS."""
    requested = headers.get("retry-after") or headers.get("x-ratelimit-reset") or ""
    if not requested.isdecimal():
        return _DEFAULT_WAIT_SECONDS
    return min(float(requested), _MAX_WAIT_SECONDS)


def _record(submission: praw.models.Submission) -> dict[str, Any]:
    """Return the fields that `submissions` reads, as the API returned them."""
    fields = vars(submission)
    record = {name: fields[name] for name in Submission.__struct_fields__ if name in fields}
    return {**record, "subreddit": str(fields.get("subreddit", ""))}
