"""Soft 404s, parked domains and walls have their own reasons; real pages are never mistaken for them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.stages.extract.charset import decode
from owt_pipeline.stages.extract.not_pages import MAX_WORDS, what_instead
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.pages import Found, Rejected, extract_body, load_extractor

MISSING = "<p>Sorry, the page you are looking for could not be found.</p><p>Search:</p>"

INSTEAD = {  # titles and scripts as these servers and services send them
    "soft_404": [
        "<title>404 Not Found</title><h1>Not Found</h1><p>The requested URL was not found on this server.</p>",
        "<title>404 - File or directory not found.</title><h2>Server Error</h2>",
        f"<title>Page not found - The Example Times</title>{MISSING}",
        f"<title>Page Not Found | Example</title>{MISSING}",
        f"<title>The page cannot be found</title>{MISSING}",
        f"<title>Error 404 (Not Found)!!1</title>{MISSING}",
        f"<title>The Example Times: Page not found</title>{MISSING}",
        f"<title>Oops! That page can&#8217;t be found.</title>{MISSING}",
        f"<TITLE>\n Example &mdash; 404 </TITLE>{MISSING}",
        "<title>example.com</title><script src='//img.sedoparking.com/templates/bg.js'></script><p>Related links</p>",
        "<title>example.com</title><script src='https://d38psrni17bvxu.cloudfront.net/parkingcrew.net/x.js'></script>",
        "<title>example.com is for sale | HugeDomains</title><h1>Buy now</h1>",
        "<title>This domain may be for sale!</title>",
        "<script>window.onload=function(){window.location.href='/lander'}</script>",
        "<title>example.com</title><script src='//img1.wsimg.com/parking-lander/static/js/main.js'></script>",
    ],
    "wall": [
        "<title>Just a moment...</title><p>Enable JavaScript and cookies to continue</p>",
        "<title>Attention Required! | Cloudflare</title><h1>Sorry, you have been blocked</h1>",
        "<title>x.org</title><script>window._cf_chl_opt={cvId:'3',cZone:'x.org',cType:'managed'};</script>",
        "<title>Access Denied</title><h1>Access Denied</h1>You have no permission. Reference #18.2d351ab8.15",
        "<html><iframe src='/_Incapsula_Resource?CWUDNSAI=9&incident_id=1'>Request unsuccessful.</iframe></html>",
        "<title>x.com</title><script src='https://ct.captcha-delivery.com/c.js'></script><p>Please enable JS</p>",
        '<title>Access to this page has been denied.</title><div id="px-captcha"></div>',
        "<title>Robot or human?</title><p>Activate and hold the button to confirm that you're human.</p>",
        "<title>Pardon Our Interruption...</title><p>As you were browsing something about your browser</p>",
        "<title>Are you a robot?</title><p>Please make sure your browser supports JavaScript and cookies</p>",
        "<title>Before you continue to YouTube</title><form action='https://consent.youtube.com/save'></form>",
        "<title>Yahoo</title><form action='https://consent.yahoo.com/v2/collectConsent?s=1'>Privacy</form>",
        "<title>Log in to Facebook</title><form><input name=email></form>",
        "<title>LinkedIn Login, Sign in | LinkedIn</title><form><input name=session_key></form>",
        "<title>Sign in to continue</title>",
    ],
}


@pytest.mark.parametrize(("reason", "page"), [(reason, page) for reason, pages in INSTEAD.items() for page in pages])
def test_missing_pages_parked_domains_and_walls_are_rejected_with_their_reason(reason: str, page: str) -> None:
    found = extract_body(load_extractor(Options()), "http://a.example/x", 1, page)
    assert isinstance(found, Rejected)
    assert found.reason == reason
    kept = extract_body(load_extractor(Options(reject_walls=False)), "http://a.example/x", 1, page)
    assert not isinstance(kept, Rejected) or kept.reason == "no_text"


ARTICLES = [
    "404 pages that made us laugh",
    "404: the story of an error code that everybody knows",
    "The page not found in any library",
    "Why access denied errors cost you customers",
    "Log in to your tree: a guide to forestry",
    "Just a moment: on patience",
    "My house is for sale",
]


@pytest.mark.parametrize("title", ARTICLES)
def test_article_about_such_pages_is_kept(title: str) -> None:
    text = "<p>" + "Many words about something else. " * MAX_WORDS + "</p>"
    assert what_instead(f"<title>{title}</title>{text}") is None
    page = f"<title>{title}</title>{text}"
    assert isinstance(extract_body(load_extractor(Options()), "http://a.example/x", 1, page), Found)


@pytest.mark.parametrize("title", ARTICLES)
def test_short_post_with_such_words_in_its_title_is_kept(title: str) -> None:
    assert what_instead(f"<title>{title}</title><p>Few words.</p>") is None


@pytest.mark.parametrize(
    "script",
    [
        "<script src='/cdn-cgi/challenge-platform/scripts/jsd/main.js'></script>",  # Cloudflare's, in any page
        "<script src='/_Incapsula_Resource?SWJIYLWA=719d34d31c8e3a6e6fffd425f7e032f3'></script>",  # Imperva's
        "<script src='https://js.datadome.co/tags.js'></script>",
        "<script src='https://x.token.awswaf.com/x/challenge.js'>AwsWafIntegration</script>",
        "<a href='https://www.bodis.com/'>sell your domain</a>",
    ],
)
def test_short_page_with_a_script_of_such_a_service_is_kept(script: str) -> None:
    assert what_instead(f"<title>A poem</title>{script}<p>Few words.</p>") is None


def real_pages(testdata: Path) -> Iterator[tuple[str, str]]:
    for record in ArchiveIterator(str(testdata / "web" / "wcxb-dev.warc.gz")):
        if record.http_headers:
            yield record.headers["WARC-Target-URI"], decode(record.reader.read(), record.http_charset)[0]
    for name in ("trafilatura-eval-dev", "readability-pages"):
        with gzip.open(testdata / "web" / f"{name}.jsonl.gz") as lines:
            for line in lines:
                page = json.loads(line)
                yield page.get("url") or page["name"], page["html"]


def test_none_of_the_real_pages_is_rejected(testdata: Path) -> None:
    pages = list(real_pages(testdata))
    assert len(pages) == 1957
    assert [(url, what) for url, page in pages if (what := what_instead(page)) is not None] == []
