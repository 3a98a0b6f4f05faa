"""No page harms a run.

Pages are hostile or mutated real pages. Extractors hang, crash or use up memory.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.stages.extract.extractor import Extracted, Page, Settings
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.stage import STAGE
from owt_pipeline.storage.folder import Storage

HTML = "text/html; charset=utf-8"
PROSE = (
    "This sentence is prose, and long enough to be taken for a part of an article about something. "
    * 6
)
ARTICLE = f"<html><body><article><h1>Fine</h1><p>{PROSE}</p></article></body></html>".encode()


def hostile_pages() -> dict[str, bytes]:
    """Return pages by their kind that try to crash, slow down or confuse a parser."""
    deep = 100_000
    wide = 1_000_000
    return {
        "empty": b"",
        "blank": b" \n\t " * 1000,
        "one tag": b"<",
        "only nul": b"\x00" * 10_000,
        "nul bytes within": ARTICLE.replace(b". ", b". \x00"),
        "nested divs": b"<div>" * deep + PROSE.encode() + b"</div>" * deep,
        "nested inline tags": b"<b><i>" * (deep // 2) + PROSE.encode(),
        "nested tables": b"<table><tr><td>" * (deep // 3) + PROSE.encode(),
        "nested tables without rows": b"<table>" * deep + PROSE.encode(),
        "nested superscripts": b"<sup>one " * deep + PROSE.encode(),
        "nested lists": b"<ul><li>" * (deep // 2) + PROSE.encode(),
        "a cell of nested tags": b"<table><tr><td>"
        + b"<span>" * deep
        + b"<script>1</script>"
        + PROSE.encode(),
        "one line": b"<p>" + b"word " * (20 << 18) + b"</p>",
        "one word": b"<p>" + b"w" * (20 << 20) + b"</p>",
        "a million attributes": b"<p "
        + b" ".join(b"a%d=1" % i for i in range(wide))
        + b">"
        + PROSE.encode(),
        "a class of a megabyte": b"<div class='"
        + b"nav-bar " * (1 << 17)
        + b"'><p>"
        + PROSE.encode(),
        "a million elements": b"<br>" * wide + PROSE.encode(),
        "a million links": b"<a href=/>x</a>" * (wide // 4),
        "broken utf-8": ARTICLE.replace(b"e", b"\xe9\xff\xfe"),
        "half a character": ARTICLE[:-20] + "é".encode()[:1],
        "utf-16 without a mark": ARTICLE.decode().encode("utf-16-le"),
        "utf-7": b"<meta charset=utf-7>" + ARTICLE,
        "every byte": bytes(range(256)) * 4000,
        "random bytes": random.Random(0).randbytes(1 << 20),
        "a pdf": b"%PDF-1.7\n" + random.Random(1).randbytes(100_000),
        "a png": b"\x89PNG\r\n\x1a\n" + random.Random(2).randbytes(100_000),
        "gzip": gzip.compress(ARTICLE * 100),
        "json": b'{"a": [' + b"[" * deep + b"]" * deep + b"]}",
        "linked data as deep": b"<script "
        b"type=application/ld+json>" + b"[" * deep + b"</script>" + ARTICLE,
        "linked data with half a character": b'<script type="application/ld+json">{"@type": '
        b'"Article", "author": '
        b'"A. \\ud800", "headline": "\\udfff Fine"}</script>' + ARTICLE,
        "linked data of strange types": b"<script "
        b'type="application/ld+json">{"@graph":[1,null,{"author":[[[]],{"name":'
        b'{}}],"articleBody":7,"headline":[],"@type":["a"],"datePublished":{}}]}</script>'
        + ARTICLE,
        "unclosed script": b"<html><body><p>"
        + PROSE.encode()
        + b"<script>"
        + b"var a = '<p>';" * 100_000,
        "unclosed comment": b"<html><body><p>" + PROSE.encode() + b"<!--" + b"-" * 100_000,
        "a formula of a megabyte": b"<p>" + PROSE.encode() + b"<math><mtext>" + b"word " * 200_000,
        "drawings without a formula": b"<p>"
        + PROSE.encode()
        + b"<b class=MathJax>word</b>" * 50_000,
        "unclosed formula": b"<div><p>Let <math><mi>x</mi> "
        b"be.</p>" + b"<p>" + PROSE.encode() + b"</p></div>",
        "many scripts": b"<script type=application/ld+json>" * 20_000,
        "entities": b"<p>" + b"&amp;&#0;&#xFFFFFFFF;&#xD800;&nope;" * 50_000,
        "doctypes": b"<!DOCTYPE html [<!ENTITY a "
        b"'" + b"&a;" * 1000 + b"'>]>" * 100 + b"<p>&a;" + PROSE.encode(),
        "frames": b"<frameset><frame "
        b"src=/><noframes><p>" + PROSE.encode() + b"</noframes></frameset>",
        "xml": b'<?xml version="1.0" '
        b'encoding="nonsense"?><rss><channel><item><title>x</title></item></channel></rss>',
        "surrogates": b"<p>" + b"\xed\xa0\x80\xed\xb0\x80" * 1000 + PROSE.encode(),
        "right to left": "<p>\u202e\u2066\u200f".encode() * 10_000 + PROSE.encode(),
        "combining": b"<p>a" + "\u0301".encode() * 500_000 + PROSE.encode(),
        "windows newlines": ARTICLE.replace(b"<", b"\r\n<") * 1000,
    }


READABLE = (
    "one line", "a million elements", "nul bytes within", "half a character", "a class of a "
    "megabyte",
    "unclosed comment", "linked data as deep", "entities", "combining", "windows newlines",
    "a formula of a megabyte", "drawings without a formula", "unclosed formula", "linked data with "
    "half a character",
)  # fmt: skip


def extract(
    workdir: Path, pages: dict[str, bytes], workers: int = 2, **options: object
) -> dict[str, tuple[str, str]]:
    """Run the stage; return each page's ("text", text) or (reason, detail) by its URL."""
    run_stage(STAGE, Options(**options), Runtime(Storage(str(workdir)), workers))  # type: ignore[arg-type]
    reader = DatasetReader.open(Storage(str(workdir)), "documents")
    documents = reader.table().to_pylist()
    rejects = reader.table(kind="rejects").to_pylist()
    results = {row["url"]: ("text", row["text"]) for row in documents}
    results |= {row["url"]: (row["reason"], row["detail"]) for row in rejects}
    assert len(documents) + len(rejects) == len(results) == len(pages)
    return results


