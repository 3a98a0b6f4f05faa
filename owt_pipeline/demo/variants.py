"""What becomes of an article that is copied: edited by hand, mixed with another, or broken on the way."""

from __future__ import annotations

import random
from dataclasses import replace

from owt_pipeline.demo.prose import Article

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
    return replace(
        article,
        title=_misread(article.title),
        paragraphs=tuple(_misread(paragraph) for paragraph in article.paragraphs),
    )


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
