"""Extractors, each in a process of its own and in the environment that has it, for
`benchmarks/extraction.py`.

    python benchmarks/peers/extractors.py NAME < pages.jsonl > texts.jsonl

A line of input is `{"url", "html"}`; it is answered by a line `{"text", "cpu_seconds"}` before the
next one is read. A page that an extractor fails on has an empty text. Without NAME, the names of
those that can be imported are printed, one per line.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable

Extract = Callable[[str, str], "str | None"]  # html and url to text


def trafilatura(**options: bool) -> Extract:
    from trafilatura import extract

    return lambda html, url: extract(html, url=url, include_comments=False, **options)


def rs_trafilatura() -> Extract:
    from rs_trafilatura import extract

    return lambda html, url: extract(html, url=url).main_content


def resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text

    return lambda html, url: extract_plain_text(html, main_content=True, alt_texts=False)


def readability() -> Extract:
    from lxml import html as lxml_html
    from readability import Document

    def extract(html: str, url: str) -> str:
        fragment = lxml_html.fromstring(Document(html).summary())
        return "\n".join(
            line for line in (" ".join(text.split()) for text in fragment.itertext()) if line
        )

    return extract


def justext() -> Extract:
    from justext import get_stoplist, justext

    stop_words = get_stoplist("English")
    return lambda html, url: "\n".join(
        p.text for p in justext(html, stop_words) if not p.is_boilerplate
    )


def ours() -> Extract:
    from owt_pipeline.stages.extract.extractor import Page, Settings, load

    extract_page = load(Settings())

    def extract(html: str, url: str) -> str:
        found = extract_page(Page(url, html, fetched_at=1_767_225_600))  # with its metadata
        return found.text if found is not None else ""

    return extract


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
    if len(sys.argv) < 2:
        print(
            "\n".join(
                name for name, (module, _) in EXTRACTORS.items() if importlib.util.find_spec(module)
            )
        )
        return
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # some extractors print
    extract = EXTRACTORS[sys.argv[1]][1]()
    extract("<html><body><p>It loads what it needs.</p></body></html>", "http://warm.up/")
    for line in sys.stdin:
        page = json.loads(line)
        started = time.process_time()
        try:
            text = extract(page["html"], page["url"]) or ""
        except Exception:
            text = ""
        print(
            json.dumps({"text": text, "cpu_seconds": time.process_time() - started}),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
