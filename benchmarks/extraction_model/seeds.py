"""Print the mean and the deviation over several fits of what one fit reaches.

    python -m benchmarks.extraction_model.seeds DATA [--seeds N ...] [--cache FILE] [--models DIR]

For each seed: the labelled sets in three folds of hosts, each judged by a model that was fitted on
the other two; and news (`news.py`) by a model fitted on all labelled pages, with and without the
lines that begin like the page's description. One figure of one fit moves by about its deviation, so
a change of the model is judged by the means. The seed to ship is the best one on the labelled sets,
never on the news.

With `--models`, models that this command or `gate.py` has kept in the folder are not fitted again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .fitting import examples
from .kept_models import fit_or_read
from .labelled_pages import read_labelled
from .news import SET, read_news, score_news, without_described
from .validation import by_host, extracted, held_out_texts, score

SEEDS = (0, 1, 2)
SHOWN = ("trafilatura", "wcxb", "wcxb article", "readability")
FIGURES = ("f1", "junk", "lost")


def main() -> None:
    """Print the figures of each seed, and their means and deviations."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.extraction_model.seeds",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder of the labelled pages")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), metavar="N")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="of features, as in fitting")
    parser.add_argument("--models", type=Path, metavar="DIR", help="of models, as in fitting")
    arguments = parser.parse_args()
    web = arguments.data / "web" if (arguments.data / "web").is_dir() else arguments.data
    pages = read_labelled(web)
    news = read_news(web)
    labelled = examples(pages, arguments.cache)
    rows = []
    for seed in arguments.seeds:
        texts = held_out_texts(pages, labelled, by_host(), seed, folder=arguments.models)
        scores = score(pages, texts)
        model = fit_or_read(labelled, seed, folder=arguments.models)
        news_texts = [text for _, text in extracted(model, news)]
        news_scores = score_news(news, news_texts)
        other_scores = score_news(*without_described(news, news_texts))
        row = []
        for name in SHOWN:
            row.append([getattr(scores[name], figure) for figure in FIGURES])
        row.append([news_scores[figure] for figure in FIGURES])
        row.append([other_scores[figure] for figure in FIGURES])
        rows.append(row)
        cells = [" ".join(map("{:.4f}".format, figures)) for figures in row]
        print_row(f"seed {seed}", cells)
    means = np.mean(rows, axis=0)
    deviations = np.std(rows, axis=0, ddof=1)
    print_row("F1, junk, lost", (*SHOWN, SET, f"{SET} without described lines"))
    print("|---" * (len(SHOWN) + 3) + "|")
    for number, figure in enumerate(FIGURES):
        cells = []
        for mean, deviation in zip(means[:, number], deviations[:, number], strict=True):
            cells.append(f"{mean:.4f} ±{deviation:.4f}")
        print_row(figure, cells)


def print_row(name: str, cells: Iterable[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
