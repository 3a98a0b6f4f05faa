"""Pages that are not the article: what a server says in its place.

A short text with a sentence that only such pages have, or one about a missing page that begins with it. The phrases
are of the systems that write these pages (Cloudflare, Akamai, PerimeterX, WordPress, consent banners, paywalls).
"""

from __future__ import annotations

import re

from owt_pipeline.clean.judgement import Judgement, TextView

MAX_WORDS = 400
"""An article that quotes such a sentence is longer; a page of this kind is not."""

_BEGINNING = 200  # characters: a page that is missing says so at once
_MAX_SHARE = 0.25  # of the text's lines must say so, or its beginning

_ANYWHERE = {
    "a request to enable JavaScript": (
        r"(?:please )?(?:enable|turn on|activate|allow) javascript",
        r"javascript (?:is|appears to be|has been) (?:disabled|not enabled|not available|turned off|required)",
        r"(?:requires|need to enable|you need) javascript",
        r"doesn't work properly without javascript|without javascript enabled",
    ),
    "a check for robots": (
        r"are you a (?:robot|human)|(?:i'm|i am|you're|you are) not a (?:ro)?bot|think you (?:were|are) a bot",
        r"(?:verify|verifying|confirm) (?:that )?you are (?:a )?human",
        r"checking (?:your|if the site connection)[ \w]{0,20}(?:browser|secure)",
        r"unusual (?:traffic|activity) from your|pardon our interruption|ddos protection by",
        r"complete the (?:captcha|security check)|attention required! \| cloudflare",
    ),
    "a blocked request": (
        r"access (?:to this page has been |is |was )?denied|you (?:have been|were|are being) blocked",
        r"you don't have permission to access|request (?:was|has been) blocked",
        r"not available in your (?:country|region|location)|unavailable due to legal reasons",
        r"browser is (?:out of date|outdated|not supported|no longer supported)",
        r"error code:? 10\d\d\b|reference #[\d.]+[0-9a-f]+",
    ),
    "a request to accept cookies": (
        r"(?:accept|allow|enable) (?:all )?cookies|cookies (?:are|must be) (?:disabled|enabled)",
        r"we (?:and our partners )?(?:use|store)[ \w/,]{0,60}cookies",
        r"manage (?:your )?(?:cookie|consent|privacy) (?:preferences|choices|settings)",
        r"your privacy (?:choices|is important)",
    ),
    "a request to log in or pay": (
        r"(?:log|sign) ?in to (?:continue|read|view|access|your account)|you must (?:log in|be logged in) to",
        r"(?:create|register for) (?:a|an|your) (?:free )?account to",
        r"subscribe (?:now )?to (?:continue|read|unlock|access)",
        r"this (?:content|article|post|story|page) is (?:only |exclusively )?(?:available )?(?:for|to) (?:[\w-]+ )?"
        r"(?:subscribers|members)|already (?:a subscriber|have an account|a member)\?",
        r"you(?:'ve| have) (?:reached|used|read) (?:your|all)[ \w]{0,30}(?:limit|articles)",
    ),
}
_AT_THE_BEGINNING = (
    r"(?:error|status|http)(?: code)?:? 40[34]\b|\b40[34]\W{1,3}(?:error|page|file|not found|forbidden)",
    r"^\W*40[34]\W*$|page (?:not|cannot be|could not be|can't be|was not|wasn't) found",
    r"(?:the|this) page (?:you|that)[ \w']{0,40}(?:not|n't|no longer)[ \w']{0,20}(?:found|exist|available)",
    r"this page (?:doesn't exist|isn't available|is missing|has moved)",
    r"(?:sorry|oops)[,.!]?[ \w,']{0,40}(?:can't|cannot|couldn't|not) "
    r"(?:be found|find (?:the|that|this|what|your|any)\b)",
    r"nothing (?:was )?found",
    r"requested url[ \w/.]{0,60}not found|50[0-4] (?:bad gateway|service|gateway time|internal server)",
    r"^\W*service (?:temporarily )?unavailable\W*$|error establishing a database connection",
    r"no longer (?:available|exists)|account (?:has been )?suspended|domain (?:is|may be) for sale",
    r"(?:site|page|website) (?:is )?(?:under construction|coming soon|temporarily unavailable|down for maintenance)",
    r"index of /|(?:apache|nginx|iis)[ \w\d]{0,20}(?:default|test) page|welcome to nginx",
)
_SAYS = [(what, re.compile("|".join(patterns), re.IGNORECASE)) for what, patterns in _ANYWHERE.items()]
_MISSING = re.compile("|".join(_AT_THE_BEGINNING), re.IGNORECASE | re.MULTILINE)


def boilerplate(view: TextView) -> Judgement:
    """Whether the page is there in place of an article, and of which kind it is."""
    return Judgement({}, _in_place_of_an_article(view))


def _in_place_of_an_article(view: TextView) -> str | None:
    if view.text.count(" ") > 2 * MAX_WORDS or view.n_words > MAX_WORDS:
        return None
    view = TextView(view.text.replace("’", "'"))
    text = view.text
    beginning = text[:_BEGINNING]
    if match := _MISSING.search(beginning):
        return f"a missing page: {match[0]!r}"
    for what, pattern in _SAYS:
        if match := pattern.search(text):
            lines = [line for line in view.lines if line.strip()]
            saying = sum(pattern.search(line) is not None for line in lines)
            if pattern.search(beginning) or saying > _MAX_SHARE * len(lines):
                return f"{what}: {match[0]!r}"
    return None
