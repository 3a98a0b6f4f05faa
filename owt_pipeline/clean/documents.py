"""The work of one worker process: documents in, clean documents and rejects out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from owt_pipeline.clean.language import detect
from owt_pipeline.clean.length import within
from owt_pipeline.clean.repair import fix_text
from owt_pipeline.clean.whitespace import tidy
from owt_pipeline.runtime.batches import Outcome, rejects_batch, replace_columns
from schemas import DATASETS, Reason


@dataclass(frozen=True)
class Rules:
    """What a document must be to stay; picklable.

    Attributes:
      fix_text: repair mojibake and the like.
      normalization: `NFC`, `NFKC` or `none`.
      languages: ISO 639-1 codes of the languages that stay; empty for all.
      min_tokens, max_tokens: in tokens of GPT-2; 0 for no limit.
    """

    fix_text: bool = True
    normalization: str = "NFC"
    languages: frozenset[str] = frozenset({"en"})
    min_tokens: int = 128
    max_tokens: int = 0


@dataclass(frozen=True)
class Clean:
    """A document that stays."""

    text: str
    language: str
    language_score: float
    n_words: int


@dataclass(frozen=True)
class Rejected:
    """A document that does not."""

    reason: Reason
    detail: str


def clean_batch(batch: pa.RecordBatch, rules: Rules) -> Outcome:
    """Rows of `clean/` from rows of `documents/`."""
    texts = batch["text"].to_pylist()
    results = [clean_document(text, rules) for text in texts]
    kept = [(index, result) for index, result in enumerate(results) if isinstance(result, Clean)]
    rejected = [(index, result) for index, result in enumerate(results) if isinstance(result, Rejected)]
    ids, urls = batch["url_id"].to_pylist(), batch["url"].to_pylist()
    repaired = sum(result.text != texts[index] for index, result in kept)
    return Outcome(
        replace_columns(
            batch.take(pa.array([index for index, _ in kept], pa.int64())),
            DATASETS["clean"].schema,
            **{
                name: [getattr(result, name) for _, result in kept]
                for name in ("text", "language", "language_score", "n_words")
            },
        ),
        rejects_batch((ids[index], urls[index], result.reason, result.detail) for index, result in rejected),
        Counter({"changed_texts": repaired}),
    )


def clean_document(text: str, rules: Rules) -> Clean | Rejected:
    """The document repaired, or why it does not stay. It depends on `text` and `rules` alone."""
    if rules.fix_text:
        text = fix_text(text, rules.normalization)
    text = tidy(text)
    n_words = len(text.split())
    enough, not_too_many, tokens = within(text, n_words, rules.min_tokens, rules.max_tokens)
    if not enough:
        return Rejected(Reason.TOO_SHORT, f"{tokens:,} tokens, fewer than {rules.min_tokens:,}")
    if not not_too_many:
        return Rejected(Reason.TOO_LONG, f"{tokens:,} tokens, more than {rules.max_tokens:,}")
    language, score = detect(text)
    if rules.languages and language not in rules.languages:
        return Rejected(Reason.WRONG_LANGUAGE, f"{language} ({score:.2f})")
    return Clean(text, language, score, n_words)
