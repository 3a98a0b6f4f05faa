"""The tokenizer of a model at the Hugging Face hub."""

from __future__ import annotations

import functools
import re

from owt_pipeline.errors import UserError
from schemas.hub import fetch_file

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w./-]+)?")


def is_hub_name(tokenizer: str) -> bool:
    """Return whether this has the form of a name at the hub, such as `EleutherAI/gpt-neox-20b`.

    A URI and a name that ends in `.json` have another form.
    """
    return _HUB_NAME.fullmatch(tokenizer) is not None and not tokenizer.endswith(".json")


@functools.cache
def download_tokenizer(name: str) -> bytes:
    """Return the `tokenizer.json` of a model, from the hub's local cache or else from the hub.

    A cached copy is used without a check, so that a rerun neither needs the network nor gets a
    newer file. `NAME@REVISION` selects a revision other than the newest.

    Raises:
      UserError: there is no such model or file, or the hub cannot be reached and there is no cached
        copy.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    try:
        path = fetch_file(repository, "tokenizer.json", revision or None)
        with open(path, "rb") as file:
            return file.read()
    except Exception as error:
        # The package, its HTTP client and the operating system raise their own errors.
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        if isinstance(error, LocalEntryNotFoundError):
            # The client's message has three sentences.
            reason = "it cannot be reached"
        hint = ""
        if name.lower().replace("-", "").endswith("gpt2"):
            hint = ". GPT-2's own tokenizer is gpt2, which needs no file"
        of_revision = f" --revision {revision}" if revision else ""
        raise UserError(
            f"tokenizer {name}: there is no such file, and its download from the Hugging Face Hub "
            f"failed ({reason}). Give the path of a tokenizer.json; or download it while connected "
            f"(`hf download {repository} tokenizer.json{of_revision}`); or set HF_ENDPOINT to a "
            f"mirror{hint}"
        ) from error