@pytest.mark.parametrize(
    ("extractor", "max_bytes"),
    [
        ("blocks", 1 << 20),
        pytest.param("blocks", 1 << 30, marks=pytest.mark.slow),
        # It would use up its CPU time on larger ones. Another test shows that at less cost.
        pytest.param("trafilatura", 2 << 20, marks=pytest.mark.slow),
    ],
)
def test_hostile_pages_become_rows_and_spare_their_neighbours(
    tmp_path: Path, pages_writer: Callable[..., None], extractor: str, max_bytes: int
) -> None:
    hostile = hostile_pages()
    assert len(hostile) >= 20
    pages: dict[str, bytes] = {}
    for index, (name, body) in enumerate(hostile.items()):
        if len(body) > max_bytes:
            continue
        pages[f"http://hostile/{name}"] = body
        pages[f"http://fine/{index}"] = ARTICLE
    pages_writer(tmp_path, {url: (body, HTML) for url, body in pages.items()}, 1)
    # The largest readable page takes a fifth of it.
    seconds = 3.0 if extractor == "trafilatura" else 12.0
    results = extract(tmp_path, pages, extractor=extractor, page_cpu_seconds=seconds)
    for url, (kind, text) in results.items():
        if url.startswith("http://fine/"):
            assert kind == "text", (url, kind, text)
            assert PROSE.strip() in text
    if extractor == "blocks":
        crashed = {url for url, (kind, _) in results.items() if kind.startswith("extract_")}
        # libxml2 compares each attribute with all others.
        assert crashed <= {"http://hostile/a million attributes"}
        readable = [name for name in READABLE if f"http://hostile/{name}" in results]
        assert len(readable) > 3
        for name in readable:
            assert results[f"http://hostile/{name}"][0] == "text", name
    for name in ("empty", "a pdf", "a png", "gzip", "only nul"):
        assert results[f"http://hostile/{name}"][0] == "no_text", name


def spin() -> None:
    """Loop without an end."""
    while True:
        pass


def hungry() -> None:
    """Use up the memory."""
    blocks = []
    while True:
        blocks.append(bytearray(1 << 24))


