"""`owt train-tokenizer`: a byte-level BPE learned from the corpus, for `owt tokenize --tokenizer`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from owt_pipeline.engine.command_line import CommandParser
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.errors import UsageError
from owt_pipeline.engine.storage import Storage
from owt_pipeline.stage_command import reporting_errors
from schemas import SettingsError, option
from schemas.settings import add_flags, flags_given, from_table


@dataclass(frozen=True)
class TrainTokenizerOptions:
    workdir: str = option(help="the folder of the run, whose corpus/ is read", metavar="DIR")
    out: str | None = option(
        None, "the file to write (default: tokenizer.json of the working directory)", metavar="FILE"
    )
    vocab_size: int = option(50_257, "entries: the bytes, the merges and end-of-text", minimum=257)
    sample: float = option(
        1.0, "share of the documents to learn from, chosen by a hash of their ids", minimum=0, maximum=1
    )


def main(argv: Sequence[str] | None = None) -> int:
    return reporting_errors(lambda: _run(argv))


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="owt train-tokenizer",
        description="Learn a byte-level BPE from the corpus, as GPT-2's was from WebText. The same corpus and flags\n"
        "give the same file, on any machine.",
        epilog="example:\n  owt train-tokenizer --workdir run --vocab_size 32000\n"
        "  owt tokenize --workdir run --tokenizer run/tokenizer.json",
    )
    add_flags(parser, TrainTokenizerOptions)
    return parser


def _run(argv: Sequence[str] | None) -> int:
    given = flags_given(TrainTokenizerOptions, build_parser().parse_args(argv))
    try:
        options = from_table(TrainTokenizerOptions, given, "flags")
    except SettingsError as error:
        raise UsageError(str(error)) from error
    from owt_pipeline.tokenize.training import train_tokenizer

    workdir = Storage(options.workdir)
    corpus = DatasetReader.open(workdir, "corpus")
    out = options.out or workdir.path("tokenizer.json")
    folder, _, name = out.rpartition("/")
    Storage(folder or ("/" if out.startswith("/") else ".")).write(
        name, train_tokenizer(_texts(corpus, options.sample), options.vocab_size)
    )
    print(f"{out}: use it with `owt tokenize --tokenizer`")
    return 0


def _texts(corpus: DatasetReader, sample: float) -> Iterator[str]:
    import pyarrow as pa

    from owt_pipeline.tokenize.split import is_validation

    for batch in corpus.batches(columns=["url_id", "text"]):
        if sample < 1:
            batch = batch.filter(pa.array(is_validation(batch["url_id"].to_numpy(), sample)))
        yield from batch["text"].to_pylist()
