"""What do takedowns cost later runs?

    .venv/bin/python benchmarks/takedowns.py [--documents 10000] [--takedowns 1000]

1. Compare documents of 800 words with the fingerprints of as many forgotten texts as `--takedowns`,
   in this process. Prints the CPU milliseconds a document.
2. Import `--documents` documents, and finish a run. Take `--takedowns` of them down in a copy. Run
   `owt run --rules exact --workers 1` in both, which rebuilds corpus/ from clean/, and what follows
   it. Prints the CPU seconds of both.

Exits 1 if a comparison takes more than 0.15 ms, or the second run more than 1.5 times the first.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from owt_pipeline.engine.takedowns import fingerprints
from owt_pipeline.stages.export.forgotten_texts import ForgottenTexts

_MAX_MILLISECONDS = 0.15
_MAX_RATIO = 1.5
_WORDS = 800
_WORDS_IN_SENTENCE = 16


def make_text(rng: random.Random) -> str:
    """Return a text of random words, of which a few are frequent."""
    words = [f"{'aeiou'[n % 5]}{n}word"[: 3 + n % 7] for n in range(5000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    chosen = rng.choices(words, weights, k=_WORDS)
    sentences = []
    for start in range(0, _WORDS, _WORDS_IN_SENTENCE):
        sentences.append(" ".join(chosen[start : start + _WORDS_IN_SENTENCE]).capitalize())
    return ". ".join(sentences) + "."


def time_comparison(texts: list[str], num_forgotten: int) -> float:
    """Return the CPU milliseconds in which a text is compared, in the fastest of five rounds."""
    forgotten = ForgottenTexts(fingerprints(pa.array(texts[:num_forgotten])))
    documents = pa.array(texts[num_forgotten : num_forgotten + 2000])
    seconds = []
    for _ in range(5):
        started = time.process_time()
        assert not forgotten.matches(documents)
        seconds.append(time.process_time() - started)
    return min(seconds) / len(documents) * 1000


def owt(*words: object) -> float:
    """Run a command; return the CPU seconds of its process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "owt_pipeline", *map(str, words), "--quiet"]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_runs(texts: list[str], num_takedowns: int, folder: Path) -> tuple[float, float]:
    """Return the CPU seconds of a run without takedowns, and with them."""
    path = folder / "texts.jsonl"
    with path.open("w") as file:
        for number, text in enumerate(texts):
            url = f"https://site{number}.example.org/page"
            file.write(json.dumps({"url": url, "text": text}) + "\n")
    run = folder / "run"
    owt("import", run, path)
    owt("run", run, "--languages", "all")
    with_takedowns = folder / "with_takedowns"
    shutil.copytree(run, with_takedowns)
    urls = [f"https://site{number}.example.org/page\n" for number in range(num_takedowns)]
    (folder / "list.txt").write_text("".join(urls))
    owt("forget", with_takedowns, folder / "list.txt")
    # With one worker all is done in the process of the command, whose CPU time is known.
    change = ("--rules", "exact", "--workers", 1)
    return owt("run", run, *change), owt("run", with_takedowns, *change)


def main() -> int:
    """Print the figures; return 1 if one is above its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--takedowns", type=int, default=1000)
    arguments = parser.parse_args()
    rng = random.Random(0)
    num_texts = max(arguments.documents, arguments.takedowns + 2000)
    texts = [make_text(rng) for _ in range(num_texts)]
    milliseconds = time_comparison(texts, arguments.takedowns)
    print(f"comparison with {arguments.takedowns:,} texts: {milliseconds:.3f} ms a document")
    with tempfile.TemporaryDirectory() as folder:
        without, with_takedowns = time_runs(
            texts[: arguments.documents], arguments.takedowns, Path(folder)
        )
    ratio = with_takedowns / without
    print(
        f"`owt run --rules exact` on {arguments.documents:,} documents: {without:.1f} CPU seconds "
        f"without takedowns, {with_takedowns:.1f} with {arguments.takedowns:,} ({ratio:.2f} times)"
    )
    return int(milliseconds > _MAX_MILLISECONDS or ratio > _MAX_RATIO)


if __name__ == "__main__":
    sys.exit(main())
