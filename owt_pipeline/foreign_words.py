"""The words of other tools for our commands and flags, and what they are called here.

People bring these words from datatrove, dolma, NeMo Curator, nanoGPT, git, pip and conda. They are
looked up before the letters of a word are compared, because the nearest word by letters often
means something else: `train` is near `train-tokenizer`.
"""

from __future__ import annotations

_TRAIN = "training is a program of its own: `python -m trainer CONFIG.toml --data RUN/tokens`"
_RERUN = "run the same command again: it skips what is finished"
_RUN_FOLDER = "name the folder of the run: `owt run RUN`"
_WORKERS = "use --workers"
_SETTINGS = "write the settings of a run with `owt init RUN --preset NAME`"

_ANSWER_BY_COMMAND = {
    "add": "add sources to a run with `owt run RUN --add`",
    "check": "use `owt verify RUN`",
    "clone": _SETTINGS,
    "config": _SETTINGS,
    "create": _SETTINGS,
    "dedup": "use `owt near-duplicates FILES`, or the stage dedupe of `owt run RUN`",
    "delete": "remove documents with `owt forget RUN FILE`",
    "download": "use `owt run RUN --until fetch`",
    "fsck": "use `owt verify RUN`",
    "info": "use `owt ls RUN`",
    "list": "use `owt ls RUN`",
    "log": "use `owt ls RUN`",
    "minhash": "use `owt near-duplicates FILES`",
    "new": _SETTINGS,
    "prepare": "use `owt run RUN`",
    "push": "use `owt publish RUN REPO`",
    "remove": "remove documents with `owt forget RUN FILE`",
    "repair": "use `owt verify RUN --repair`",
    "resume": "use `owt run RUN`, which continues an interrupted run",
    "retry": "use `owt run RUN --retry_failed`",
    "rm": "remove documents with `owt forget RUN FILE`",
    "sample": "read the report's random documents in RUN/report/index.html",
    "show": "use `owt ls RUN`, or `owt why RUN URL` for a page",
    "start": "use `owt run RUN`",
    "stats": "use `owt run RUN --until report`, which writes RUN/report/index.html",
    "status": "use `owt ls RUN`",
    "takedown": "use `owt forget RUN FILE`",
    "tokens": "use `owt run RUN --until tokenize`",
    "train": _TRAIN,
    "upload": "use `owt publish RUN REPO`",
    "version": "use `owt --version`",
}

_ANSWER_BY_FLAG = {
    "block_size": _TRAIN,
    "documents": "import files of your own text with `owt import RUN FILES`",
    "fix": "use `owt verify RUN --repair`",
    "force": _RERUN,
    "input": "name the sources with --dumps, --links or --warcs, or use `owt import RUN FILES`",
    "j": _WORKERS,
    "jaccard_threshold": "use --threshold",
    "jobs": _WORKERS,
    "language": "use --languages",
    "language_threshold": "use --min_language_score",
    "learning_rate": _TRAIN,
    "lr": _TRAIN,
    "max_unanswered_names": "URLs of names without an answer are rejects (dns): use --retry_failed",
    "minhash_threshold": "use --threshold",
    "n_workers": _WORKERS,
    "name": _RUN_FOLDER,
    "num_proc": _WORKERS,
    "num_workers": _WORKERS,
    "out": _RUN_FOLDER,
    "output": _RUN_FOLDER,
    "output_dir": _RUN_FOLDER,
    "output_folder": _RUN_FOLDER,
    "overwrite": _RERUN,
    "preset": f"{_SETTINGS}, then `owt run RUN`",
    "private": "a published dataset is private unless --public is given",
    "processes": _WORKERS,
    "repo_id": "name the dataset after the run: `owt publish RUN REPO`",
    "resume": _RERUN,
    "seed": "nothing in a run is random: the same sources and settings give the same bytes",
    "skip_completed": _RERUN,
    "stage": "use --until STAGE",
    "stop_at": "use --until STAGE",
    "tasks": _WORKERS,
}


def command_answer(word: str) -> str | None:
    """Return what another tool's command is called here, as the end of a message, or None."""
    return _ANSWER_BY_COMMAND.get(word.lower())


def flag_answer(flag: str) -> str | None:
    """Return what another tool's flag is called here, as the end of a message, or None.

    `flag` can contain dashes and a value: dashes within a name count as `_`.
    """
    name = flag.partition("=")[0].lstrip("-").replace("-", "_").lower()
    return _ANSWER_BY_FLAG.get(name)
