"""`owt discard`: remove the files of a finished dataset on purpose, and let the rest of the run keep working."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from owt_pipeline.command_line import CommandParser
from owt_pipeline.commands.stage import reporting_errors
from owt_pipeline.engine.dataset import DatasetReader, is_discarded, mark_discarded, require_manifest
from owt_pipeline.engine.lease import hold
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS

_CONTENT = ("data", "warc", "sketches")
_DATASET_OF = {dataset.stage: name for name, dataset in DATASETS.items()} | {"import": "documents"}


def discard(workdir: Storage, dataset: str) -> int:
    """Remove a finished dataset's rows, and its WARC files; returns the bytes removed.

    Its manifest and rejects stay, so that what was made from it remains finished and every id is accounted for. The
    mark comes first: killed at any moment, the command continues when run again.
    """
    reader = DatasetReader(workdir, require_manifest(workdir, dataset))
    mark_discarded(workdir, dataset, True)
    removed = 0
    for file in (file for kind in _CONTENT for file in reader.files(kind)):
        if workdir.exists(file.path):
            workdir.delete(file.path)
            removed += file.bytes
    return removed


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt discard`."""
    parser = CommandParser(
        prog="owt discard",
        description="Remove the files of finished stages, such as the pages after a takedown, or what the disk needs.\n"
        "Stages made from them stay finished. A stage that has to run again and needs them says so.",
        epilog="examples:\n  owt discard fetch extract --workdir runs/2013\n"
        "  owt discard extract --undo --workdir runs/2013    # the next run makes it again",
    )
    parser.add_argument("stages", nargs="+", choices=tuple(_DATASET_OF), metavar="STAGE", help=", ".join(_DATASET_OF))
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument("--undo", action="store_true", help="let the next run make the files again")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`owt discard` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _run(build_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    workdir = Storage(arguments.workdir)
    datasets = [_DATASET_OF[stage] for stage in arguments.stages]
    with hold(workdir):
        for dataset in datasets:
            require_manifest(workdir, dataset)  # all of them, before anything is removed
        for dataset in datasets:
            if not arguments.undo:
                print(f"{dataset}/: {discard(workdir, dataset):,} bytes removed")
            elif is_discarded(workdir, dataset):
                mark_discarded(workdir, dataset, False)
                print(f"{dataset}/: the next run makes it again")
            else:
                print(f"{dataset}/ was not discarded")
    return 0
