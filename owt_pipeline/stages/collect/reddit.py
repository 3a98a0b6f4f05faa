"""Submissions from Reddit's API, read with PRAW, in the layout of a monthly dump."""

from __future__ import annotations

import configparser
import logging
import time
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import orjson

from owt_pipeline.errors import UserError
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
            subreddit = _reddit(self._options.praw_site).subreddit(name)
            # Of Reddit's listings, of about 1,000 each, the one with the most submissions that pass `min_score`.
            for submission in subreddit.top(time_filter="all", limit=self._options.praw_limit):
                yield orjson.dumps(_record(submission))
        except (prawcore.NotFound, prawcore.Forbidden, prawcore.Redirect, prawcore.UnavailableForLegalReasons) as error:
            logger.warning("r/%s cannot be read, continuing without it: %s", name, error)
        except prawcore.PrawcoreException as error:
            raise UserError(
                f"Reddit's API fails for r/{name}: {error}. Check the credentials (praw.ini, or "
                "praw_client_id and praw_client_secret in the environment) and the network; then run the same "
                "command again: it continues at this subreddit"
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


def _record(submission: praw.models.Submission) -> dict[str, Any]:
    """The fields that `submissions` reads, as the API returned them."""
    fields = vars(submission)
    record = {name: fields[name] for name in Submission.__struct_fields__ if name in fields}
    return {**record, "subreddit": str(fields.get("subreddit", ""))}
