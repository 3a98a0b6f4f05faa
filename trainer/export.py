"""Export a checkpoint as a folder that Hugging Face's transformers loads: `python -m
trainer.export RUN FOLDER`.

`hf upload OWNER/NAME FOLDER` sends it to the Hub.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from schemas import SettingsError, option
from trainer.command_line import check_local, run_command
from trainer.huggingface import save_huggingface
from trainer.pretrained import CheckpointOptions
from trainer.signing import signer_of


@dataclass(frozen=True)
class ExportOptions(CheckpointOptions):
    """Settings of `trainer.export`."""

    sign_key: str | None = option(
        None,
        "private key (PEM, elliptic curve) that signs the folder",
        metavar="PEM",
        is_path=True,
    )


def export(source: str, place: str, options: ExportOptions) -> None:
    """Write the model in `source` to a folder: weights as safetensors, configuration, tokenizer.

    Raises SettingsError if the folder is not empty; ValueError if there is no such model, or if
    transformers does not have it.
    """
    check_local(place, "where the model goes")
    folder = Path(place)
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty_folder:
        raise SettingsError(f"{folder} exists and is not an empty folder; give another one")
    # A wrong key is reported before anything is written.
    sign = signer_of(options.sign_key) if options.sign_key else None
    trained = options.load(source)
    save_huggingface(trained.model, folder, trained.tokenizer, trained.eot)
    if sign:
        sign(folder)
    print(f"{folder}: transformers.AutoModelForCausalLM.from_pretrained loads it")


_ARGUMENTS = {
    "model": "a checkpoint, or a run's folder for its newest",
    "folder": "where the model goes",
}
main = partial(run_command, "trainer.export", __doc__, _ARGUMENTS, ExportOptions, export)


if __name__ == "__main__":
    sys.exit(main())
