"""The work of a worker process: documents become clean documents with signals, or rejects."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from owt_pipeline.formats.characters import apply_to_known, hide_unassigned
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
    """A text, with the measures and the decision of the stage `clean`.

    Attributes:
      text: the repaired text.
      n_words: split at white space.
      masked: number of addresses replaced (`mask_addresses`).
      language: the detected one, as an ISO 639-1 code if it has one; "" if the text was rejected
        before detection.
      language_score: confidence in the language, from 0 to 1.
      signals: the measures of each filter, `signals[FILTER][SIGNAL]`; empty if the text was
        rejected before.
      own_signals: the results of your own functions (`signals=["module:function"]`), by name;
        empty if the text was rejected before.
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
    """Return rows of `clean/` and rejects from rows of `documents/`.

    `sets` as in `clean_document`.
    """
    documents = _clean_rows(batch, options, sets)
    is_kept = [document.reason is None for document in documents]
    rows = batch.filter(pa.array(is_kept, pa.bool_()))
    kept = [document for document in documents if document.reason is None]
    texts = [document.text for document in kept]
    columns: dict[str, list[Any]] = {
        "text": texts,
        "language": [document.language for document in kept],
        "language_score": [document.language_score for document in kept],
        "n_words": [document.n_words for document in kept],
        "n_chars": list(map(len, texts)),
        "n_bytes": [len(text.encode("utf-8", "replace")) for text in texts],
        "signals": [document.signals for document in kept],
        "own_signals": [_as_list(document.own_signals) for document in kept],
    }
    for name in ("title", "author", "site_name"):
        columns[name] = [_repair_name(value, options) for value in rows[name].to_pylist()]
    num_changed = sum(map(operator.ne, texts, rows["text"].to_pylist()))
    stats = {"changed_texts": num_changed}
    if options.mask_addresses:
        stats["masked_addresses"] = sum(document.masked for document in kept)
    rejects = []
    for url_id, url, document in zip(
        batch["url_id"].to_pylist(), batch["url"].to_pylist(), documents, strict=True
    ):
        if document.reason is not None:
            rejects.append((url_id, url, document.reason, document.detail))
    clean_rows = replace_columns(rows, DATASETS["clean"].schema, **columns)
    return Outcome(clean_rows, rejects_batch(rejects), stats)


def _clean_rows(batch: pa.RecordBatch, options: Options, sets: EvaluationSets) -> list[Cleaned]:
    documents = []
    for text, reserved in zip(
        batch["text"].to_pylist(), batch["reserved"].to_pylist(), strict=True
    ):
        if reserved and options.reserved == "reject":
            documents.append(Cleaned(text, reason=Reason.RESERVED, detail=reserved))
        else:
            documents.append(clean_document(text, options, sets))
    return documents


def _as_list(own_signals: Mapping[str, float]) -> list[dict[str, Any]] | None:
    """Return signals by name as rows of the column `own_signals`; None without any."""
    return [{"name": name, "value": value} for name, value in own_signals.items()] or None


def _repair_name(value: str | None, options: Options) -> str | None:
    """Return a title or a name repaired as texts are; None if nothing is left of it."""
    if not value:
        return value
    repaired, _ = repair(value, options)
    return repaired or None


def clean_document(text: str, options: Options, sets: EvaluationSets = ()) -> Cleaned:
    """Return the repaired and judged document.

    It is rejected if it shares an n-gram with the evaluation sets. The same text leads to the same
    result, unless the user's signals are not pure.
    """
    repaired, masked = repair(text, options)
    document = Cleaned(repaired, len(repaired.split()), masked)
    rejection = _judge(document, options, sets)
    if rejection is not None:
        document.reason, document.detail = rejection
    return document


def _judge(document: Cleaned, options: Options, sets: EvaluationSets) -> tuple[Reason, str] | None:
    """Return the reason and the detail if the document is rejected; None if it is kept.

    Sets the document's measures, and its text if c4 changes it.
    """
    problem = too_short(document.text, document.n_words, options.min_tokens)
    if problem:
        return Reason.TOO_SHORT, problem
    language, score = detect(document.text)
    document.language = language
    document.language_score = score
    is_wanted = not options.languages or not {"all", language}.isdisjoint(options.languages)
    if not is_wanted or score < options.min_language_score:
        return Reason.WRONG_LANGUAGE, f"{language}, confidence {score:.2f}"
    # Filters ask Python for letters and digits, and each Python knows others.
    text = document.text
    known = hide_unassigned(text)
    for name, thresholds in BUILT_IN.items():
        # Every document is measured by every filter, so that thresholds can be chosen afterwards.
        if not thresholds.measured_by:
            document.signals[name] = FILTERS[name](known)
        if name not in options.filters:
            continue
        signals = document.signals[thresholds.measured_by or name]
        violation = first_violation(signals, getattr(options, name))
        if violation:
            return Reason.of(name), violation
        if name == "c4":
            text = apply_to_known(_lines_of_c4, text)
            known = hide_unassigned(text)
    if text != document.text:
        document.text = text
        document.n_words = len(text.split())
        problem = too_short(text, document.n_words, options.min_tokens)
        if problem:
            return Reason.TOO_SHORT, problem
    shared = shared_n_gram(document.text, n_grams_of(sets, options))
    if shared:
        return Reason.CONTAMINATED, shared
    # The user's signals are last, since they may be slow.
    document.own_signals, rejection = measure_own(document.text, parse_signals(options.signals))
    return rejection


def _lines_of_c4(text: str) -> str:
    _, kept_text = c4_lines(text)
    return kept_text


def too_short(text: str, n_words: int, min_tokens: int) -> str | None:
    """Return the problem of a text that is empty or has fewer than `min_tokens` tokens of GPT-2.

    Returns None for a longer text. `n_words` is the number of words between white space. A word has
    at least one token, so only texts with fewer than `min_tokens` words are encoded.
    """
    if not text:
        return "no text"
    if n_words >= min_tokens:
        return None
    from owt_pipeline.formats import encoding

    num_tokens = int(encoding.load("gpt2").count([text])[0])
    if num_tokens >= min_tokens:
        return None
    return f"{num_tokens:,} tokens, fewer than {min_tokens:,}"


# Characters from the beginning, the middle and the end. More do not improve detection.
_SLICE = 500


def detect(text: str) -> tuple[str, float]:
    """Return the language of `text`, and the confidence from 0 to 1.

    The language is an ISO 639-1 code, or 639-3 for languages without one. py3langid detects it (Lui
    and Baldwin, ACL 2012; Barbaresi). docs/benchmarks/tried.md compares another detector.
    Confidence is rounded to three decimals, since further ones may differ between processors.
    """
    if len(text) > 3 * _SLICE:
        middle = len(text) // 2
        text = f"{text[:_SLICE]}\n{text[middle : middle + _SLICE]}\n{text[-_SLICE:]}"
    language, score = _identifier().classify(text)
    return str(language), round(float(score), 3)


def known_languages() -> list[str]:
    """Return the codes that `detect` may return, sorted."""
    return sorted(_identifier().labels)


@functools.cache  # a process loads the model on first use
def _identifier() -> Any:
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
