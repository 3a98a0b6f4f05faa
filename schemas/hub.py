"""Files of models at the Hugging Face Hub, for the pipeline's tokenizers and the trainer's models.

This module needs the Hub's client only when a function is called.
"""

from __future__ import annotations

import functools


def fetch_file(repository: str, file: str, revision: str | None) -> str:
    """Return the path of a model's file in the Hub's local cache, once it is there.

    A cached file is used without a check, so that a rerun neither needs the network nor gets a
    newer file. Raises LocalEntryNotFoundError if the Hub cannot be reached, EntryNotFoundError if
    the model lacks the file, and the client's other errors.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    download = functools.partial(
        huggingface_hub.hf_hub_download, repository, file, revision=revision
    )
    try:
        return str(download(local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    # Without a network this request fails at once, where the download retries for half a minute.
    try:
        url = huggingface_hub.hf_hub_url(repository, file, revision=revision)
        huggingface_hub.get_hf_file_metadata(url)
    except HfHubHTTPError:
        # The Hub can be reached. The download repeats the request if its error may pass.
        pass
    except Exception as error:
        raise LocalEntryNotFoundError(str(error).strip().partition("\n")[0]) from error
    return str(download())
