"""The work of one worker process: documents in, clean documents and rejects out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from owt_pipeline.clean import signals
from owt_pipeline.clean.contamination import EvaluationSets, n_grams_of, shared_n_gram
from owt_pipeline.clean.filters import FILTERS
from owt_pipeline.clean.language import detect
from owt_pipeline.clean.length import within
from owt_pipeline.clean.mask import mask
from owt_pipeline.clean.repair import fix_text
from owt_pipeline.clean.text_view import TextView
from owt_pipeline.clean.whitespace import tidy
from owt_pipeline.engine.batches import Outcome, rejects_batch, replace_columns
from schemas import DATASETS, Reason


@dataclass(frozen=True)
class Rules:
    """What is done to a document, and what it must be to stay; picklable.

    Attributes:
      fix_text: repair mojibake and the like.
      normalization: `NFC`, `NFKC` or `none`.
      leave_unfixed: other rules of ftfy's that are left out.
      uncurl_quotes: make curly quotes straight, which ftfy does unless asked not to.
      mask_addresses: replace e-mail and IP addresses.
      min_tokens, max_tokens: in tokens of GPT-2; 0 for no limit.
      languages: codes of the languages that stay; empty for all.
      min_language_score: the least confidence in the detected language.
      filters: names of `FILTERS`.
      measured_share: share of documents that the filters which are not on measure, too.
      evaluation_sets: documents that share an n-gram with one go; None for none.
      unaltered: leave every byte of the text as it is.
    """

    fix_text: bool = True
    normalization: str = "NFC"
    leave_unfixed: frozenset[str] = frozenset()
    uncurl_quotes: bool = False
    mask_addresses: bool = False
    min_tokens: int = 128
    max_tokens: int = 0
    languages: frozenset[str] = frozenset({"en"})
    min_language_score: float = 0.0
    filters: tuple[str, ...] = ()
    measured_share: float = 0.2
    evaluation_sets: EvaluationSets | None = None
    unaltered: bool = False


@dataclass
class Document:
    """A document, and what became of it.

    Attributes:
      text: repaired.
      n_words: split at white space.
      language, language_score: as detected; empty and 0 where it did not come to that.
      masked: addresses replaced.
      signals: what was measured of it.
      reason, detail: why it does not stay; None where it does.
    """

    text: str
    n_words: int
    masked: int = 0
    language: str = ""
    language_score: float = 0.0
    signals: dict[str, float] = field(default_factory=dict)
    reason: Reason | None = None
    detail: str = ""


def clean_batch(batch: pa.RecordBatch, rules: Rules) -> Outcome:
    """Rows of `clean/` from rows of `documents/`."""
    texts = batch["text"].to_pylist()
    documents = [clean_document(text, rules) for text in texts]
    kept = [index for index, document in enumerate(documents) if document.reason is None]
    columns = {
        name: [getattr(documents[index], name) for index in kept]
        for name in ("text", "language", "language_score", "n_words")
    }
    ids, urls = batch["url_id"].to_pylist(), batch["url"].to_pylist()
    stats = signals.count((document.reason is None, document.signals) for document in documents)
    stats += _lost_tokens(documents)
    stats["changed_texts"] = sum(documents[index].text != texts[index] for index in kept)
    if rules.mask_addresses:
        stats["masked_addresses"] = sum(documents[index].masked for index in kept)
    return Outcome(
        replace_columns(batch.take(pa.array(kept, pa.int64())), DATASETS["clean"].schema, **columns),
        rejects_batch(
            (url_id, url, document.reason, document.detail)
            for url_id, url, document in zip(ids, urls, documents, strict=True)
            if document.reason is not None
        ),
        stats,
    )


def clean_document(text: str, rules: Rules) -> Document:
    """The document repaired, and judged. It depends on `text` and `rules` alone."""
    if rules.fix_text and not rules.unaltered:
        without = rules.leave_unfixed if rules.uncurl_quotes else rules.leave_unfixed | {"uncurl_quotes"}
        text = fix_text(text, rules.normalization, without)
    text, masked = mask(text) if rules.mask_addresses else (text, 0)
    document = Document(text if rules.unaltered else tidy(text), 0, masked)
    for judge in (_by_length, _by_language, _by_filters, _by_evaluation_sets):
        judge(document, rules)
        if document.reason is not None:
            break
    return document


def _by_length(document: Document, rules: Rules) -> None:
    document.n_words = len(document.text.split())
    document.signals["words"] = document.n_words
    if not document.text:
        document.reason, document.detail = Reason.TOO_SHORT, "no text"
        return
    enough, not_too_many, tokens = within(document.text, document.n_words, rules.min_tokens, rules.max_tokens)
    if not enough:
        document.reason, document.detail = Reason.TOO_SHORT, f"{tokens:,} tokens, fewer than {rules.min_tokens:,}"
    elif not not_too_many:
        document.reason, document.detail = Reason.TOO_LONG, f"{tokens:,} tokens, more than {rules.max_tokens:,}"


def _by_language(document: Document, rules: Rules) -> None:
    language, score = detect(document.text)
    document.language, document.language_score = language, score
    document.signals["language_score"] = score
    if (rules.languages and language not in rules.languages) or score < rules.min_language_score:
        document.reason, document.detail = Reason.WRONG_LANGUAGE, f"{language}, confidence {score:.2f}"


def _by_filters(document: Document, rules: Rules) -> None:
    view = TextView(document.text)
    sampled = xxhash.xxh3_64_intdigest(view.text.encode("utf-8", "replace")) < rules.measured_share * 2**64
    for name, rule in FILTERS.items():
        on = name in rules.filters and document.reason is None
        if name not in rules.filters and not sampled:
            continue
        judgement = rule.judge(view)
        document.signals.update((f"{name}.{signal}", value) for signal, value in judgement.signals.items())
        if on and judgement.broken is not None:
            document.reason, document.detail = rule.reason, judgement.broken
        if on and judgement.kept not in (None, view.text):
            view = TextView(judgement.kept)
    if document.reason is None and view.text != document.text:
        document.text = view.text
        _by_length(document, rules)


def _by_evaluation_sets(document: Document, rules: Rules) -> None:
    if rules.evaluation_sets is not None:
        shared = shared_n_gram(document.text, n_grams_of(rules.evaluation_sets), rules.evaluation_sets.n)
        if shared is not None:
            document.reason, document.detail = Reason.CONTAMINATED, shared


def _lost_tokens(documents: Sequence[Document]) -> Counter[str]:
    """GPT-2's tokens in the rejected documents, by reason."""
    lost = [document for document in documents if document.reason is not None]
    if not lost:
        return Counter()
    from owt_pipeline.tokenize import encoding

    counts: Counter[str] = Counter()
    for document, tokens in zip(lost, encoding.load("gpt2").count([document.text for document in lost]), strict=True):
        counts[f"lost_tokens.{document.reason}"] += int(tokens)
    return counts
