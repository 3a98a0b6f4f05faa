"""A byte-level BPE of one's own, learned from text."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from owt_pipeline.tokenize.gpt2 import END_OF_TEXT

logger = logging.getLogger("owt")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> bytes:
    """A `tokenizer.json` of at most `vocab_size` entries: the 256 bytes, merges, and last of all end-of-text.

    As GPT-2's ("Language Models are Unsupervised Multitask Learners", Radford et al., 2019): text is cut by
    GPT-2's pattern, and merged by frequency (Sennrich, Haddow and Birch, 2016) in the package tokenizers.
    Equal texts give equal bytes, in any order and with any number of threads: words are counted, and pairs
    of equal count are merged in the order of their ids. Its memory grows with the number of different words.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if tokenizer.get_vocab_size() < vocab_size:
        logger.warning("the text has words for %d entries only, not %d", tokenizer.get_vocab_size(), vocab_size)
    return tokenizer.to_str().encode()
