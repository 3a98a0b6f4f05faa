"""Tokenizers by their name at the Hugging Face hub."""

from __future__ import annotations

import functools
import re

from owt_pipeline.engine.errors import UserError

_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w./-]+)?")


def is_hub_name(tokenizer: str) -> bool:
    """Whether this can only be a name at the hub, such as `EleutherAI/gpt-neox-20b`: no URI, no `.json`."""
    return _NAME.fullmatch(tokenizer) is not None and not tokenizer.endswith(".json")


@functools.cache
def download(name: str) -> bytes:
    """The `tokenizer.json` of a model: from the hub's local cache, else from the hub.

    A copy in the cache is taken as it is, so that a rerun neither needs the network nor finds a newer file;
    `NAME@REVISION` names another than the newest.

    Raises:
      UserError: there is no such model or file, or neither the hub nor a cached copy is at hand.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    fetch = functools.partial(hf_hub_download, repository, "tokenizer.json", revision=revision or None)
    try:
        try:
            path = fetch(local_files_only=True)
        except LocalEntryNotFoundError:
            path = fetch()
        with open(path, "rb") as file:
            return file.read()
    except Exception as error:  # of the package, of its HTTP client, or of the operating system
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"tokenizer {name}: no file of this name, and its tokenizer.json cannot be had from the Hugging Face hub "
            f"({type(error).__name__}: {reason}). Give the path of a tokenizer.json; or fetch it once while "
            f"connected (`hf download {repository} tokenizer.json`); or name a mirror by HF_ENDPOINT"
        ) from error
