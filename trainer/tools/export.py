"""Export a checkpoint as a folder that Hugging Face's transformers loads: `python -m
trainer.tools.export RUN FOLDER`.

`hf upload OWNER/NAME FOLDER` sends it to the Hub.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from schemas import SettingsError, option
from trainer.command_line import check_local, run_command
from trainer.pretrained import load_pretrained, save_huggingface
from trainer.signing import signer_of


@dataclass(frozen=True)
class ExportOptions:
    """Settings of `trainer.tools.export`."""

    step: int | None = option(
        None, "the run's checkpoint of this step (default: the newest)", minimum=0
    )
    verify_key: str | None = option(
        None, "refuse a model unless the owner of this public key signed it", metavar="PEM"
    )
    sign_key: str | None = option(
        None, "private key (PEM, elliptic curve) that signs the folder", metavar="PEM"
    )


def export(source: str, place: str, options: ExportOptions) -> None:
    """Write the model in `source` to a folder: weights as safetensors, configuration, tokenizer.

    Raises SettingsError: the folder is not empty; ValueError: there is no such model, or none that
    transformers has.
    """
    check_local(place, "where the model goes")
    folder = Path(place)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} exists and is not an empty folder; give another one")
    signer = signer_of(options.sign_key) if options.sign_key else None
    trained = load_pretrained(source, verify_key=options.verify_key, step=options.step)
    save_huggingface(trained.model, folder, trained.tokenizer, trained.eot)
    if signer:
        signer(folder)
    print(f"{folder}: transformers.AutoModelForCausalLM.from_pretrained loads it")


_NAMED = {
    "checkpoint": "a checkpoint, or a run's folder for its newest",
    "folder": "where the model goes",
}
main = partial(run_command, "trainer.tools.export", __doc__, _NAMED, ExportOptions, export)


if __name__ == "__main__":
    sys.exit(main())
