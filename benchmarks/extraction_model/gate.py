"""Compare extraction with the last release, on pages that neither of them was fitted on.

    python -m benchmarks.extraction_model.gate DATA [--folds N ...] [--seeds N ...] [--cache FILE]
        [--models DIR]
    python -m benchmarks.extraction_model.gate DATA --store     # at a release

Models are fitted on two thirds of the hosts and judged on the last third, for each of FOLDS and
SEEDS. The models of the release were fitted in the same way. Every page is compared with itself: a
difference is the mean over the pages, and its deviation follows from how much the pages differ.
Small losses of several commits add up here, where a comparison with the last commit would pass each
of them.

A fit has a deviation, too: the same pages give models that differ by chance. So the mean of the
seeds is compared, and FIT_DEVIATIONS are a part of each difference's deviation.

`release.npz` holds for every page the first 8 bytes of the SHA-256 of its set and URL. For each
seed it has the numbers of words (snippets, 4-grams) in common, in the text and in the truth. It
holds no text.

At the end, the command prints what each rule after the model earns (`rules.py`).

Exits 1 if WCXB's pages or its articles lose more than 1.5 deviations of F1, or if the junk of the
articles rises by more than .003.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from owt_pipeline.stages.extract.content.model import load

from .examples import Example
from .fitting import examples
from .labelled_pages import LabelledPage, groups_of, read_labelled
from .news import read_news
from .rules import rule_lines
from .validation import FOLDS, by_host, count_shared, extracted, held_out_models

RELEASE = Path(__file__).with_name("release.npz")
SEEDS = (0, 1, 2)
# Of the F1 of one fit, over eight fits (docs/benchmarks/figures.md).
FIT_DEVIATIONS = {"wcxb": 0.0011, "wcxb article": 0.0005}
MAX_DEVIATIONS_LOST = 1.5
MAX_JUNK_GAINED = 0.003

Counts = dict[int, np.ndarray]
"""For each seed an array (pages, 3): in common, in the text and in the truth."""


@dataclass(frozen=True)
class Change:
    """A set's change since the release.

    Attributes:
      name: the set, or the set and its kind of page.
      pages: the number of pages.
      before, after: the mean F1 of a page.
      deviation: of the difference, from the pages and from the fits.
      junk_before, junk_after: the shares of the texts that do not belong to the main text.
    """

    name: str
    pages: int
    before: float
    after: float
    deviation: float
    junk_before: float
    junk_after: float

    @property
    def faults(self) -> list[str]:
        """The reasons for which the gate rejects the change, as sentences."""
        sentences = []
        f1_lost = self.before - self.after
        is_judged = self.name in ("wcxb", "wcxb article")
        if is_judged and f1_lost > MAX_DEVIATIONS_LOST * self.deviation:
            sentences.append(
                f"{self.name} lost {f1_lost:.4f} of F1, more than {MAX_DEVIATIONS_LOST} deviations "
                f"of {self.deviation:.4f}"
            )
        junk_gained = self.junk_after - self.junk_before
        if self.name == "wcxb article" and junk_gained > MAX_JUNK_GAINED:
            sentences.append(
                f"the junk of {self.name} rose by {junk_gained:.4f}, more than {MAX_JUNK_GAINED}"
            )
        return sentences

    def __str__(self) -> str:
        return (
            f"{self.name:<20} {self.pages:5} pages   F1 {self.before:.4f} -> {self.after:.4f} "
            f"({self.after - self.before:+.4f} ± {self.deviation:.4f})   "
            f"junk {self.junk_before:.4f} -> {self.junk_after:.4f}"
        )


def compare(pages: Sequence[LabelledPage], before: Counts, after: Counts) -> list[Change]:
    """Return the change of each set and kind of page; both counts are of `pages`."""
    changes = []
    for name, indexes in groups_of(pages).items():
        old = np.stack([before[seed][indexes] for seed in after])
        new = np.stack([after[seed][indexes] for seed in after])
        # The mean over seeds first: pages are independent of each other, seeds of a page are not.
        old_f1 = _page_f1(old).mean(axis=0)
        new_f1 = _page_f1(new).mean(axis=0)
        page_variance = float(np.var(new_f1 - old_f1)) / len(indexes)
        # Both means are over as many fits.
        fit_variance = 2 * FIT_DEVIATIONS.get(name, 0.0) ** 2 / len(after)
        changes.append(
            Change(
                name=name,
                pages=len(indexes),
                before=float(old_f1.mean()),
                after=float(new_f1.mean()),
                deviation=float(np.sqrt(page_variance + fit_variance)),
                junk_before=_junk(old),
                junk_after=_junk(new),
            )
        )
    return changes


def _page_f1(counts: np.ndarray) -> np.ndarray:
    """Return the F1 of each page (seeds, pages); a page without text and truth has 1."""
    common, in_text, in_truth = np.moveaxis(counts, -1, 0)
    sizes = in_text + in_truth
    f1: np.ndarray = np.where(sizes > 0, 2 * common / np.maximum(sizes, 1), 1.0)
    return f1


def _junk(counts: np.ndarray) -> float:
    """Return the share of the words of all texts that do not belong to the main text."""
    num_common, num_in_texts, _ = counts.reshape(-1, 3).sum(axis=0)
    return float(1 - num_common / num_in_texts) if num_in_texts else 0.0


def judge_held_out(
    pages: Sequence[LabelledPage],
    labelled: Sequence[Example],
    folds: Sequence[int],
    seeds: Sequence[int],
    folder: Path | None = None,
) -> tuple[list[LabelledPage], Counts]:
    """Return the pages of `folds` and their counts, by models that were not fitted on them.

    With `folder`, keep the models there, and take them from there.
    """
    split = by_host()
    judged = [page for page in pages if split(page) in folds]
    counts: Counts = {}
    for seed in seeds:
        texts: dict[str, str] = {}
        for fold, model in held_out_models(labelled, split, folds, seed, folder=folder):
            texts.update(extracted(model, [page for page in judged if split(page) == fold]))
            print(f"seed {seed}: fold {fold} is extracted", file=sys.stderr)
        rows = [count_shared(page, texts.get(page.url, "")) for page in judged]
        counts[seed] = np.array(rows, dtype=np.int32)
    return judged, counts


def _digest(page: LabelledPage) -> int:
    digest = hashlib.sha256(f"{page.set} {page.url}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def store(pages: Sequence[LabelledPage], counts: Counts, path: Path) -> None:
    """Write the results of a release."""
    arrays = {f"seed_{seed}": of_seed for seed, of_seed in counts.items()}
    arrays["pages"] = np.array([_digest(page) for page in pages], dtype=np.uint64)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def read_release(pages: Sequence[LabelledPage], seeds: Sequence[int], path: Path) -> Counts:
    """Return the counts of the release for these pages.

    Raises ValueError for an unknown page or seed.
    """
    with np.load(path, allow_pickle=False) as arrays:
        index_of = {digest: index for index, digest in enumerate(arrays["pages"].tolist())}
        unknown = [page.url for page in pages if _digest(page) not in index_of]
        if unknown:
            raise ValueError(
                f"{path.name} lacks {len(unknown)} of {len(pages)} pages, such as {unknown[0]}; "
                f"compare with the pages of the release"
            )
        missing = [seed for seed in seeds if f"seed_{seed}" not in arrays]
        if missing:
            seeds_of_release = [seed for seed in seeds if seed not in missing]
            raise ValueError(
                f"{path.name} has no seed {missing[0]}, so the means would be of other fits; "
                f"compare with --seeds {' '.join(map(str, seeds_of_release))}"
            )
        indexes = [index_of[_digest(page)] for page in pages]
        return {seed: arrays[f"seed_{seed}"][indexes] for seed in seeds}


def main() -> int:
    """Print the changes since the release; return 1 if the gate rejects one."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.extraction_model.gate",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder of the labelled pages")
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(FOLDS)), metavar="N")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), metavar="N")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="of features, as in fitting")
    parser.add_argument("--models", type=Path, metavar="DIR", help="of models, as in fitting")
    parser.add_argument(
        "--store", action="store_true", help="store these results as the last release"
    )
    arguments = parser.parse_args()
    web = arguments.data / "web" if (arguments.data / "web").is_dir() else arguments.data
    pages = read_labelled(web)
    if not arguments.store:
        # What the release lacks is known before the fits, which take minutes each.
        try:
            read_release(pages, arguments.seeds, RELEASE)
        except ValueError as error:
            sys.exit(str(error))
    labelled = examples(pages, arguments.cache)
    judged, after = judge_held_out(
        pages, labelled, arguments.folds, arguments.seeds, folder=arguments.models
    )
    if arguments.store:
        store(judged, after, RELEASE)
    before = read_release(judged, arguments.seeds, RELEASE)
    changes = compare(judged, before, after)
    print(*changes, sep="\n")
    for line in rule_lines(load(), pages, read_news(web)):
        print(line, flush=True)
    faults = [fault for change in changes for fault in change.faults]
    for fault in faults:
        print(f"FAILED: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
