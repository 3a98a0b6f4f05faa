"""The work of a worker process: documents to clean documents with their signals, and rejects."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from owt_pipeline.ledger.dataset import Outcome, rejects_batch, replace_columns
from owt_pipeline.stages.clean.contamination import EvaluationSets, n_grams_of, shared_n_gram
from owt_pipeline.stages.clean.filters import FILTERS, Signals, TextView, c4_lines, first_broken
from owt_pipeline.stages.clean.own_signals import measure_own, parse_signals
from owt_pipeline.stages.clean.repair import fix_text, mask, tidy
from schemas import DATASETS, Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.clean.options import Options


ALL = "all"
"""Represents every language in `--languages`."""


@dataclass
class Document:
    """A cleaned document.

    Attributes:
      text: the repaired text.
      n_words: number of words, split at white space.
      language, language_score: the detected language; empty and 0 if the document was rejected before.
      masked: number of replaced addresses.
      signals: the signals of each filter, by the filter's name; those after the one that rejected it are missing.
      own_signals: the user's own, by name; empty if the document was rejected before.
      reason, detail: why it is rejected; None if it is kept.
    """

    text: str
    n_words: int
    masked: int = 0
    language: str = ""
    language_score: float = 0.0
    signals: dict[str, Signals] = field(default_factory=dict)
    own_signals: dict[str, float] = field(default_factory=dict)
    reason: Reason | None = None
    detail: str = ""


def clean_batch(batch: pa.RecordBatch, options: Options, sets: EvaluationSets | None = None) -> Outcome:
    """Rows of `clean/` from rows of `documents/`; `sets` as in `clean_document`."""
    texts = batch["text"].to_pylist()
    said = batch["reserved"].to_pylist() if options.reserved == "reject" else [None] * len(texts)
    documents = [
        Document(text, 0, reason=Reason.RESERVED, detail=why) if why else clean_document(text, options, sets)
        for text, why in zip(texts, said, strict=True)
    ]
    numbers = [index for index, document in enumerate(documents) if document.reason is None]
    kept = [documents[index] for index in numbers]
    rows = batch.take(pa.array(numbers, pa.int64()))
    columns: dict[str, list[Any]] = {
        name: [getattr(document, name) for document in kept]
        for name in ("text", "language", "language_score", "n_words", "signals")
    }
    columns["own_signals"] = [
        [{"name": name, "value": value} for name, value in document.own_signals.items()] or None for document in kept
    ]
    columns["n_chars"] = [len(document.text) for document in kept]
    columns["n_bytes"] = [len(document.text.encode("utf-8", "replace")) for document in kept]
    for name in ("title", "author", "site_name"):
        columns[name] = [value and (_repaired(value, options)[0] or None) for value in rows[name].to_pylist()]
    stats = {"changed_texts": sum(documents[index].text != texts[index] for index in numbers)}
    if options.mask_addresses:
        stats["masked_addresses"] = sum(document.masked for document in kept)
    ids, urls = batch["url_id"].to_pylist(), batch["url"].to_pylist()
    return Outcome(
        replace_columns(rows, DATASETS["clean"].schema, **columns),
        rejects_batch(
            (url_id, url, document.reason, document.detail)
            for url_id, url, document in zip(ids, urls, documents, strict=True)
            if document.reason is not None
        ),
        stats,
    )


def clean_document(text: str, options: Options, sets: EvaluationSets | None = None) -> Document:
    """The repaired and judged document, rejected if it shares an n-gram with `sets`; as pure as the user's signals."""
    text, masked = _repaired(text, options)
    document = Document(text, 0, masked)
    for judge in (_by_length, _by_language, _by_filters):
        judge(document, options)
        if document.reason is not None:
            return document
    shared = shared_n_gram(document.text, n_grams_of(sets)) if sets is not None else None
    if shared is not None:
        document.reason, document.detail = Reason.CONTAMINATED, shared
        return document
    if options.signals:  # last, since they may be slow
        own = measure_own(document.text, parse_signals(options.signals))
        document.own_signals, document.reason, document.detail = own
    return document


def _repaired(text: str, options: Options) -> tuple[str, int]:
    """The repaired text, and the number of addresses in it that were masked."""
    if options.fix_text:
        # White space first, as an invisible character may be within an address.
        text = tidy(fix_text(text, options.normalization, options.uncurl_quotes))
    return mask(text) if options.mask_addresses else (text, 0)


def _by_length(document: Document, options: Options) -> None:
    document.n_words = len(document.text.split())
    if (problem := too_short(document.text, document.n_words, options.min_tokens)) is not None:
        document.reason, document.detail = Reason.TOO_SHORT, problem


def _by_language(document: Document, options: Options) -> None:
    language, score = detect(document.text)
    document.language, document.language_score = language, score
    wanted = () if ALL in options.languages else options.languages
    if (wanted and language not in wanted) or score < options.min_language_score:
        document.reason, document.detail = Reason.WRONG_LANGUAGE, f"{language}, confidence {score:.2f}"


def _by_filters(document: Document, options: Options) -> None:
    view = TextView(document.text)
    for name, measure in FILTERS.items():
        document.signals[name] = measure(view)
        if name not in options.filters:
            continue
        if (broken := first_broken(document.signals[name], getattr(options, name))) is not None:
            document.reason, document.detail = Reason.of(name), broken
            return
        if name == "c4" and (kept := c4_lines(view)[1]) != view.text:
            view = TextView(kept)
    if view.text != document.text:
        document.text = view.text
        _by_length(document, options)


def too_short(text: str, n_words: int, minimum: int) -> str | None:
    """What was found, if `text` has no character or fewer GPT-2 tokens than `minimum`; else None.

    A word is at least one token, so only texts of few words (`n_words`, split at white space) are encoded.
    """
    if not text:
        return "no text"
    if n_words >= minimum:
        return None
    from owt_pipeline.formats import encoding

    tokens = int(encoding.load("gpt2").count([text])[0])
    return f"{tokens:,} tokens, fewer than {minimum:,}" if tokens < minimum else None


_SLICE = 1000  # characters from the beginning, the middle and the end; more does not improve detection


def detect(text: str) -> tuple[str, float]:
    """(language, confidence from 0 to 1) of `text`; the code is ISO 639-1, or 639-3 for languages without one.

    Uses py3langid (Lui and Baldwin, ACL 2012; Barbaresi). Of the detectors that come with a model, it passes the least
    text in other languages, drops no English page, and is light (docs/benchmarks/tried.md).

    Confidence is rounded to three decimals, since further ones may differ between processors.
    """
    if len(text) > 3 * _SLICE:
        middle = len(text) // 2
        text = f"{text[:_SLICE]}\n{text[middle : middle + _SLICE]}\n{text[-_SLICE:]}"
    language, score = _identifier().classify(text)
    return str(language), round(float(score), 3)


def known_languages() -> list[str]:
    """The codes that `detect` may return."""
    return sorted(_identifier().labels)


@functools.cache  # a process loads the model on first use
def _identifier() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
