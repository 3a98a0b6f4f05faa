"""The words of other tools for our commands and flags, and what they are called here.

People bring these words from datatrove, dolma, NeMo Curator, nanoGPT, git, pip and conda. They are
looked up before the letters of a word are compared, because the nearest word by letters often
means something else: `train` is near `train-tokenizer`.
"""

from __future__ import annotations

from collections.abc import Container

_TRAIN = "training is a program of its own: `python -m trainer CONFIG.toml --data RUN/tokens`"
_RERUN = "run the same command again: it skips what is finished"
_RUN_FOLDER = "name the folder of the run: `owt run RUN`"
_SETTINGS = "write the settings of a run with `owt init RUN --preset NAME`"
_SOURCES = "name the sources with --dumps, --links or --warcs, or use `owt import RUN FILES`"
_DUPLICATES = "use `owt near-duplicates FILES`, or the stage dedupe of `owt run RUN`"
_DUCKDB = "DuckDB reads the Parquet files in RUN/corpus"
_RUN = "use `owt run RUN`, which continues an interrupted run"
_FORGET = "remove documents with `owt forget RUN FILE`"
_PIP = "pip and git install and update owt-pipeline"
_ALL_STAGES = "a run skips what is finished; --until STAGE stops it after a stage"
_ALL_ROWS = "a run reads all of its sources: name fewer or smaller ones"
_EXACT_SIMILARITY = "each pair is verified exactly, and --threshold is its least similarity"

_ANSWER_BY_COMMAND = {
    "add": "add sources to a run with `owt run RUN --add`",
    "check": "use `owt verify RUN`",
    "checkout": "a run has one state: `owt run RUN` makes it again for changed settings",
    "clone": _SETTINGS,
    "commit": _RERUN,
    "config": _SETTINGS,
    "create": _SETTINGS,
    "decontaminate": "use `owt run RUN --decontaminate FILES`",
    "delete": _FORGET,
    "diff": "compare RUN/report/stats.json of two runs",
    "download": "use `owt run RUN --until fetch`",
    "eval": "evaluate a model with `python -m trainer.evaluate`",
    "evaluate": "evaluate a model with `python -m trainer.evaluate`",
    "execute": _RUN,
    "filter": "use `owt run RUN --until clean --filters NAMES`",
    "fsck": "use `owt verify RUN`",
    "gc": "`owt run RUN` removes what a run needs no more",
    "generate": "sample from a model with `python -m trainer.sample`",
    "grep": _DUCKDB,
    "info": "use `owt ls RUN`",
    "inspect": "use `owt ls RUN`, or `owt why RUN URL` for a page",
    "install": _PIP,
    "launch": _RUN,
    "list": "use `owt ls RUN`",
    "log": "use `owt ls RUN`",
    "new": _SETTINGS,
    "prepare": _RUN,
    "prune": "`owt run RUN` removes what a run needs no more",
    "pull": "read files that you downloaded with `owt import RUN FILES`",
    "push": "use `owt publish RUN REPO`",
    "query": _DUCKDB,
    "remove": _FORGET,
    "repair": "use `owt verify RUN --repair`",
    "reset": "delete the folder of the run",
    "resume": _RUN,
    "retry": "use `owt run RUN --retry_failed`",
    "rm": _FORGET,
    "sample": "read the report's random documents in RUN/report/index.html",
    "search": _DUCKDB,
    "show": "use `owt ls RUN`, or `owt why RUN URL` for a page",
    "start": _RUN,
    "stats": "use `owt run RUN --until report`, which writes RUN/report/index.html",
    "status": "use `owt ls RUN`",
    "sync": "use `owt publish RUN REPO`",
    "tag": "use `owt run RUN --until clean`, which measures each document",
    "takedown": _FORGET,
    "tokens": "use `owt run RUN --until tokenize`",
    "train": _TRAIN,
    "undo": _FORGET,
    "uninstall": _PIP,
    "update": _PIP,
    "upgrade": _PIP,
    "upload": "use `owt publish RUN REPO`",
    "version": "use `owt --version`",
}

_ANSWER_BY_PART_OF_COMMAND = {
    "dedup": _DUPLICATES,
    "minhash": _DUPLICATES,
    "tokeniz": "use `owt run RUN --until tokenize`",
}

