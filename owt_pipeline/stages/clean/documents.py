"""The work of a worker process: documents to clean documents with their signals, and rejects."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from owt_pipeline.ledger.dataset import Outcome, rejects_batch, replace_columns
from owt_pipeline.stages.clean.contamination import EvaluationSets, n_grams_of, shared_n_gram
from owt_pipeline.stages.clean.filters import FILTERS, Signals, c4_lines, first_violation
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.own_signals import measure_own, parse_signals
from owt_pipeline.stages.clean.repair import repair
from schemas import DATASETS, Reason
from schemas.filters import BUILT_IN


@dataclass
class Cleaned:
    """A text, and what the stage `clean` found and decided.

    Attributes:
      text: the repaired text.
      n_words: split at white space.
      masked: number of addresses replaced (`mask_addresses`).
      language: the detected one, as an ISO 639-1 code if it has one; "" if the text was rejected
        before detection.
      language_score: confidence in the language, from 0 to 1.
      signals: what each filter measures, `signals[FILTER][SIGNAL]`; empty if the text was rejected
        before.
      own_signals: what your own functions measure (`signals=["module:function"]`), by name; empty
        if the text was rejected before.
      reason: why the stage would reject it (`too_short`, `wrong_language`, ...); None if it would
        keep it.
      detail: the limit that it breaks, in words.
    """

    text: str
    n_words: int = 0
    masked: int = 0
    language: str = ""
    language_score: float = 0.0
    signals: dict[str, Signals] = field(default_factory=dict)
    own_signals: dict[str, float] = field(default_factory=dict)
    reason: Reason | None = None
    detail: str = ""


def clean_batch(batch: pa.RecordBatch, options: Options, sets: EvaluationSets = ()) -> Outcome:
    """Rows of `clean/` from rows of `documents/`; `sets` as in `clean_document`."""
    documents = [
        Cleaned(text, reason=Reason.RESERVED, detail=said)
        if said and options.reserved == "reject"
        else clean_document(text, options, sets)
        for text, said in zip(batch["text"].to_pylist(), batch["reserved"].to_pylist(), strict=True)
    ]
    rows = batch.filter(pa.array([document.reason is None for document in documents], pa.bool_()))
    kept = [document for document in documents if document.reason is None]
    columns: dict[str, list[Any]] = {
        name: [getattr(document, name) for document in kept]
        for name in ("text", "language", "language_score", "n_words", "signals")
    }
    columns["own_signals"] = [
        [{"name": name, "value": value} for name, value in document.own_signals.items()] or None
        for document in kept
    ]
    columns["n_chars"] = list(map(len, columns["text"]))
    columns["n_bytes"] = [len(text.encode("utf-8", "replace")) for text in columns["text"]]
    for name in ("title", "author", "site_name"):
        columns[name] = [
            value and (repair(value, options)[0] or None) for value in rows[name].to_pylist()
        ]
    stats = {"changed_texts": sum(map(operator.ne, columns["text"], rows["text"].to_pylist()))}
    if options.mask_addresses:
        stats["masked_addresses"] = sum(document.masked for document in kept)
    rejects = (
        (url_id, url, document.reason, document.detail)
        for url_id, url, document in zip(
            batch["url_id"].to_pylist(), batch["url"].to_pylist(), documents, strict=True
        )
        if document.reason is not None
    )
    return Outcome(
        replace_columns(rows, DATASETS["clean"].schema, **columns), rejects_batch(rejects), stats
    )


def clean_document(text: str, options: Options, sets: EvaluationSets = ()) -> Cleaned:
    """The repaired and judged document, rejected if it shares an n-gram with `sets`; as pure as
    the user's signals."""
    text, masked = repair(text, options)
    document = Cleaned(text, len(text.split()), masked)
    document.reason, document.detail = _judge(document, options, sets) or (None, "")
    return document


def _judge(document: Cleaned, options: Options, sets: EvaluationSets) -> tuple[Reason, str] | None:
    """Why the document is rejected, if it is; sets what is measured, and the text that c4
    leaves."""
    if problem := too_short(document.text, document.n_words, options.min_tokens):
        return Reason.TOO_SHORT, problem
    language, score = detect(document.text)
    document.language, document.language_score = language, score
    is_wanted = not options.languages or not {"all", language}.isdisjoint(options.languages)
    if not is_wanted or score < options.min_language_score:
        return Reason.WRONG_LANGUAGE, f"{language}, confidence {score:.2f}"
    text = document.text
    for name, thresholds in BUILT_IN.items():
        if not thresholds.measured_by:
            document.signals[name] = FILTERS[name](text)
        if name not in options.filters:
            continue
        signals = document.signals[thresholds.measured_by or name]
        if violation := first_violation(signals, getattr(options, name)):
            return Reason.of(name), violation
        if name == "c4":
            _, text = c4_lines(text)
    if text != document.text:
        document.text, document.n_words = text, len(text.split())
        if problem := too_short(text, document.n_words, options.min_tokens):
            return Reason.TOO_SHORT, problem
    if shared := shared_n_gram(document.text, n_grams_of(sets, options)):
        return Reason.CONTAMINATED, shared
    document.own_signals, rejection = measure_own(
        document.text, parse_signals(options.signals)
    )  # last: may be slow
    return rejection


def too_short(text: str, n_words: int, minimum: int) -> str | None:
    """What was found, if `text` has no character or fewer GPT-2 tokens than `minimum`; else None.

    A word is at least one token, so only texts of few words (`n_words`, split at white space) are
    encoded.
    """
    if not text:
        return "no text"
    if n_words >= minimum:
        return None
    from owt_pipeline.formats import encoding

    tokens = int(encoding.load("gpt2").count([text])[0])
    return f"{tokens:,} tokens, fewer than {minimum:,}" if tokens < minimum else None


_SLICE = (
    500  # characters from the beginning, the middle and the end; more does not improve detection
)


def detect(text: str) -> tuple[str, float]:
    """(language, confidence from 0 to 1) of `text`; the code is ISO 639-1, or 639-3 for
    languages without one.

    Uses py3langid (Lui and Baldwin, ACL 2012; Barbaresi): docs/benchmarks/tried.md has the others.
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
