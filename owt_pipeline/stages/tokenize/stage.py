"""tokenize: the corpus as token ids, in Arrow shards that training maps into memory."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from owt_pipeline.engine.stage import (
    Recorded,
    Stage,
    StageRun,
    Step,
    Summary,
    content_name,
    rows_of_input,
)
from owt_pipeline.formats.encoding import load, tokenizer_file
from owt_pipeline.stages.tokenize.options import Options
from owt_pipeline.stages.tokenize.tokens import schemas_of_splits, tokenize_shard
from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")

TOKENIZER_FILE = "tokenizer.json"


class Tokenize(Stage):
    """Encode the corpus as token ids. Writes uncompressed Arrow IPC files to tokens/train and
    tokens/val, one row per document, without end-of-text, which the reader adds. A hash of url_id
    decides the split.
    """

    name = "tokenize"
    inputs = ("corpus",)
    output = "tokens"
    options = Options
    version = 5
    libraries = ("tiktoken", "tokenizers")
    steps = (Step(tokenize_shard, rows=rows_of_input, outputs=schemas_of_splits),)
    example = "owt run runs/2013 --until tokenize --val_fraction 0.005"

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return what identifies the tokenizer's file; nothing for gpt2, which is built in.

        Checks the tokenizer too, so that an unfit one is found before the stages that come first.
        """
        encoding = load(options.tokenizer, options.eot_token)
        encoding.check_keeps_text()
        if options.tokenizer == "gpt2":
            return []
        content = tokenizer_file(options.tokenizer)
        name = options.tokenizer.rpartition("/")[2]
        digest = hashlib.sha256(content).hexdigest()
        return [{"name": name, "bytes": len(content), "sha256": digest}]

    def preload(self, options: Options) -> list[str]:
        """Return the function that loads GPT-2's vocabulary, if it is used."""
        if options.tokenizer != "gpt2":
            return []
        return ["owt_pipeline.formats.gpt2_tokenizer:tiktoken_encoding"]

    def set_up(self, run: StageRun) -> Summary:
        """Return a copy of the tokenizer for the run's folder, and its entry in the manifest."""
        options: Options = run.options
        encoding = load(options.tokenizer, options.eot_token)
        content = encoding.tokenizer_json
        # The name has the content's digest, so another tokenizer does not overwrite this file.
        file = run.asset_path(content_name(TOKENIZER_FILE, content))
        tokenizer = {
            "name": encoding.name,
            "file": file,
            "sha256": hashlib.sha256(content).hexdigest(),
            "vocab_size": encoding.vocab_size,
            "eot": encoding.eot,
        }
        # `tokenize_batch` compares ids with the vocabulary, so training skips this check.
        properties = {"tokenizer": tokenizer, "ids_checked": True}
        return Summary(properties=properties, contents={file: content})

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Warn of an empty `val`."""
        num_held_out = sum(record.stats.get("documents_val", 0) for record in records)
        # An empty corpus has an empty `val` at any share, and needs no warning.
        if run.options.val_fraction and not num_held_out and run.inputs["corpus"].rows():
            logger.warning(
                "tokenize: val/ is empty, since --val_fraction %s chose no document; give a "
                "larger one",
                run.options.val_fraction,
            )
        return Summary()


STAGE = Tokenize()
