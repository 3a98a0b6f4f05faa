"""Titles, URLs, texts and subreddits are anybody's: nothing of them may act in the report's page."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lxml import html

from owt_pipeline.formats.warc import response_record
from tests.owt_pipeline.report.test_figures import rows_of
from tests.owt_pipeline.runs import ask_owt

SCRIPT = "</script><script>window.acted = 1</script>"
IMAGE = "<img src=x onerror='window.acted = 1'>"
LINK = '<a href="javascript:window.acted = 1">x</a>'
PATHS = (
    '/"><script>window.acted=1</script>',
    "/'onmouseover='window.acted=1",
    "/%3Cscript%3E",
    "/b?q=<img src=x>",
    "/c",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose every string tries to act."""
    folder = tmp_path_factory.mktemp("hostile")
    urls = [f"https://{host}.example{path}" for host in ("evil", "worse") for path in PATHS]
    submissions = [
        {"id": f"a{n}", "url": url, "title": SCRIPT, "subreddit": (LINK, IMAGE, "&lt;b&gt;")[n % 3], "score": 9,
         "created_utc": 1_400_000_000 + 10_000_000 * n, "over_18": False, "is_self": False}
        for n, url in enumerate([*urls, "javascript:window.acted=1", f"ftp://{SCRIPT}/"])
    ]  # fmt: skip
    (folder / "dump.ndjson").write_text("\n".join(map(json.dumps, submissions)) + f'\n"{SCRIPT}\n')
    sent = [("Content-Type", "text/html; charset=utf-8")]
    records = [response_record(url, 10**9, "HTTP/1.1 200 OK", sent, _html(n).encode()) for n, url in enumerate(urls)]
    (folder / "pages.warc.gz").write_bytes(b"".join(records))
    flags = ["--num_shards", 2, "--languages", "all", "--min_tokens", 400]
    given = ["--dumps", folder / "dump.ndjson", "--pages_from", folder / "pages.warc.gz"]
    ask_owt("run", folder / "run", *given, *flags)
    return folder / "run" / "report" / "index.html"


def _html(n: int) -> str:
    """A page whose text, too, is markup; each third one of so few words that it is dropped."""
    said = f"{SCRIPT} {IMAGE} {LINK} &amp; ".replace("<", "&lt;").replace(">", "&gt;")
    sentence = f"The committee of the village met on day {n // 2} to speak about the bridge, {said} and went home. "
    text = "".join(f"<p>{sentence.replace('met', f'met {k} times')}</p>" for k in range(2 if n % 3 == 2 else 30))
    title = "&lt;/title&gt;" + SCRIPT.replace("<", "&lt;")
    return f"<!doctype html><html><head><title>{title}</title></head><body><article>{text}</article></body></html>"


def test_names_are_shown_as_they_are_and_nothing_of_a_page_acts(page: Path) -> None:
    text = page.read_text()
    assert "window.acted" in text  # it is shown,
    stats = json.loads((page.parent / "stats.json").read_text())
    assert {row["subreddit"] for row in rows_of(stats, "subreddits")} <= {LINK, IMAGE, "&lt;b&gt;"}
    assert stats["removals"]
    assert stats["dropped"]
    tree = html.fromstring(text)  # and none of it is markup
    assert len(tree.xpath("//script")) == 3
    assert not tree.xpath("//img | //@*[starts-with(name(), 'on')] | //*[@id='subreddits']//a")
    assert {urlsplit(href).scheme for href in tree.xpath("//a/@href")} <= {"https", ""}  # "" are the page's own places
    assert LINK in tree.xpath("string(//*[@id='subreddits'])")
