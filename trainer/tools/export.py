"""Export a checkpoint as a folder that Hugging Face's transformers loads: `python -m trainer.tools.export RUN FOLDER`.

`hf upload OWNER/NAME FOLDER` sends it to the Hub.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas import SettingsError, option
from trainer.checkpoint import RECORD
from trainer.command_line import CommandParser, run_command
from trainer.pretrained import load_pretrained, save_huggingface
from trainer.signing import Signer


@dataclass(frozen=True)
class ExportOptions:
    """Settings of `trainer.tools.export`."""

    step: int | None = option(None, "the run's checkpoint of this step (default: the newest)", minimum=0)
    verify_key: str | None = option(None, "refuse a model unless the owner of this public key signed it", metavar="PEM")
    sign_key: str | None = option(None, "private key (PEM, elliptic curve) that signs the folder", metavar="PEM")


def export(source: str, place: str, options: ExportOptions) -> None:
    """Write the model in `source` to a folder: weights as safetensors, configuration, tokenizer.

    Raises:
      SettingsError: the folder is a file, or contains the model or a run, which would be overwritten.
      ValueError: there is no such model, it is not signed as required, or transformers has no class for it.
    """
    if "://" in place:
        raise SettingsError(
            f"{place} is not a local folder; export to one, and send that (`hf upload OWNER/NAME FOLDER`)"
        )
    folder = Path(place)
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; give a folder instead")
    if folder.exists() and Path(source).exists() and folder.samefile(source):
        raise SettingsError(f"{folder} is the model itself; give another folder to export it to")
    if (folder / "checkpoints").exists() or (folder / RECORD).exists():
        raise SettingsError(f"{folder} is a run or a checkpoint; give another folder")
    signer = Signer(options.sign_key) if options.sign_key else None
    trained = load_pretrained(source, verify_key=options.verify_key, step=options.step, newest=True)
    save_huggingface(trained.model, folder, trained.tokenizer, trained.eot)
    if signer:
        signer.sign(folder)
    print(f"{folder}: transformers.AutoModelForCausalLM.from_pretrained loads it")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.tools.export", description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder for its newest")
    parser.add_argument("folder", metavar="FOLDER", help="where the model goes")

    def work(given: argparse.Namespace, options: ExportOptions) -> None:
        export(given.checkpoint, given.folder, options)

    return run_command(parser, ExportOptions, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
