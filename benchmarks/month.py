"""The cost of adding a month of 1% to a base, relative to building the base: CPU seconds, bytes read, memory.

    .venv/bin/python benchmarks/month.py [--documents 1000000] [--words 700] [--share 0.01]

Runs dedupe, export and tokenize on one core, first on a base of `--documents` documents of random words (5% are copies
and 5% edited copies of others), then on a month of `--share` of that, in which 1% are copies of documents of the base
and 1% have one word replaced. The earlier stages read only new documents, so their cost is proportional. Each runs in a
separate process, whose start and imports are not counted, nor their memory. Bytes are those requested from the system
(`rchar`).

Exits 1 if the month takes more than 3% of the base's CPU seconds or bytes, or half of its memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dedupe_documents import write_clean

MOST = 0.03
VOCABULARY = 20_000
_BATCH = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000, metavar="N", help="of the base (default: 1000000)")
    parser.add_argument("--words", type=int, default=700, metavar="N", help="of a document (default: 700)")
    parser.add_argument("--share", type=float, default=0.01, metavar="S", help="of the month (default: 0.01)")
    parser.add_argument("--folder", type=Path, help="keep the documents here, for another time (default: nowhere)")
    parser.add_argument("--write_only", action="store_true", help="write the documents to --folder, and end")
    parser.add_argument("--run", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run_stages(*arguments.run)))
        return 0
    new = round(arguments.documents * arguments.share)
    with tempfile.TemporaryDirectory(prefix="month-") as temporary:
        folder = arguments.folder or Path(temporary)
        write_documents(folder, arguments.documents, arguments.words, new)
        return 0 if arguments.write_only else compare(folder, arguments.documents, arguments.words, new)


def write_documents(folder: Path, documents: int, words: int, new: int) -> None:
    if not (folder / "base/clean").exists():
        write_clean(folder / "base", base_texts(documents, words), documents, max(4, documents // 32_768))
    if not (folder / "month/clean").exists():
        write_clean(folder / "month", month_texts(documents, words, new), new, 4, first_id=documents)


def compare(folder: Path, documents: int, words: int, new: int) -> int:
    """Measure and print both; returns 1 if the month costs too much."""
    base = measure(folder / "base")
    month = measure(folder / "month", folder / "base")
    print(f"a month of {new:,} documents on a base of {documents:,}, {words} words each; one core")
    print(f"{'':>22} {'base':>12} {'month':>12} {'share':>8}")
    failures = []
    for name, unit, most in (
        ("CPU s", 1, MOST),
        ("seconds", 1, None),
        ("read, MB", 1e6, MOST),
        ("memory, MB", 1e6, 0.5),
    ):
        share = month[name] / base[name]
        print(f"{name:>22} {base[name] / unit:>12,.1f} {month[name] / unit:>12,.1f} {share:>8.2%}")
        if most is not None and share > most:
            failures.append(f"the month takes {share:.2%} of the base's {name}, over {most:.0%}")
    print(f"sketches kept: {base['sketches'] / documents:.0f} bytes a document; the month repeats {month['repeats']:,} "
          f"documents of the base, {month['candidates']:,} of which were candidates")  # fmt: skip
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures))


def measure(workdir: Path, *bases: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", str(workdir), *map(str, bases)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def run_stages(folder: str, *bases: str) -> dict[str, float]:
    """Run dedupe, export and tokenize over a working directory, in this process."""
    import apache_beam as _  # noqa: F401

    from owt_pipeline import progress
    from owt_pipeline.engine.runner import run_stages
    from owt_pipeline.engine.stage import Runtime
    from owt_pipeline.ledger.bases import pin
    from owt_pipeline.stages.dedupe.stage import STAGE as DEDUPE
    from owt_pipeline.stages.dedupe.stage import Options
    from owt_pipeline.stages.export.stage import STAGE as EXPORT
    from owt_pipeline.stages.export.stage import ExportOptions
    from owt_pipeline.stages.tokenize.stage import STAGE as TOKENIZE
    from owt_pipeline.stages.tokenize.stage import TokenizeOptions
    from owt_pipeline.storage.folder import Storage

    progress.configure(quiet=True, live=False)
    before, started, memory = spent(), time.perf_counter(), resident()
    workdir = Storage(folder)
    pin(workdir, bases)
    stages = [(DEDUPE, Options()), (EXPORT, ExportOptions()), (TOKENIZE, TokenizeOptions())]
    dedupe, *_others = run_stages(stages, Runtime(workdir))
    after = spent()
    stats = dedupe.manifest.stats
    return {
        "CPU s": after[0] - before[0],
        "seconds": time.perf_counter() - started,
        "read, MB": after[1] - before[1],
        "memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory,
        "sketches": dedupe.manifest.total("sketches").bytes,
        "repeats": stats.get("past_exact", 0) + stats.get("past_near", 0),
        "candidates": stats["past_candidates"],
    }


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def spent() -> tuple[float, int]:
    """CPU seconds of this process and its children, and the bytes that it has read."""
    read = next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar"))
    seconds = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return seconds, int(read.split()[1])


def base_texts(count: int, words: int) -> Iterator[str]:
    """Documents of random words; 5% are copies of an earlier one, 5% copies with one word replaced."""
    previous = ""
    for i, text in enumerate(random_texts(count, words, seed=0)):
        if i % 20 == 18:
            yield previous
        elif i % 20 == 19:
            yield replaced(previous, i)
        else:
            previous = text
            yield text


def month_texts(documents: int, words: int, new: int) -> Iterator[str]:
    """New documents; 1% are copies from the base, 1% copies with one word replaced."""
    repeated = iter(_chosen(documents, words, new // 50 + 2))
    for i, text in enumerate(random_texts(new, words, seed=1)):
        if i % 100 == 98:
            yield next(repeated)
        elif i % 100 == 99:
            yield replaced(next(repeated), i)
        else:
            yield text


def _chosen(documents: int, words: int, count: int) -> list[str]:
    """Documents from all parts of the base that are not copies."""
    wanted = set((np.linspace(0, documents // 20 - 1, count).astype(int) * 20).tolist())
    rng = np.random.default_rng(5)
    chosen = []
    for start in range(0, documents, _BATCH):
        inside = [i for i in range(start, min(start + _BATCH, documents)) if i in wanted]
        if inside:
            texts = list(_batch(start, min(_BATCH, documents - start), words, 0))
            chosen += [texts[i - start] for i in inside]
    rng.shuffle(chosen)
    return chosen


def random_texts(count: int, words: int, seed: int) -> Iterator[str]:
    for start in range(0, count, _BATCH):
        yield from _batch(start, min(_BATCH, count - start), words, seed)


def _batch(start: int, count: int, words: int, seed: int) -> Iterator[str]:
    """Documents from number `start` on, with words of realistic frequencies."""
    rng = np.random.default_rng([seed, start])
    cumulative = np.cumsum(1 / np.arange(10, VOCABULARY + 10))
    chosen = np.searchsorted(cumulative / cumulative[-1], rng.random(count * words))
    texts = pa.ListArray.from_arrays(np.arange(0, count * words + 1, words, np.int32), _WORDS.take(pa.array(chosen)))
    yield from pc.binary_join(texts, " ").to_pylist()


def _vocabulary() -> pa.Array:
    rng = np.random.default_rng(2)
    letters = np.array(list("etaoinshrdlu"))
    return pa.array(["".join(rng.choice(letters, size)) for size in rng.integers(2, 9, VOCABULARY)])


_WORDS = _vocabulary()


def replaced(text: str, number: int) -> str:
    """The text with one word replaced."""
    first, _, rest = text.partition(" ")
    return f"{first} x{number} {rest.partition(' ')[2]}"


if __name__ == "__main__":
    sys.exit(main())
