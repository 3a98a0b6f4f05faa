"""Compare extraction with that of the last release, on pages that neither was fitted on.

    python -m benchmarks.extraction_model.gate DATA [--folds N ...] [--seeds N ...] [--cache FILE]
    python -m benchmarks.extraction_model.gate DATA --store     # at a release

Models are fitted on two thirds of the hosts and judged on the last third, for each of FOLDS and
SEEDS, as those of the release were. Every page is compared with itself: a difference is the mean
over the pages, and its deviation follows from how much the pages differ. Small losses of several
commits add up here, where a comparison with the last commit would pass each of them.

`release.npz` holds for every page the first 8 bytes of the SHA-256 of its set and URL, and for each
seed three counts: words (snippets, 4-grams) in common, in the text, in the truth. It holds no text.

Exits 1 if WCXB's pages or its articles lose more than 1.5 deviations of F1, or if the junk of the
articles rises by more than .003.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .examples import Example
from .fitting import examples
from .labelled_pages import LabelledPage, read_labelled
from .validation import FOLDS, by_host, count_shared, held_out_texts

RELEASE = Path(__file__).with_name("release.npz")
SEEDS = (0, 1)
MAX_DEVIATIONS_LOST = 1.5
MAX_JUNK_GAINED = 0.003

Counts = dict[int, np.ndarray]
"""For each seed an array (pages, 3): shared, found and wanted."""


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
        """What the gate rejects, as sentences."""
        found = []
        lost = self.before - self.after
        if self.name in ("wcxb", "wcxb article") and lost > MAX_DEVIATIONS_LOST * self.deviation:
            found.append(
                f"{self.name} lost {lost:.4f} of F1, more than {MAX_DEVIATIONS_LOST} deviations of "
                f"{self.deviation:.4f}"
            )
        gained = self.junk_after - self.junk_before
        if self.name == "wcxb article" and gained > MAX_JUNK_GAINED:
            found.append(
                f"the junk of {self.name} rose by {gained:.4f}, more than {MAX_JUNK_GAINED}"
            )
        return found

    def __str__(self) -> str:
        return (
            f"{self.name:<20} {self.pages:5} pages   F1 {self.before:.4f} -> {self.after:.4f} "
            f"({self.after - self.before:+.4f} ± {self.deviation:.4f})   "
            f"junk {self.junk_before:.4f} -> {self.junk_after:.4f}"
        )


def compare(pages: Sequence[LabelledPage], before: Counts, after: Counts) -> list[Change]:
    """Return the change of each set and kind of page; both counts are of `pages`."""
    groups: dict[str, list[int]] = {}
    for index, page in enumerate(pages):
        groups.setdefault(page.set, []).append(index)
        if page.kind != page.set:
            groups.setdefault(f"{page.set} {page.kind}", []).append(index)
    changes = []
    for name, indexes in groups.items():
        old = np.stack([before[seed][indexes] for seed in after])
        new = np.stack([after[seed][indexes] for seed in after])
        # The mean over seeds first: pages are independent of each other, seeds of a page are not.
        old_f1, new_f1 = _page_f1(old).mean(axis=0), _page_f1(new).mean(axis=0)
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
    shared, found, wanted = np.moveaxis(counts, -1, 0)
    sizes = found + wanted
    f1: np.ndarray = np.where(sizes > 0, 2 * shared / np.maximum(sizes, 1), 1.0)
    return f1


def _junk(counts: np.ndarray) -> float:
    """Return the share of all found words that are not wanted."""
    shared, found, _ = counts.reshape(-1, 3).sum(axis=0)
    return float(1 - shared / found) if found else 0.0


def count_held_out(
    pages: Sequence[LabelledPage],
    known: Sequence[Example],
    folds: Sequence[int],
    seeds: Sequence[int],
) -> tuple[list[LabelledPage], Counts]:
    """Return the pages of `folds`, and their counts by models that were not fitted on them."""
    split = by_host()
    judged = [page for page in pages if split(page) in folds]
    counts: Counts = {}
    for seed in seeds:
        texts = held_out_texts(pages, known, split, seed, only=folds)
        rows = [count_shared(page, texts.get(page.url, "")) for page in judged]
        counts[seed] = np.array(rows, dtype=np.int32)
    return judged, counts


def _digest(page: LabelledPage) -> int:
    digest = hashlib.sha256(f"{page.set} {page.url}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def store(pages: Sequence[LabelledPage], counts: Mapping[int, np.ndarray], path: Path) -> None:
    """Write the counts of a release."""
    arrays = {f"seed_{seed}": of_seed for seed, of_seed in counts.items()}
    arrays["pages"] = np.array([_digest(page) for page in pages], dtype=np.uint64)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def read_release(pages: Sequence[LabelledPage], seeds: Sequence[int], path: Path) -> Counts:
    """Return the counts of the release for these pages; raises ValueError for an unknown page or
    seed."""
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
        return {seed: arrays[f"seed_{seed}"][indexes] for seed in seeds}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.extraction_model.gate",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder of the labelled pages")
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(FOLDS)), metavar="N")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), metavar="N")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="of features, as in fitting")
    parser.add_argument(
        "--store", action="store_true", help="store these results as those of the last release"
    )
    arguments = parser.parse_args()
    web = arguments.data / "web" if (arguments.data / "web").is_dir() else arguments.data
    pages = read_labelled(web)
    known = examples(pages, arguments.cache)
    judged, after = count_held_out(pages, known, arguments.folds, arguments.seeds)
    if arguments.store:
        store(judged, after, RELEASE)
    try:
        before = read_release(judged, arguments.seeds, RELEASE)
    except ValueError as error:
        sys.exit(str(error))
    changes = compare(judged, before, after)
    print(*changes, sep="\n")
    faults = [fault for change in changes for fault in change.faults]
    for fault in faults:
        print(f"FAILED: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
