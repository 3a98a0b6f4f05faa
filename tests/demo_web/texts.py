"""Prose that every Python ships, and what happens to an article that is copied: edited, mixed with another, garbled.

The prose is the language reference in `pydoc_data` and the docstrings of the library. It differs a little from one
version of Python to the next and never between two runs of one.
"""

from __future__ import annotations

import ast
import codecs
import importlib.util
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module, resources
from pathlib import Path

_MIN_PARAGRAPH_WORDS = 18
_MIN_WORDS, _WORDS = 260, 390
_UNDERLINE = re.compile(r"^(.+)\n[*=\-~^]{3,}$")
_SENTENCE = re.compile(r"[A-Z\"'*`(].*[.:;!?)\"']$", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]{2,}")


@dataclass(frozen=True)
class Article:
    """A title, a language (ISO 639-1) and paragraphs of plain text."""

    title: str
    paragraphs: tuple[str, ...]
    language: str = "en"

    @property
    def text(self) -> str:
        return "\n".join(self.paragraphs)

    @property
    def n_words(self) -> int:
        return len(self.text.split())


def articles() -> list[Article]:
    """English articles of 260 to 520 words, a few longer; no paragraph occurs twice among them."""
    seen: set[str] = set()
    made: list[Article] = []
    for title, paragraphs in _sources():
        fresh = []
        for paragraph in paragraphs:
            if paragraph.lower() not in seen:
                seen.add(paragraph.lower())
                fresh.append(paragraph)
        made.extend(_in_parts(title, fresh))
    return made


def originals(language: str) -> list[Article]:
    """The articles written for the demo in `language`: a `# title` line starts one, a blank line a paragraph."""
    text = (resources.files("tests.demo_web") / "texts" / f"{language}.txt").read_text(encoding="utf-8")
    made = []
    for block in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        title, _, body = block.partition("\n")
        paragraphs = tuple(" ".join(paragraph.split()) for paragraph in body.split("\n\n") if paragraph.strip())
        made.append(Article(title.strip(), paragraphs, language))
    return made


def zen() -> Article:
    """The Zen of Python, which `this` keeps in rot13."""
    source = Path(importlib.util.find_spec("this").origin).read_text(encoding="utf-8")  # type: ignore[union-attr,arg-type]
    encrypted = next(
        node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    )
    title, _, lines = codecs.decode(str(encrypted), "rot13").partition("\n")
    return Article(title, (" ".join(lines.split()),))


def _sources() -> Iterator[tuple[str, list[str]]]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield from _sections(topics[name])
    # Written in Python and rich in sentences; one that a Python lacks is left out.
    for name in (resources.files("tests.demo_web") / "modules.txt").read_text(encoding="utf-8").split():
        yield f"Notes on {name.lstrip('_')}", [p for doc in _docstrings(name) for p in _paragraphs(doc)]


def _sections(topic: str) -> Iterator[tuple[str, list[str]]]:
    title = ""
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n", topic.strip()):
        heading = _UNDERLINE.match(block)
        if heading:
            yield title, paragraphs
            title, paragraphs = heading[1].strip(), []
        else:
            paragraphs = [*paragraphs, *_paragraphs(block)]
    yield title, paragraphs


def _docstrings(module: str) -> Iterator[str]:
    """Docstrings of a module as its source has them: present under `-OO` too, and nothing is imported."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:  # a package whose C half this Python was built without
        return
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return
    for node in ast.walk(ast.parse(Path(spec.origin).read_bytes())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of `text` that read like prose; code, tables and lists of names are left out."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        if ">>>" in block or block.startswith((" " * 5, "\t")):
            continue
        paragraph = " ".join(block.split())
        paragraph = re.sub(r"^(\*|-|\d+\.) ", "", paragraph)
        words = paragraph.split()
        plain = sum(1 for word in words if _WORD.fullmatch(word.strip("\"'`*(),.:;!?")))
        if len(words) >= _MIN_PARAGRAPH_WORDS and plain >= 0.7 * len(words) and _SENTENCE.match(paragraph):
            found.append(paragraph)
    return found


def _in_parts(title: str, paragraphs: list[str]) -> Iterator[Article]:
    """One article or several parts; what is too short for one of its own is dropped."""
    part = Article(title, ())
    number = 1
    for paragraph in paragraphs:
        part = replace(part, paragraphs=(*part.paragraphs, paragraph))
        if part.n_words >= _WORDS:
            yield part
            number += 1
            part = Article(f"{title}, part {number}", ())
    if part.n_words >= _MIN_WORDS:
        yield part


_SUBSTITUTES = ("certain", "usual", "remaining", "following", "given", "ordinary", "particular", "present", "further")


def edited(article: Article, rng: random.Random, *, words_per_edit: int) -> Article:
    """A copy with about one word in `words_per_edit` replaced, the edits spread evenly over the text."""
    words = [paragraph.split() for paragraph in article.paragraphs]
    places = [(p, w) for p, paragraph in enumerate(words) for w in range(len(paragraph))]
    for at in range(rng.randrange(words_per_edit), len(places), words_per_edit):
        p, w = places[at]
        words[p][w] = rng.choice([word for word in _SUBSTITUTES if word != words[p][w]])
    return replace(article, paragraphs=tuple(" ".join(paragraph) for paragraph in words))


def mixed(article: Article, other: Article) -> Article:
    """The first third of `article`'s words, then the second half of `other`'s: related, yet a text of its own."""
    first = _part(article, 0, article.n_words // 3)
    return replace(article, paragraphs=(*first, *_part(other, other.n_words // 2, other.n_words)))


def typeset(article: Article) -> Article:
    """A copy with typographic apostrophes and dashes, and a sentence with accents."""
    # The closing double quote is left out: misread, it holds a control character that HTML parsers drop.
    table = str.maketrans({"'": "’", "“": '"', "”": '"'})
    paragraphs = [paragraph.translate(table).replace(" - ", " — ") for paragraph in article.paragraphs]
    aside = "It’s a question that a naïve reader — say, in a café in Besançon — wouldn’t think of asking twice."
    return replace(article, paragraphs=(*paragraphs, aside))


def mojibake(article: Article) -> Article:
    """A copy whose UTF-8 bytes were taken for Windows-1252, as careless exports of databases do."""
    return replace(article, title=_misread(article.title), paragraphs=tuple(map(_misread, article.paragraphs)))


def _part(article: Article, start: int, stop: int) -> list[str]:
    """The paragraphs of words `start` to `stop`; the outer ones may be cut."""
    part, at = [], 0
    for paragraph in article.paragraphs:
        words = paragraph.split()
        part.append(" ".join(words[max(0, start - at) : max(0, stop - at)]))
        at += len(words)
    return [paragraph for paragraph in part if paragraph]


def _misread(text: str) -> str:
    # Five bytes mean nothing in Windows-1252; programs let them through as control characters.
    return "".join(
        byte.decode("cp1252", "replace") if byte[0] not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else chr(byte[0])
        for byte in (bytes([b]) for b in text.encode("utf-8"))
    )
