"""The reasons of rejects: every reject row's `reason` is a member of `Reason`."""

from __future__ import annotations

from enum import Enum

from schemas.filters import MEANINGS


class Reason(str, Enum):
    """A reason for a reject row, with the stage that gives it and a description."""

    _ignore_ = "name_of_filter"
    stage: str
    description: str

    def __new__(cls, value: str, stage: str, description: str) -> Reason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.stage = stage
        member.description = description
        return member

    # collect
    BAD_LINE = (
        "bad_line",
        "collect",
        "cannot be read as a submission, or as a row of a table of links",
    )
    BROKEN_FILE = (
        "broken_file",
        "collect",
        "the file ends or is damaged here; what comes before is kept",
    )
    NO_URL = "no_url", "collect", "the submission or row has no URL"
    BAD_URL = "bad_url", "collect", "the URL cannot be parsed, or is neither http nor https"
    SELF_POST = "self_post", "collect", "the submission is a text post of Reddit's own"
    OVER_18 = "over_18", "collect", "the submission is marked over 18"
    LOW_SCORE = "low_score", "collect", "the URL's score is under the threshold"
    BLOCKED_DOMAIN = "blocked_domain", "collect", "the domain is on a blocklist"
    BLOCKED_EXTENSION = (
        "blocked_extension",
        "collect",
        "the path has the extension of a media or binary file",
    )
    BLOCKED_SUBREDDIT = (
        "blocked_subreddit",
        "collect",
        "the subreddit is blocked, or not among those allowed",
    )
    REPEATED_URL = (
        "repeated_url",
        "collect",
        "another submission of the same canonical URL; merged into its row",
    )
    SEEN_BEFORE = (
        "seen_before",
        "collect",
        "an earlier generation has accepted the URL; the detail names it",
    )
    ID_COLLISION = "id_collision", "collect", "another canonical URL has the same 64-bit id"

    # fetch
    ROBOTS = "robots", "fetch", "robots.txt forbids the URL"
    ROBOTS_UNREACHABLE = (
        "robots_unreachable",
        "fetch",
        "robots.txt cannot be read (5xx, too slow, cut off or damaged), which forbids the host",
    )
    DNS = "dns", "fetch", "the host's name does not resolve"
    CONNECT = "connect", "fetch", "the connection failed or was closed, also within the body"
    PROXY = "proxy", "fetch", "the proxy cannot be reached, or refuses the request"
    TLS = "tls", "fetch", "the TLS handshake or the certificate failed"
    TIMEOUT = "timeout", "fetch", "a time limit passed before the response was complete"
    BLOCKED_ADDRESS = (
        "blocked_address",
        "fetch",
        "the address is not public, or the port not allowed",
    )
    REDIRECT_LOOP = "redirect_loop", "fetch", "too many redirects"
    BAD_REDIRECT = (
        "bad_redirect",
        "fetch",
        "a redirect without a target, or to a scheme other than http and https",
    )
    BAD_RESPONSE = "bad_response", "fetch", "not valid HTTP, or a body that does not decode"
    TOO_LARGE = "too_large", "fetch", "the body is larger than the limit"
    NOT_HTML = "not_html", "fetch", "the content type is not HTML"
    EMPTY_BODY = "empty_body", "fetch", "the response has no body"
    HTTP_401 = "http_401", "fetch", "HTTP status 401: unauthorized"
    HTTP_403 = "http_403", "fetch", "HTTP status 403: forbidden"
    HTTP_404 = "http_404", "fetch", "HTTP status 404: not found"
    HTTP_410 = "http_410", "fetch", "HTTP status 410: gone"
    HTTP_429 = "http_429", "fetch", "HTTP status 429: too many requests, also after waiting"
    HTTP_4XX = "http_4xx", "fetch", "another HTTP status from 400 to 499"
    HTTP_503 = "http_503", "fetch", "HTTP status 503: unavailable, also after waiting"
    HTTP_5XX = "http_5xx", "fetch", "another HTTP status from 500 to 599"
    HTTP_OTHER = "http_other", "fetch", "a final HTTP status other than success, redirect or error"
    NOT_ARCHIVED = "not_archived", "fetch", "none of the archives has a capture of the URL"
    ARCHIVE_FAILED = "archive_failed", "fetch", "the archive's index or data could not be read"

    # extract
    NO_TEXT = "no_text", "extract", "no main text was found"
    SOFT_404 = "soft_404", "extract", "a missing page or a parked domain, sent with status 200"
    WALL = "wall", "extract", "a login, a consent form or a check for robots in place of the page"
    EXTRACT_TIMEOUT = "extract_timeout", "extract", "extraction used up its CPU time"
    EXTRACT_MEMORY = "extract_memory", "extract", "extraction used up its memory"
    EXTRACT_CRASH = "extract_crash", "extract", "extraction raised an error or killed its process"

    # import
    EMPTY_TEXT = "empty_text", "import", "the record has no text"
    BAD_RECORD = "bad_record", "import", "the record cannot be read"
    REPEATED_ID = "repeated_id", "import", "an earlier record has the same URL or text"

    # clean
    RESERVED = "reserved", "clean", "the page reserves its use for AI, or for text and data mining"
    WRONG_LANGUAGE = "wrong_language", "clean", "the detected language is not one of those to keep"
    TOO_SHORT = "too_short", "clean", "fewer tokens than the minimum"
    # Each filter has a reason of its name. The members of an Enum are the names in its namespace.
    for name_of_filter in MEANINGS:
        locals()[name_of_filter.upper()] = (name_of_filter, "clean", MEANINGS[name_of_filter])
    CONTAMINATED = "contaminated", "clean", "shares an n-gram with an evaluation set"
    OWN_SIGNAL = (
        "own_signal",
        "clean",
        "a signal of your own is beyond its threshold; the detail names it",
    )
    SIGNAL_FAILED = (
        "signal_failed",
        "clean",
        "a signal of your own raised an error or returned no finite number",
    )

    # export
    FORGOTTEN = (
        "forgotten",
        "export",
        "taken down: a request names it, or it repeats a text that was taken down (owt forget)",
    )
    EXACT_DUPLICATE = (
        "exact_duplicate",
        "export",
        "the normalised text equals that of a kept document",
    )
    NEAR_DUPLICATE = "near_duplicate", "export", "a verified near-duplicate of a kept document"
    LICENSE = "license", "export", "the page declares none of the licences to keep"

    # tokenize
    NO_TOKENS = "no_tokens", "tokenize", "the text has no tokens"

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def of(cls, value: str) -> Reason:
        """Return the member whose value is `value`; raise ValueError for another string."""
        # Enum looks the value up: `__new__` only defines members.
        return cls(value)  # type: ignore[call-arg]


TEMPORARY = frozenset(
    {
        Reason.DNS, Reason.CONNECT, Reason.PROXY, Reason.TIMEOUT, Reason.ROBOTS_UNREACHABLE,
        Reason.HTTP_429, Reason.HTTP_503, Reason.HTTP_5XX, Reason.ARCHIVE_FAILED,
    }
)  # fmt: skip
"""Reasons of failures that may be over at a later attempt."""


def http_reason(status: int) -> Reason:
    """Return the reason for a final HTTP status that is not a success."""
    try:
        return Reason.of(f"http_{status}")
    except ValueError:
        pass
    if 400 <= status < 500:
        return Reason.HTTP_4XX
    if 500 <= status < 600:
        return Reason.HTTP_5XX
    return Reason.HTTP_OTHER
