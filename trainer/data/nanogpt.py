"""nanoGPT's train.bin: the ids of GPT-2's tokenizer as uint16, with an end-of-text after each
document.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

_BLOCK = 1 << 24  # ids that are searched at a time


def is_bin_file(path: str | Path) -> bool:
    """Return whether a name of data is that of a file of ids, not of a folder."""
    return str(path).endswith(".bin") and not Path(path).is_dir()


def map_ids(path: str | Path) -> np.ndarray:
    """Return the ids of a file, mapped; raises ValueError, which explains what is wrong."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{file} is missing: check the path")
    if file.with_name("meta.pkl").exists():
        raise ValueError(
            f"{file} has the ids of another tokenizer than GPT-2's, because meta.pkl lies beside "
            f"it: read the ids and give them to write_shards, with vocab_size and eot"
        )
    num_bytes = file.stat().st_size
    if not num_bytes or num_bytes % 2:
        raise ValueError(f"{file} has {num_bytes} bytes, not ids of two bytes each: copy it again")
    return np.memmap(file, dtype="<u2", mode="r").view(np.ndarray)


def find_documents(ids: np.ndarray, vocab_size: int, eot: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each document starts, and its length without end-of-text, both int64 (n,).

    Documents without a token are left out. Raises ValueError for an id outside the vocabulary.
    """
    ends = []
    for first in range(0, len(ids), _BLOCK):
        block = ids[first : first + _BLOCK]
        if block.max() >= vocab_size:
            position = first + int(block.argmax())
            raise ValueError(
                f"token {position:,} is the id {block.max()}, outside GPT-2's vocabulary of "
                f"{vocab_size}: give ids of another tokenizer to write_shards, with "
                f"vocab_size and eot"
            )
        ends.append(np.flatnonzero(block == eot) + first)
    # The last document may have no end-of-text.
    boundaries = np.concatenate([[-1], *ends, [len(ids)]])
    starts = boundaries[:-1] + 1
    lengths = boundaries[1:] - starts
    has_tokens = lengths > 0
    return starts[has_tokens], lengths[has_tokens]
