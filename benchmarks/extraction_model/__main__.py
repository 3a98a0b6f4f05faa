"""Fit the model of main text on labelled pages and write it.

    python -m benchmarks.extraction_model DATA [--model FILE] [--cache FILE] [--seed N]

DATA, or DATA/web, holds the files of `labelled_pages.FILES`. `--cache` keeps the pages' features in
a file, and takes them from there if it exists. The same pages and versions of lxml and trafilatura
give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from owt_pipeline.stages.extract.content.model import PATH

from .fitting import examples, fit_model, write
from .labelled_pages import digests, read_labelled


def main() -> None:
    """Fit the model and write it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.extraction_model", description=__doc__
    )
    parser.add_argument(
        "data", type=Path, metavar="DATA", help="the folder with the labelled pages"
    )
    parser.add_argument(
        "--model", type=Path, default=PATH, metavar="FILE", help="where the model goes"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FILE",
        help="keep features in this file, or take them from it",
    )
    # The packaged model is that of seed 0.
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    data = arguments.data / "web" if (arguments.data / "web").is_dir() else arguments.data
    try:
        for name, digest in digests(data).items():
            print(f"{digest}  {name}")
        labelled = examples(read_labelled(data), arguments.cache)
    except FileNotFoundError as error:
        sys.exit(
            f"{error.filename}: no such file; name the folder with the labelled pages as DATA "
            f"(docs/benchmarks/figures.md)"
        )
    num_blocks = sum(len(example.label) for example in labelled)
    print(f"{len(labelled):,} pages, {num_blocks:,} blocks")
    write(fit_model(labelled, arguments.seed), arguments.model)
    print(f"{hashlib.sha256(arguments.model.read_bytes()).hexdigest()}  {arguments.model.name}")


if __name__ == "__main__":
    main()