def backtrack() -> None:
    """Use up CPU time within one call of C code, which no handler of Python could interrupt."""
    re.match(r"(a*)*b", "a" * 64)


def deaf() -> None:
    """Use up CPU time with all signals blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    backtrack()


# By name: a function of an extractor, the reason of the reject, and a part of its detail.
DEEDS = {
    "spin": (spin, "extract_timeout", "more than 0.4 s of CPU time"),
    "hungry": (hungry, "extract_memory", "more than 256 MiB of memory"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "extract_crash", "SIGKILL"),
    "segfault": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "extract_crash", "SIGSEGV"),
    "exit": (lambda: os._exit(3), "extract_crash", "code 3"),
    "raise": (lambda: 1 / 0, "extract_crash", "ZeroDivisionError: division by zero"),
    "backtrack": (backtrack, "extract_timeout", "more than 0.4 s of CPU time"),
    "nothing": (None, "no_text", "without a main text"),
    "deaf": (deaf, "extract_timeout", "its process did not answer within 10 s"),
}


def misbehaving(settings: Settings) -> Callable[[Page], Extracted | None]:
    """Return a custom extractor, as `extractor` documents it, that does what the page demands."""

    def extract(page: Page) -> Extracted | None:
        if page.html not in DEEDS:
            return Extracted(f"{settings.favor} {page.url}", "A title")
        deed, _, _ = DEEDS[page.html]
        return deed and deed()

    return extract


@pytest.mark.slow
@pytest.mark.parametrize("evades", [False, True], ids=["within its limits", "evading them"])
def test_misbehaving_extractor_loses_only_that_page(
    evades: bool, tmp_path: Path, pages_writer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "misbehaving_extractor"
    (tmp_path / f"{name}.py").write_text(Path(__file__).read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    # The others have the usual time, since a busy machine may take more than ten seconds.
    if evades:
        monkeypatch.setattr("owt_pipeline.stages.extract.pages._MIN_SECONDS", 10.0)
    pages = {}
    deeds = ["deaf"] if evades else [deed for deed in DEEDS if deed != "deaf"]
    for deed in deeds:
        for body in ("fine", deed, "well"):
            pages[f"http://h/{deed}/{body}"] = (body.encode(), HTML)
    pages_writer(tmp_path, pages, 1)
    options = {
        "extractor": f"{name}:misbehaving",
        "page_cpu_seconds": 0.4,
        "page_memory_mb": 256,
        "favor": "recall",
    }
    # A single worker is a process of its own, too.
    results = extract(tmp_path, pages, 1, **options)
    for url, (kind, detail) in results.items():
        _, reason, part = DEEDS.get(url.rpartition("/")[2], (None, "text", f"recall {url}"))
        assert kind == reason, url
        assert part in detail
    manifest = require_manifest(Storage(str(tmp_path)), "documents")
    (source,) = [source for source in manifest.sources if source["name"] == f"{name}:misbehaving"]
    assert len(source["sha256"]) == 64


def mutate(body: bytes, rng: random.Random) -> bytes:
    """Return a page that is damaged as pages on the web are.

    It is cut, doubled or shuffled, or has flipped bytes or broken tags.
    """
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(body) + 1)
        end = min(len(body), start + rng.randint(1, 20_000))
        piece = body[start:end]
        damaged = (
            b"", piece * rng.randint(2, 20), rng.randbytes(len(piece)), piece.replace(b">", b"", 5),
            piece.replace(b"</", b"<"), piece.replace(b'"', b"'").upper(), piece[::-1],
        )  # fmt: skip
        body = body[:start] + rng.choice(damaged) + body[end:]
    return body


@pytest.mark.slow
def test_mutated_real_pages_neither_crash_nor_hang_nor_get_lost(
    tmp_path: Path, pages_writer: Callable[..., None], real_pages: dict[str, tuple[bytes, str]]
) -> None:
    rng = random.Random(20)
    bodies = list(real_pages.values())
    pages = {f"http://mutant/{index}": mutate(rng.choice(bodies)[0], rng) for index in range(150)}
    pages_writer(tmp_path, {url: (body, HTML) for url, body in pages.items()}, 2)
    results = extract(tmp_path, pages, page_cpu_seconds=10.0)
    assert {reason for reason, _ in results.values()} <= {"text", "no_text"}
    assert sum(reason == "text" for reason, _ in results.values()) > 120
