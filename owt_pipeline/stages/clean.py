"""`clean`: each document repaired, and judged by itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

from owt_pipeline.runtime.stage import Stage, StageRun
from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    fix_text: bool = option(True, "repair mojibake, entities, odd widths and quotes with ftfy")
    normalization: str = option("NFC", "Unicode normalization; ConnorJL's is NFKC", choices=("NFC", "NFKC", "none"))
    languages: tuple[str, ...] = option(
        ("en",), "languages to keep, as ISO 639-1 codes; `all` keeps all", metavar="CODE"
    )
    min_tokens: int = option(128, "documents with fewer tokens of GPT-2 are rejected", minimum=0)
    max_tokens: int = option(0, "documents with more tokens of GPT-2 are rejected; 0 for no limit", minimum=0)


def run(run: StageRun) -> None:
    from owt_pipeline.clean.documents import Rules, clean_batch

    options: Options = run.options
    rules = Rules(
        fix_text=options.fix_text,
        normalization=options.normalization,
        languages=frozenset() if "all" in options.languages else frozenset(options.languages),
        min_tokens=options.min_tokens,
        max_tokens=options.max_tokens,
    )
    run.map_batches(partial(clean_batch, rules=rules), rows=64)


STAGE = Stage(
    name="clean",
    output="clean",
    inputs=("documents",),
    options=Options,
    version=1,
    run=run,
    libraries=("ftfy", "py3langid", "tiktoken"),
    help="Repair each document's text, and reject those in other languages, too short or too long.",
    example="owt clean --workdir run --languages en --min_tokens 128",
)

if __name__ == "__main__":
    from owt_pipeline.stages.command import main

    sys.exit(main(STAGE))
