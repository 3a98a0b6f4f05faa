"""Public extractors over pages, each in the environment that has it: a peer of `benchmarks/extraction.py`.

    python benchmarks/peers/extractors.py NAME < pages.jsonl > result.json

A line of input is `{"url", "html"}`; the output is `{"texts": {url: text}, "cpu_seconds"}`. A page that an extractor
fails on has an empty text. Without NAME, the names of those that can be imported are printed, one a line.
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


def rs_trafilatura(**options: bool) -> Extract:
    from rs_trafilatura import extract

    return lambda html, url: extract(html, url=url, **options).main_content


def resiliparse() -> Extract:
    from resiliparse.extract.html2text import extract_plain_text

    return lambda html, url: extract_plain_text(html, main_content=True, alt_texts=False)


def readability() -> Extract:
    from lxml import html as lxml_html
    from readability import Document

    def extract(html: str, url: str) -> str:
        fragment = lxml_html.fromstring(Document(html).summary())
        return "\n".join(line for line in (" ".join(text.split()) for text in fragment.itertext()) if line)

    return extract


def goose3() -> Extract:
    from goose3 import Goose

    goose = Goose({"enable_image_fetching": False})
    return lambda html, url: goose.extract(raw_html=html).cleaned_text


def newspaper4k() -> Extract:
    from newspaper import Article, Config

    config = Config()
    config.fetch_images = False

    def extract(html: str, url: str) -> str:
        article = Article(url if "://" in url else f"http://{url}", config=config, input_html=html)
        article.download(input_html=html)
        article.parse()
        return str(article.text)

    return extract


def boilerpy3() -> Extract:
    from boilerpy3.extractors import ArticleExtractor

    extractor = ArticleExtractor(raise_on_failure=False)
    return lambda html, url: extractor.get_content(html)


def justext() -> Extract:
    from justext import get_stoplist, justext

    stop_words = get_stoplist("English")
    return lambda html, url: "\n".join(p.text for p in justext(html, stop_words) if not p.is_boilerplate)


PEERS: dict[str, tuple[str, Callable[[], Extract]]] = {
    "trafilatura": ("trafilatura", trafilatura),
    "trafilatura, fast": ("trafilatura", lambda: trafilatura(fast=True)),
    "trafilatura, precision": ("trafilatura", lambda: trafilatura(favor_precision=True)),
    "trafilatura, recall": ("trafilatura", lambda: trafilatura(favor_recall=True)),
    "rs-trafilatura": ("rs_trafilatura", rs_trafilatura),
    "rs-trafilatura, precision": ("rs_trafilatura", lambda: rs_trafilatura(favor_precision=True)),
    "resiliparse": ("resiliparse", resiliparse),
    "readability-lxml": ("readability", readability),
    "goose3": ("goose3", goose3),
    "newspaper4k": ("newspaper", newspaper4k),
    "boilerpy3": ("boilerpy3", boilerpy3),
    "jusText": ("justext", justext),
}


def main() -> None:
    if len(sys.argv) < 2:
        print("\n".join(name for name, (module, _) in PEERS.items() if importlib.util.find_spec(module)))
        return
    logging.disable(logging.CRITICAL)
    pages = [json.loads(line) for line in sys.stdin]
    extract = PEERS[sys.argv[1]][1]()
    extract("<html><body><p>It loads what it needs.</p></body></html>", "http://warm.up/")
    texts: dict[str, str] = {}
    started = time.process_time()
    for page in pages:
        try:
            texts[page["url"]] = extract(page["html"], page["url"]) or ""
        except Exception:
            texts[page["url"]] = ""
    json.dump({"texts": texts, "cpu_seconds": time.process_time() - started}, sys.stdout)


if __name__ == "__main__":
    main()
