"""Compare extraction with the last release, on pages that neither of them was fitted on.

    python -m benchmarks.extraction_model.gate DATA [--folds N ...] [--seeds N ...] [--cache FILE]
        [--models DIR]
    python -m benchmarks.extraction_model.gate DATA --store     # at a release

Models are fitted on two thirds of the hosts and judged on the last third, for each of FOLDS and
SEEDS. The models of the release were fitted in the same way. Every page is compared with itself: a
difference is the mean over the pages, and its deviation follows from how much the pages differ.
Small losses of several commits add up here, where a comparison with the last commit would pass each
of them.

The log loss of the blocks (`loss.py`) is compared in the same way, for changes of features. It
shows a difference of two models on fewer pages than their texts do. It fails nothing.

`release.npz` holds for every page the first 8 bytes of the SHA-256 of its set and URL. For each
seed it has the numbers of words (snippets, 4-grams) in common, in the text and in the truth. From
the next release on it has the log loss, too. It holds no text.

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

from .examples import Example
from .fitting import examples
from .labelled_pages import LabelledPage, groups_of, read_labelled
from .loss import compare_losses, page_loss
from .validation import FOLDS, by_host, count_shared, extracted, held_out_models

RELEASE = Path(__file__).with_name("release.npz")
SEEDS = (0, 1)
MAX_DEVIATIONS_LOST = 1.5
MAX_JUNK_GAINED = 0.003

Counts = dict[int, np.ndarray]
"""For each seed an array (pages, 3): in common, in the text and in the truth."""
Losses = dict[int, np.ndarray]
"""For each seed an array (pages)."""


@dataclass(frozen=True)
class Change:
    """A set's change since the release.

    Attributes:
      name: the set, or the set and its kind of page.
      pages: the number of pages.
      before, after: the mean F1 of a page.
      deviation: of the difference.
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
        deviation = float(np.std(new_f1 - old_f1) / np.sqrt(len(indexes)))
        changes.append(
            Change(
                name=name,
                pages=len(indexes),
                before=float(old_f1.mean()),
                after=float(new_f1.mean()),
                deviation=deviation,
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


@dataclass(frozen=True)
class HeldOut:
    """The results of n pages by models that were not fitted on them.

    Attributes:
      pages: the n pages.
      counts: their counts.
      losses: for each seed the log loss of each page (n); NaN for a page without labels.
    """

    pages: list[LabelledPage]
    counts: Counts
    losses: Losses


def judge_held_out(
    pages: Sequence[LabelledPage],
    labelled: Sequence[Example],
    folds: Sequence[int],
    seeds: Sequence[int],
    folder: Path | None = None,
) -> HeldOut:
    """Return the results of the pages of `folds`.

    With `folder`, keep the models there, and take them from there.
    """
    split = by_host()
    judged = [page for page in pages if split(page) in folds]
    counts: Counts = {}
    losses: Losses = {}
    for seed in seeds:
        texts: dict[str, str] = {}
        loss_by_url: dict[str, float] = {}
        for fold, model in held_out_models(labelled, split, folds, seed, folder=folder):
            texts.update(extracted(model, [page for page in judged if split(page) == fold]))
            for example in labelled:
                if split(example.page) == fold:
                    loss_by_url[example.page.url] = page_loss(model, example)
        rows = [count_shared(page, texts.get(page.url, "")) for page in judged]
        counts[seed] = np.array(rows, dtype=np.int32)
        losses[seed] = np.array([loss_by_url.get(page.url, np.nan) for page in judged])
    return HeldOut(judged, counts, losses)


def _digest(page: LabelledPage) -> int:
    digest = hashlib.sha256(f"{page.set} {page.url}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def store(results: HeldOut, path: Path) -> None:
    """Write the results of a release."""
    arrays = {f"seed_{seed}": counts for seed, counts in results.counts.items()}
    for seed, losses in results.losses.items():
        arrays[f"loss_{seed}"] = losses.astype(np.float32)
    arrays["pages"] = np.array([_digest(page) for page in results.pages], dtype=np.uint64)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def read_release(pages: Sequence[LabelledPage], seeds: Sequence[int], path: Path) -> HeldOut:
    """Return the results of the release for these pages; `losses` is empty if it has none.

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
            raise ValueError(f"{path.name} has no seed {missing[0]}")
        indexes = [index_of[_digest(page)] for page in pages]
        counts = {seed: arrays[f"seed_{seed}"][indexes] for seed in seeds}
        losses: Losses = {}
        if all(f"loss_{seed}" in arrays for seed in seeds):
            losses = {seed: arrays[f"loss_{seed}"][indexes] for seed in seeds}
        return HeldOut(list(pages), counts, losses)


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
    labelled = examples(pages, arguments.cache)
    after = judge_held_out(
        pages, labelled, arguments.folds, arguments.seeds, folder=arguments.models
    )
    if arguments.store:
        store(after, RELEASE)
    try:
        before = read_release(after.pages, arguments.seeds, RELEASE)
    except ValueError as error:
        sys.exit(str(error))
    changes = compare(after.pages, before.counts, after.counts)
    print(*changes, sep="\n")
    released_losses = np.stack(list(before.losses.values())) if before.losses else None
    losses = np.stack(list(after.losses.values()))
    print(*compare_losses(after.pages, released_losses, losses), sep="\n")
    faults = [fault for change in changes for fault in change.faults]
    for fault in faults:
        print(f"FAILED: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