_FLAG_BY_WORD = {
    "column": "text_field",
    "content_field": "text_field",
    "debug": "verbose",
    "fix": "repair",
    "hash_threshold": "threshold",
    "jaccard": "threshold",
    "jaccard_threshold": "threshold",
    "json_key": "text_field",
    "json_keys": "text_field",
    "key": "text_field",
    "lang": "languages",
    "language": "languages",
    "language_threshold": "min_language_score",
    "license_id": "license",
    "minhash_threshold": "threshold",
    "n": "dry_run",
    "ngram_size": "ngram",
    "ngrams": "ngram",
    "o": "out",
    "output": "out",
    "output_file": "out",
    "plan": "dry_run",
    "q": "quiet",
    "shards": "num_shards",
    "shingle_size": "ngram",
    "silent": "quiet",
    "similarity_threshold": "threshold",
    "text_column": "text_field",
    "text_key": "text_field",
    "v": "verbose",
    "y": "yes",
    **dict.fromkeys(
        ["cpus", "j", "jobs", "n_jobs", "n_workers", "num_proc", "num_processes", "num_threads",
         "num_workers", "processes", "tasks", "threads"],
        "workers",
    ),
}  # fmt: skip
"""Our flag of the same meaning, of the commands that have it."""

_ANSWER_BY_FLAG = {
    "c": "name the settings after the run: `owt run RUN FILE.toml`",
    "config": "name the settings after the run: `owt run RUN FILE.toml`",
    "documents": "import files of your own text with `owt import RUN FILES`",
    "f": _RERUN,
    "force": _RERUN,
    "id_field": "a document's id is the hash of its URL, or of its text",
    "log_dir": "the log of a run is RUN/run-log.jsonl",
    "logging_dir": "the log of a run is RUN/run-log.jsonl",
    "max_tokens": "no filter limits the tokens of a document; max_words of [clean.gopher_quality] "
    "limits its words",
    "max_unanswered_names": "URLs of names without an answer are rejects (dns): use --retry_failed",
    "max_words": "set max_words of [clean.gopher_quality] in RUN/settings.toml",
    "message": "each publication is one commit, named by the command",
    "min_words": "use --min_tokens, or min_words of [clean.gopher_quality] in RUN/settings.toml",
    "name": _RUN_FOLDER,
    "no_filters": "use `--filters none`",
    "overwrite": _RERUN,
    "preset": f"{_SETTINGS}, then `owt run RUN`",
    "private": "a published dataset is private unless --public is given",
    "quick": "`owt ls RUN` lists the files without reading them",
    "repo_id": "name the dataset after the run: `owt publish RUN REPO`",
    "rerun": _RERUN,
    "resume": _RERUN,
    "seed": "nothing in a run is random: the same sources and settings give the same bytes",
    "skip_completed": _RERUN,
    "token": "set HF_TOKEN, or run `hf auth login`",
    "vocab_size": "make a tokenizer with `owt train-tokenizer RUN --vocab_size N`",
    "yes": "the command does not ask before it works",
    **dict.fromkeys(
        ["batch_size", "block_size", "compile", "device", "epochs", "gpu", "gpus", "learning_rate",
         "lr", "max_iters", "n_embd", "n_layer"],
        _TRAIN,
    ),
    **dict.fromkeys(["from", "only", "skip", "stage", "start_at", "stop_at"], _ALL_STAGES),
    **dict.fromkeys(["limit", "max_docs", "max_documents", "max_samples", "num_docs"], _ALL_ROWS),
    **dict.fromkeys(
        ["bands", "buckets", "num_bands", "num_buckets", "num_hashes", "num_perm", "rows_per_band"],
        _EXACT_SIMILARITY,
    ),
    **dict.fromkeys(["dataset", "input", "input_dir", "input_folder", "source"], _SOURCES),
    **dict.fromkeys(["o", "out", "output", "output_dir", "output_folder"], _RUN_FOLDER),
}  # fmt: skip


def command_answer(word: str) -> str | None:
    """Return what another tool's command is called here, as the end of a message, or None."""
    name = word.lower().removesuffix(".py")
    for part, answer in _ANSWER_BY_PART_OF_COMMAND.items():
        if part in name:
            return answer
    return _ANSWER_BY_COMMAND.get(name)


def flag_answer(flag: str, known: Container[str]) -> str | None:
    """Return what another tool's flag is called here, as the end of a message, or None.

    `flag` can contain dashes and a value: dashes within a name count as `_`. `known` are the flags
    of the command, with their dashes.
    """
    name = flag.partition("=")[0].lstrip("-").replace("-", "_").lower()
    ours = f"--{_FLAG_BY_WORD.get(name)}"
    if ours in known:
        return f"use {ours}"
    return _ANSWER_BY_FLAG.get(name)
