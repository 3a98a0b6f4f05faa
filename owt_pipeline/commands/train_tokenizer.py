"""`owt train-tokenizer`: learn a byte-level BPE from the corpus, for `owt run --tokenizer`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.errors import UsageError, command
from owt_pipeline.formats.gpt2_tokenizer import END_OF_TEXT
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage, folder_of
from schemas import SettingsError, option
from schemas.datasets import is_validation
from schemas.quantities import pluralize
from schemas.settings import add_flags, flags_given, from_table


@dataclass(frozen=True)
class TrainTokenizerOptions:
    """Options of the command."""

    out: str | None = option(
        None,
        "file to write (default: tokenizer.json of the run's folder)",
        metavar="FILE",
        is_path=True,
    )
    vocab_size: int = option(
        50_257, "entries of the vocabulary: 256 bytes, the merges and end-of-text", minimum=257
    )
    sample: float = option(
        1.0,
        "share of the documents to learn from, chosen by a hash of their ids",
        minimum=0,
        maximum=1,
    )


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
    add_flags(parser, TrainTokenizerOptions)


def _train(arguments: argparse.Namespace) -> int:
    """Write the tokenizer, and print how to use it."""
    flags = flags_given(TrainTokenizerOptions, arguments)
    try:
        options = from_table(TrainTokenizerOptions, {}, "", flags)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    workdir = Storage(arguments.run)
    corpus = DatasetReader.open(workdir, "corpus")
    out = options.out or workdir.path("tokenizer.json")
    folder, name = folder_of(out)
    folder.write(name, train_tokenizer(_texts(corpus, options.sample), options.vocab_size))
    print(f"wrote {out}: use it with {command('owt', 'run', workdir, '--tokenizer', out)}")
    return 0


def _texts(corpus: DatasetReader, sample: float) -> Iterator[str]:
    """Yield the texts of a share of the corpus, chosen by a hash of their ids."""
    for batch in corpus.batches(columns=["url_id", "text"]):
        if sample < 1:
            # Validation takes documents from the beginning of the hash's range, so the sample comes
            # from its end.
            is_left_out = is_validation(batch["url_id"].to_numpy(), 1 - sample)
            batch = batch.filter(pa.array(~is_left_out))
        yield from batch["text"].to_pylist()


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
