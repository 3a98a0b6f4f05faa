"""Fit the model of main text on labelled pages and write it.

    python -m benchmarks.extraction_model DATA [--model FILE] [--seed N] [--cache FILE]
        [--models DIR]

DATA, or DATA/web, holds the files of `labelled_pages.FILES`. `--cache` keeps the pages' features in
a file, and takes them from there if it exists. `--models` keeps the fitted model in a folder, and
takes it from there if it was fitted on the same examples with the same seed and code. The same
pages and versions of lxml and trafilatura give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from owt_pipeline.stages.extract.content.model import PATH

from .fitting import examples, write
from .kept_models import fit_or_read
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
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="keep fitted models in this folder, or take them from it",
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
    model = fit_or_read(labelled, arguments.seed, folder=arguments.models)
    write(model, arguments.model)
    print(f"{hashlib.sha256(arguments.model.read_bytes()).hexdigest()}  {arguments.model.name}")


if __name__ == "__main__":
    main()
