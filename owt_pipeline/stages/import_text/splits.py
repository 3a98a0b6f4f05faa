"""Files of a dataset that are held out for tests and validation, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TRAINING_SPLITS = {"train", "training", "trainset"}
_HELD_OUT_SPLITS = {
    "test", "testing", "testset", "validation", "valid", "val", "validationset", "dev", "devset",
    "devtest", "eval", "evalset", "evaluation", "heldout", "holdout",
}  # fmt: skip


def held_out_files(patterns: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the files of folders and globs that are named as a test or validation split, next to
    a training split.

    Args:
      patterns: the files, folders and globs that the user named.
      names: the name of each file by its path, as `named_files` returns them.
    """
    words = {path: _words_of_name(name) for path, name in names.items()}
    if not any(_TRAINING_SPLITS & of_file for of_file in words.values()):
        return []
    return [
        path
        for path, of_file in words.items()
        if _HELD_OUT_SPLITS & of_file and not _TRAINING_SPLITS & of_file and path not in patterns
    ]


def _words_of_name(name: str) -> set[str]:
    one_word = re.sub("(held|hold)[-_ ]out", r"\1out", name.lower())
    return set(re.split("[^a-z]+", one_word))
