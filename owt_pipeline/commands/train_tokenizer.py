"""`owt train-tokenizer`: learn a byte-level BPE from the corpus, for `owt run --tokenizer`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable

from owt_pipeline.command_line import Command, CommandParser, at_least
from owt_pipeline.errors import command
from owt_pipeline.formats.gpt2_tokenizer import END_OF_TEXT
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas.quantities import pluralize


def _flags(parser: CommandParser) -> None:
    """Learn a byte-level BPE from the corpus, as GPT-2's was learned from WebText. The same corpus
    and flags give the same file on any machine.

    example:
      owt train-tokenizer run --vocab_size 32000
      owt run run --until tokenize --tokenizer run/tokenizer.json
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--vocab_size",
        type=at_least(257),
        default=50_257,
        metavar="N",
        help="entries of the vocabulary: 256 bytes, the merges and end-of-text (default: 50257)",
    )


def _train(arguments: argparse.Namespace) -> int:
    """Write the tokenizer into the run's folder, and print how to use it."""
    workdir = Storage(arguments.run)
    corpus = DatasetReader.open(workdir, "corpus")
    texts = (text for batch in corpus.batches(columns=["text"]) for text in batch[0].to_pylist())
    workdir.write("tokenizer.json", train_tokenizer(texts, arguments.vocab_size))
    path = workdir.path("tokenizer.json")
    print(f"wrote {path}: use it with {command('owt', 'run', workdir, '--tokenizer', path)}")
    return 0


logger = logging.getLogger("owt")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> bytes:
    """Return a `tokenizer.json` of at most `vocab_size` entries.

    These are the 256 bytes, merges, and last of all end-of-text. It is learned as GPT-2's was
    ("Language Models are Unsupervised Multitask Learners", Radford et al., 2019): text is cut by
    GPT-2's pattern, and merged by frequency (Sennrich, Haddow and Birch, 2016) in the package
    tokenizers. Equal texts give equal bytes, in any order and with any number of threads: words are
    counted, and pairs of equal count are merged in the order of their ids. Its memory grows with
    the number of different words.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    # One entry is left for end-of-text, which is added after the training to be the last.
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if tokenizer.get_vocab_size() < vocab_size:
        logger.warning(
            "the tokenizer has %s instead of %s: the corpus has too few different words for more",
            pluralize(tokenizer.get_vocab_size(), "entry"),
            f"{vocab_size:,}",
        )
    return tokenizer.to_str().encode()


main = Command("owt train-tokenizer", _flags, _train)
