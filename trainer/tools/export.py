"""Export a checkpoint as a folder that Hugging Face's transformers loads, here, at the Hub or in a bucket.

python -m trainer.tools.export RUN FOLDER
python -m trainer.tools.export RUN hf://OWNER/NAME --yes
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas import SettingsError, option
from trainer.checkpoint import RECORD
from trainer.command_line import CommandParser, run_command
from trainer.pretrained import Pretrained, load_pretrained, save_huggingface
from trainer.publishing import open_place, send_folder
from trainer.signing import Signer


@dataclass(frozen=True)
class ExportOptions:
    """Settings of `trainer.tools.export`."""

    step: int | None = option(None, "the run's checkpoint of this step (default: the newest)", minimum=0)
    verify_key: str | None = option(None, "refuse a model unless the owner of this public key signed it", metavar="PEM")
    sign_key: str | None = option(None, "private key (PEM, elliptic curve) that signs the folder", metavar="PEM")
    license: str = option("other", "the Hub's identifier of the model's licence, for its card")
    yes: bool = option(False, "send to hf:// or a bucket; without it, print what would be sent")


def export(source: str, place: str, options: ExportOptions) -> None:
    """Write the model in `source` to a folder: weights as safetensors, configuration, tokenizer.

    Or send the folder, with a card, to `hf://OWNER/NAME` or a bucket; without `options.yes`, only list its files.

    Raises:
      SettingsError: the folder is a file, or contains the model or a run, which would be overwritten.
      ValueError: there is no such model, it is not signed as required, transformers has no class for it, or it could
        not be sent.
    """
    if "://" not in place:
        _export(source, Path(place), options)
        print(f"{place}: transformers.AutoModelForCausalLM.from_pretrained loads it")
        return
    open_place(place)
    with tempfile.TemporaryDirectory() as folder:
        _export(source, Path(folder), options, place)
        for path in sorted(Path(folder).iterdir()):
            print(f"{path.name}: {path.stat().st_size:,} bytes")
        if options.yes:
            send_folder(place, Path(folder), "Export of a checkpoint")
    print(f"published: {place}" if options.yes else f"Nothing was sent: --yes sends it to {place}")


def _export(source: str, folder: Path, options: ExportOptions, uri: str = "") -> None:
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; give a folder instead")
    if folder.exists() and Path(source).exists() and folder.samefile(source):
        raise SettingsError(f"{folder} is the model itself; give another folder to export it to")
    if (folder / "checkpoints").exists() or (folder / RECORD).exists():
        raise SettingsError(f"{folder} is a run or a checkpoint; give another folder")
    signer = Signer(options.sign_key) if options.sign_key else None
    trained = load_pretrained(source, verify_key=options.verify_key, step=options.step, newest=True)
    save_huggingface(trained.model, folder, trained.tokenizer, trained.eot)
    if uri:
        (folder / "README.md").write_text(card(trained, uri, options.license), encoding="utf-8")
    if signer:
        signer.sign(folder)


def card(trained: Pretrained, uri: str, license: str) -> str:
    """README.md of the model."""
    config = trained.model.config
    steps = f" after {trained.step:,} steps" if trained.step is not None else ""
    return f"""\
---
license: {license}
library_name: transformers
pipeline_tag: text-generation
tags: [gpt2]
---

# {uri.rstrip("/").rpartition("/")[2]}

GPT-2 with {trained.model.n_parameters:,} parameters ({config.n_layer} layers, width {config.width}, context
{config.context}), trained with owt-pipeline{steps}. It continues text as its training data did, mistakes and
prejudices of web pages included, and was not taught to follow instructions or to be safe.

    from transformers import pipeline

    print(pipeline("text-generation", model="{uri.removeprefix("hf://")}")("The council"))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.tools.export", description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder for its newest")
    parser.add_argument("folder", metavar="FOLDER", help="where the model goes: a folder, hf://…, s3://… or gs://…")

    def work(given: argparse.Namespace, options: ExportOptions) -> None:
        export(given.checkpoint, given.folder, options)

    return run_command(parser, ExportOptions, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
