"""clean: repair and filter each document."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, Summary, rows_of_input
from owt_pipeline.errors import UsageError
from owt_pipeline.formats.own_code import describe_own
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.clean.contamination import (
    EvaluationSets,
    N,
    evaluation_sets,
    n_grams_of,
    sizes_of,
)
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.own_signals import parse_signals, try_signals
from schemas.filters import BUILT_IN
from schemas.settings import did_you_mean

logger = logging.getLogger("owt")


# The names of frequent languages, which people give in place of their codes.
_CODE_BY_LANGUAGE = {
    "arabic": "ar",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "french": "fr",
    "german": "de",
    "hindi": "hi",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "polish": "pl",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
    "turkish": "tr",
}


def _unknown_language_message(word: str, codes: Sequence[str]) -> str:
    """Return the error about a word that is not the code of a language."""
    message = f"languages: {word!r} is not a known language"
    code = _CODE_BY_LANGUAGE.get(word.lower())
    if code:
        return f"{message}; did you mean {code!r}?"
    if "," in word:
        return f"{message}; separate codes by spaces, as in `--languages en de`"
    return message + did_you_mean(word, codes)


def checked_sets(options: Options) -> EvaluationSets:
    """Return the evaluation sets of the options.

    Raises UsageError for invalid options, UserError for a file that cannot be read.
    """
    requested = set(options.languages) - {"all", "en"}
    if requested:
        from owt_pipeline.stages.clean.documents import known_languages

        unknown = sorted(requested - set(known_languages()))
        if unknown:
            raise UsageError(_unknown_language_message(unknown[0], known_languages()))
    if options.uncurl_quotes and not options.fix_text:
        raise UsageError(
            "uncurl_quotes changes text, but no_fix_text keeps it as it is; turn one of them off"
        )
    try_signals(parse_signals(options.signals))
    sets = evaluation_sets(options.decontaminate)
    # A file that cannot be read is reported here, and not in a worker.
    n_grams_of(sets, options)
    return sets


def clean_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard of `clean/` from the same shard of `documents/`."""
    from owt_pipeline.stages.clean.documents import clean_batch

    sets = tuple((uri, digest) for uri, digest in run.properties["evaluation_sets"])
    clean = partial(clean_batch, options=run.options, sets=sets)
    run.map_batches(shard, writer, clean, rows=64)


class Clean(Stage):
    """Repair each document's text, title, author and site name. Reject documents that are too
    short, in another language, or fail a filter. The column `signals` has what the filters
    measure, so that you can choose thresholds afterwards.
    """

    name = "clean"
    inputs = ("documents",)
    output = "clean"
    options = Options
    version = 18
    libraries = ("ftfy", "py3langid", "tiktoken")
    steps = (Step(clean_shard, rows=rows_of_input),)
    example = "owt run run --until clean --languages en --min_tokens 128"

    def key_options(self, options: Options) -> dict[str, Any]:
        """Return the options that shape the bytes, by name.

        A filter that limits the signals of another filter (`measured_by`) writes no signals. While
        it is off, its thresholds do not shape any bytes, so they are left out. A new filter of this
        kind then does not change the keys of finished shards.
        """
        shaping = super().key_options(options)
        for name, thresholds in BUILT_IN.items():
            if thresholds.measured_by and name not in options.filters:
                del shaping[name]
        return shaping

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return what identifies the evaluation sets and the user's signals.

        The name of a set counts, since its extension decides how a file is read. Checks the options
        too, so that a mistake is found before the stages that come first.
        """
        described: list[dict[str, Any]] = []
        for uri, digest in checked_sets(options):
            name = uri.rpartition("/")[2]
            described.append({"kind": "evaluation", "name": name, "sha256": digest})
        for signal in parse_signals(options.signals):
            described.append({"kind": "signal", **describe_own(signal.name, "signals")})
        return described

    def set_up(self, run: StageRun) -> Summary:
        """Return the evaluation sets, and report how many of their texts are too short.

        They are listed once here, and not by each worker.
        """
        options: Options = run.options
        sets = evaluation_sets(options.decontaminate)
        for size in sizes_of(sets, options):
            if size.num_short:
                logger.warning(
                    "clean: %s of the %s texts in %s have fewer than %s words, so documents that "
                    "contain them are not rejected",
                    f"{size.num_short:,}",
                    f"{size.num_texts:,}",
                    size.uri,
                    N,
                )
        return Summary(properties={"evaluation_sets": sets})

    def preload(self, options: Options) -> Sequence[str]:
        """Return the functions that load the language model and GPT-2's vocabulary."""
        return (
            "owt_pipeline.stages.clean.documents:known_languages",
            "owt_pipeline.formats.gpt2_tokenizer:tiktoken_encoding",
        )


STAGE = Clean()
