"""Options of tokenize: the tokenizer, and the share of the documents for validation."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    tokenizer: str = option(
        "gpt2",
        "gpt2, the path of a tokenizer.json of Hugging Face's tokenizers, or a name on their Hub",
        is_path=True,
    )
    eot_token: str = option(
        "", "end-of-text token of the tokenizer (default: the first usual name that it has)"
    )
    val_fraction: float = option(
        0.01,
        "share of the documents for validation, chosen by a hash of their ids; with fewer than "
        "about 500 documents, give a larger share, or none may be chosen",
        minimum=0.0,
        maximum=1.0,
    )
