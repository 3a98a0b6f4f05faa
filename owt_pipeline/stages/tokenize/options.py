"""Options of tokenize: the tokenizer, and the share of the documents for validation."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    tokenizer: str = option(
        "gpt2", "gpt2, a tokenizer.json of Hugging Face's tokenizers, or a name at their hub"
    )
    eot_token: str = option(
        "", "the tokenizer's end-of-text token; empty looks for one of the usual names"
    )
    val_fraction: float = option(
        0.01,
        "share of the documents for validation, chosen by a hash of their ids; raise it for "
        "corpora of under about "
        "500 documents, or none may be chosen",
        minimum=0.0,
        maximum=1.0,
    )
    max_changed_share: float = option(
        0.05,
        "stop if a larger share of the documents is not what its tokens decode to: the tokenizer "
        "cannot write all text",
        minimum=0.0,
        maximum=1.0,
        shapes_bytes=False,
    )
