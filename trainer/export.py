"""Export a checkpoint as a folder that Hugging Face's transformers loads:  python -m trainer.export RUN FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint import load_model, resolve
from trainer.command_line import CommandParser
from trainer.huggingface import save_huggingface


def export(checkpoint: str, folder: str) -> None:
    """Write `checkpoint` to `folder`: weights as safetensors, configuration, tokenizer; raises ValueError."""
    source = resolve(checkpoint)
    model, record = load_model(source)
    save_huggingface(model, Path(folder), source / "tokenizer.json", record.tokenizer["eot"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.export", description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder for its newest")
    parser.add_argument("folder", metavar="FOLDER", help="where the model goes")
    try:
        namespace = parser.parse_args(arguments)
        export(namespace.checkpoint, namespace.folder)
    except (ValueError, OSError) as error:
        print(f"trainer.export: {error}", file=sys.stderr)
        return 1
    print(f"{namespace.folder}: transformers.AutoModelForCausalLM.from_pretrained loads it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
