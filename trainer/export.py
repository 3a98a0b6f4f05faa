"""Export a checkpoint as a folder that Hugging Face's transformers loads:  python -m trainer.export RUN FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas import option
from schemas.settings import add_flags, flags_given, from_table
from trainer.command_line import CommandParser, report
from trainer.pretrained import load_pretrained, save_huggingface
from trainer.signing import Signer, Verifier


@dataclass(frozen=True)
class ExportOptions:
    """Settings of `trainer.export`."""

    verify_key: str | None = option(None, "take a model only if the owner of this public key signed it", metavar="PEM")
    sign_key: str | None = option(None, "private key (PEM, elliptic curve) that signs the folder", metavar="PEM")


def export(source: str, folder: str, options: ExportOptions) -> None:
    """Write the model that `source` names to `folder`: weights as safetensors, configuration, tokenizer.

    Raises:
      ValueError: there is no such model, it is not signed as it should be, or transformers has no class for it.
    """
    signer = Signer(options.sign_key) if options.sign_key else None
    trained = load_pretrained(source, verifier=Verifier(options.verify_key) if options.verify_key else None)
    save_huggingface(trained.model, Path(folder), trained.tokenizer, trained.eot)
    if signer:
        signer.sign(Path(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.export", description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder for its newest")
    parser.add_argument("folder", metavar="FOLDER", help="where the model goes")
    add_flags(parser, ExportOptions)
    try:
        namespace = parser.parse_args(arguments)
        options = from_table(ExportOptions, flags_given(ExportOptions, namespace), "flags")
        export(namespace.checkpoint, namespace.folder, options)
    except (ValueError, OSError) as error:
        return report("trainer.export", error)
    print(f"{namespace.folder}: transformers.AutoModelForCausalLM.from_pretrained loads it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
