"""The work of a worker process: documents to clean documents, rejects and histograms."""

from __future__ import annotations

import bisect
import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from owt_pipeline.ledger.dataset import Outcome, rejects_batch, replace_columns
from owt_pipeline.stages.clean.contamination import EvaluationSets, n_grams_of, shared_n_gram
from owt_pipeline.stages.clean.filters import FILTERS, Limit
from owt_pipeline.stages.clean.judgement import TextView
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
      signals: the measured signals, by name.
      reason, detail: why it is rejected; None if it is kept.
    """

    text: str
    n_words: int
    masked: int = 0
    language: str = ""
    language_score: float = 0.0
    signals: dict[str, float] = field(default_factory=dict)
    reason: Reason | None = None
    detail: str = ""


def clean_batch(batch: pa.RecordBatch, options: Options, sets: EvaluationSets | None = None) -> Outcome:
    """Rows of `clean/` from rows of `documents/`; `sets` as in `clean_document`."""
    texts = batch["text"].to_pylist()
    documents = [clean_document(text, options, sets) for text in texts]
    kept = [index for index, document in enumerate(documents) if document.reason is None]
    rows = batch.take(pa.array(kept, pa.int64()))
    columns: dict[str, list[Any]] = {
        name: [getattr(documents[index], name) for index in kept]
        for name in ("text", "language", "language_score", "n_words")
    }
    for name in ("title", "author", "site_name"):
        columns[name] = [value and (_repaired(value, options)[0] or None) for value in rows[name].to_pylist()]
    ids, urls = batch["url_id"].to_pylist(), batch["url"].to_pylist()
    stats = count_signals((document.reason is None, document.signals) for document in documents)
    stats += _lost_tokens(documents)
    stats["changed_texts"] = sum(documents[index].text != texts[index] for index in kept)
    if options.mask_addresses:
        stats["masked_addresses"] = sum(documents[index].masked for index in kept)
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
    """The repaired and filtered document, rejected if it shares an n-gram with `sets`; a pure function."""
    text, masked = _repaired(text, options)
    document = Document(text, 0, masked)
    for judge in (_by_length, _by_language, _by_filters):
        judge(document, options)
        if document.reason is not None:
            return document
    shared = shared_n_gram(document.text, n_grams_of(sets), sets.n) if sets is not None else None
    if shared is not None:
        document.reason, document.detail = Reason.CONTAMINATED, shared
    return document


def _repaired(text: str, options: Options) -> tuple[str, int]:
    """The repaired text, and the number of addresses in it that were masked."""
    if options.fix_text and not options.unaltered:
        without = [*options.leave_unfixed, *(["uncurl_quotes"] if not options.uncurl_quotes else [])]
        text = fix_text(text, options.normalization, without)
    if not options.unaltered:
        text = tidy(text)  # first, as an invisible character may be within an address
    return mask(text) if options.mask_addresses else (text, 0)


def _by_length(document: Document, options: Options) -> None:
    document.n_words = len(document.text.split())
    document.signals["words"] = document.n_words
    problem = length_problem(document.text, document.n_words, options.min_tokens, options.max_tokens)
    if problem is not None:
        document.reason, document.detail = problem


def _by_language(document: Document, options: Options) -> None:
    language, score = detect(document.text)
    document.language, document.language_score = language, score
    document.signals["language_score"] = score
    wanted = () if ALL in options.languages else options.languages
    if (wanted and language not in wanted) or score < options.min_language_score:
        document.reason, document.detail = Reason.WRONG_LANGUAGE, f"{language}, confidence {score:.2f}"


def _by_filters(document: Document, options: Options) -> None:
    view = TextView(document.text)
    sampled = xxhash.xxh3_64_intdigest(view.text.encode("utf-8", "replace")) < options.measured_share * 2**64
    for name, rule in FILTERS.items():
        on = name in options.filters and document.reason is None
        if name not in options.filters and not sampled:
            continue
        judgement = rule.judge(view)
        document.signals.update((f"{name}.{signal}", value) for signal, value in judgement.signals.items())
        if on and judgement.broken is not None:
            document.reason, document.detail = rule.reason, judgement.broken
        if on and judgement.kept not in (None, view.text):
            view = TextView(judgement.kept)
    if document.reason is None and view.text != document.text:
        document.text = view.text
        _by_length(document, options)


def _lost_tokens(documents: Sequence[Document]) -> Counter[str]:
    """GPT-2 tokens in the rejected documents, by reason."""
    lost = [document for document in documents if document.reason is not None]
    if not lost:
        return Counter()
    from owt_pipeline.formats import encoding

    counts: Counter[str] = Counter()
    for document, tokens in zip(lost, encoding.load("gpt2").count([document.text for document in lost]), strict=True):
        counts[f"lost_tokens.{document.reason}"] += int(tokens)
    return counts


def length_problem(text: str, n_words: int, minimum: int, maximum: int) -> tuple[Reason, str] | None:
    """(reject reason, detail) if a text is empty, too short or too long; else None.

    A word is at least one token and a token at least one byte, so only texts near a limit are encoded.

    Args:
      text: the text.
      n_words: its words, split at white space.
      minimum, maximum: limits in GPT-2 tokens, as the stage `tokenize` writes them; a maximum of 0 is none.
    """
    if not text:
        return Reason.TOO_SHORT, "no text"
    if n_words >= minimum and (not maximum or len(text.encode("utf-8", "replace")) <= maximum):
        return None
    from owt_pipeline.formats import encoding

    tokens = int(encoding.load("gpt2").count([text])[0])
    if tokens < minimum:
        return Reason.TOO_SHORT, f"{tokens:,} tokens, fewer than {minimum:,}"
    return (Reason.TOO_LONG, f"{tokens:,} tokens, more than {maximum:,}") if maximum and tokens > maximum else None


_SLICE = 1000  # characters from the beginning, the middle and the end; more does not improve detection


def detect(text: str) -> tuple[str, float]:
    """(language, confidence from 0 to 1) of `text`; the code is ISO 639-1, or 639-3 for languages without one.

    Uses py3langid (Lui and Baldwin, ACL 2012; Barbaresi). Of the detectors that come with a model, it passes the least
    text in other languages, drops no English page, and is light: `benchmarks/clean.py` prints the table.

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
    return _Identifier.from_model_file(MODEL_FILE, norm_probs=True)


