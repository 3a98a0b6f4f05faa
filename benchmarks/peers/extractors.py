"""Runs one extractor for `benchmarks/extraction.py`, in the environment that has it.

    python benchmarks/peers/extractors.py NAME < pages.jsonl > texts.jsonl

A line of input is `{"url", "html"}`. Its result is a line `{"text", "cpu_seconds"}`, written before
the next line is read. A page that an extractor fails on has an empty text. Without NAME, the names
of the extractors that can be imported are printed, one per line.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable

Extract = Callable[[str, str], "str | None"]
"""A function from a page's HTML and its URL to its text."""
# The time of the fetch of all pages: no date can be later.
FETCHED_AT = 1_767_225_600


def trafilatura(**options: bool) -> Extract:
    """Return trafilatura's function (Barbaresi, ACL 2021) with these options."""
    from trafilatura import extract

    return lambda html, url: extract(html, url=url, include_comments=False, **options)


def rs_trafilatura() -> Extract:
    """Return the function of trafilatura's port to Rust."""
    from rs_trafilatura import extract

    return lambda html, url: extract(html, url=url).main_content


def resiliparse() -> Extract:
    """Return the function of Resiliparse for the main content."""
    from resiliparse.extract.html2text import extract_plain_text

    return lambda html, url: extract_plain_text(html, main_content=True, alt_texts=False)


def readability() -> Extract:
    """Return the function of readability-lxml, with the texts of its HTML as lines."""
    from lxml import html as lxml_html
    from readability import Document

    def extract(html: str, url: str) -> str:
        fragment = lxml_html.fromstring(Document(html).summary())
        lines = [" ".join(text.split()) for text in fragment.itertext()]
        return "\n".join(filter(None, lines))

    return extract


def justext() -> Extract:
    """Return jusText's function with the stop words of English."""
    from justext import get_stoplist, justext

    stop_words = get_stoplist("English")

    def extract(html: str, url: str) -> str:
        paragraphs = justext(html, stop_words)
        return "\n".join([p.text for p in paragraphs if not p.is_boilerplate])

    return extract


def ours() -> Extract:
    """Return our function, which reads the metadata, too."""
    from owt_pipeline.stages.extract.extractor import Page, Settings, load

    extract_page = load(Settings())

    def extract(html: str, url: str) -> str:
        extracted = extract_page(Page(url, html, FETCHED_AT))
        return "" if extracted is None else extracted.text

    return extract


# The module that an extractor needs, and the function that makes it.
EXTRACTORS: dict[str, tuple[str, Callable[[], Extract]]] = {
    "ours": ("owt_pipeline", ours),
    "trafilatura": ("trafilatura", trafilatura),
    "trafilatura, precision": ("trafilatura", lambda: trafilatura(favor_precision=True)),
    "rs-trafilatura": ("rs_trafilatura", rs_trafilatura),
    "resiliparse": ("resiliparse", resiliparse),
    "readability-lxml": ("readability", readability),
    "jusText": ("justext", justext),
}


def main() -> None:
    """Print the names of the extractors, or run the one that the command line names."""
    if len(sys.argv) < 2:
        for name, (module, _) in EXTRACTORS.items():
            if importlib.util.find_spec(module):
                print(name)
        return
    logging.disable(logging.CRITICAL)
    # Some extractors print.
    results = sys.stdout
    sys.stdout = sys.stderr
    _, make_extract = EXTRACTORS[sys.argv[1]]
    extract = make_extract()
    # The first page makes it load its models, which is not measured.
    extract("<html><body><p>The first page is not counted.</p></body></html>", "http://warm.up/")
    for line in sys.stdin:
        page = json.loads(line)
        started = time.process_time()
        try:
            text = extract(page["html"], page["url"]) or ""
        except Exception:
            text = ""
        result = {"text": text, "cpu_seconds": time.process_time() - started}
        print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
    main()