class _Identifier(LanguageIdentifier):
    """py3langid's identifier with the same scores, faster: the automaton reads a text at 64 places at once."""

    _LANES = 64
    _DEPTH = 7  # bytes of the longest feature: after as many, a lane's state no longer depends on its start

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._next = np.frombuffer(self.tk_nextmove, self.tk_nextmove.typecode)
        self._rows, self._features = np.array(self._rowbase), np.array(self.tk_output)

    def _raw_score(self, text: bytes) -> np.ndarray:
        steps = max(1, -(-len(text) // self._LANES))
        nothing = b"\xff"  # in no feature: resets the automaton to its first state
        padded = np.frombuffer(nothing * self._DEPTH + text.ljust(steps * self._LANES, nothing), np.uint8)
        states = np.zeros((self._DEPTH + steps, self._LANES), np.intp)
        state = states[0]
        for step in range(self._DEPTH + steps):
            state = self._next[self._rows[state] + padded[step : step + steps * self._LANES : steps]]
            states[step] = state
        found = self._features[states[self._DEPTH :].T.ravel()]  # in text order
        visits = Counter(found[found >= 0].tolist())
        return self._sparse_score(visits, self.nb_ptc) if visits else super()._raw_score(text)


_SHARES = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.12, 0.15, 0.18),
    *(0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.67, 0.7, 0.8, 0.9, 0.95, 0.99),
)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
_LENGTHS = (2, 2.5, 3, 3.5, 4, 4.25, 4.5, 4.75, 5, 5.25, 5.5, 6, 7, 8, 10, 12)

LIMITS: dict[str, Limit] = {
    "words": Limit(),
    "language_score": Limit(),
    **{f"{name}.{signal}": limit for name, rule in FILTERS.items() for signal, limit in rule.limits.items()},
}
"""The limits of every signal, for its document to pass."""

_BINS: dict[str, tuple[float, ...]] = {
    "words": _COUNTS,
    "gopher_quality.words": _COUNTS,
    "gopher_quality.mean_word_length": _LENGTHS,
    "gopher_quality.stop_words": (1, 2, 3, 4, 5, 6, 7, 8),
    "c4.curly_brackets": _COUNTS,
    "c4.lorem_ipsum": _COUNTS,
    "c4.sentences": (1, 2, 3, *_COUNTS[2:]),
}


def _edges(name: str, limit: Limit) -> tuple[float, ...]:
    """Bin edges, among them each limit: a bin begins with the minimum, and one ends with the maximum."""
    edges = {*_BINS.get(name, _SHARES), limit.minimum} - {limit.maximum}
    if limit.maximum > 0:  # counts that may only be 0 have an edge at 1
        edges.add(math.nextafter(limit.maximum, math.inf))
    return tuple(sorted(filter(math.isfinite, edges)))


EDGES: dict[str, tuple[float, ...]] = {name: _edges(name, limit) for name, limit in LIMITS.items()}
"""The bin edges of every signal."""


def count_signals(signals: Iterable[tuple[bool, Mapping[str, float]]]) -> Counter[str]:
    """Histogram counts for the manifest, from (whether it is kept, its signals by name) of each document.

    A signal's histogram is in the manifest of `clean/` as `stats["signals.NAME.kept.BIN"]` and
    `stats["signals.NAME.dropped.BIN"]`, for kept documents and for documents rejected for any reason; empty bins have
    no key. Bin 0 is `value < edges[0]`, bin k is `edges[k - 1] <= value < edges[k]`, the last is `value >= edges[-1]`.

    NAME is `FILTER.SIGNAL`, or `words` (split at white space) or `language_score` of the document itself.
    `properties["signals"][NAME]` has the signal's `edges`, its limits `minimum` and `maximum` (null: none), its
    `filter` (null: none), whether that is `on`, and the `measured_share` of documents: 1 if the filter is on, else that
    of a sample, so that you see a filter's effect before turning it on. Documents that are too short, too long or in
    another language are not measured further.
    """
    counts: Counter[str] = Counter()
    for kept, values in signals:
        outcome = "kept" if kept else "dropped"
        for name, value in values.items():
            counts[f"signals.{name}.{outcome}.{bisect.bisect_right(EDGES[name], value)}"] += 1
    return counts


def describe_signals(filters: Collection[str], measured_share: float) -> dict[str, dict[str, Any]]:
    """The manifest's properties of each signal when `filters` are on."""
    found: dict[str, dict[str, Any]] = {}
    for name, limit in LIMITS.items():
        of = name.partition(".")[0] if "." in name else None
        found[name] = {
            "filter": of,
            "on": of in filters,
            "measured_share": measured_share if of and of not in filters else 1.0,
            "minimum": limit.minimum if math.isfinite(limit.minimum) else None,
            "maximum": limit.maximum if math.isfinite(limit.maximum) else None,
            "edges": list(EDGES[name]),
        }
    return found
