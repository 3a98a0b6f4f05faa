"""Which extractor and which filter give the text that trains the better model.

    .venv/bin/python benchmarks/ablation.py --folder DIR [--tokens 300000] [--seeds 3]

Six corpora are made from the same pages by `owt run`: two extractors, ours and trafilatura, each
with no filter, with `lines`, and with `fineweb`. Only these two settings differ. The pages are
WCXB's and trafilatura's labelled sets (`$OWT_TESTDATA/web`) without those of every fifth host.

`python -m trainer` trains a model of 0.8 million parameters on bytes of each corpus, with several
seeds. `benchmarks/compare.py` scores them on the first 400 characters of main texts that people
marked: WCXB's pages of the hosts left out, and Mozilla Readability's pages. Only English texts are
taken, and `owt run --decontaminate` removes documents that share 13 words in a row with them. Our
extractor's model was fitted on labels of all these pages, which trafilatura was not.

Corpora and models stay in the folder, so a repeated command continues. The table has each corpus,
each difference between two, and whether it exceeds chance. Then come the two settings by
themselves: the mean difference over the other setting's values, ± its deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import py3langid
import pyarrow.dataset
from compare import Scores, scores_of, table
from extraction_model.labelled_pages import LabelledPage, read_labelled
from extraction_model.validation import FETCHED_AT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from owt_pipeline.formats.warc import response_record
from trainer import TrainConfig, train

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))

EXTRACTORS = {"ours": "blocks", "trafilatura": "trafilatura"}
FILTERS: dict[str, tuple[str, ...]] = {"none": (), "lines": ("lines",), "fineweb": ("fineweb",)}

# One of this many parts of the hosts is left out of the corpora.
NUM_FOLDS = 5
# At equal cost, many short texts say more about a model than a few long ones.
MAX_EXCERPT = 400  # characters

# The preset and Muon learned most from few tokens when their pieces were measured.
MODEL: dict[str, Any] = {
    "preset": "speedrun",
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "block_size": 256,
    "optimizer": "muon",
    "learning_rate": 2e-3,
    "batch_tokens": 2048,
    "device": "cpu",
    "eval_every": 0,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="for all it makes"
    )
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data"
    )
    parser.add_argument(
        "--tokens", type=int, default=300_000, metavar="N", help="bytes that a model reads"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="models of each corpus")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read every Nth page")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()

    folder = arguments.folder.resolve()
    texts = write_inputs(read_labelled(arguments.data / "web")[:: arguments.every], folder)
    for extractor in EXTRACTORS:
        for filters in FILTERS:
            corpus = make_corpus(folder, extractor, filters, texts)
            print(f"{corpus.name}: {describe(corpus)}", flush=True)

    max_steps = max(1, arguments.tokens // MODEL["batch_tokens"])
    runs = []
    for seed in range(arguments.seeds):
        for name in corpus_names():
            run = folder / "models" / f"{name}-{seed}"
            settings = MODEL | {"seed": seed, "max_steps": max_steps, "dtype": arguments.dtype}
            train_model(folder / name / "tokens", run, settings)
            runs.append(str(run))
    scores = scores_of(runs, list(map(str, texts)), device="cpu", dtype=arguments.dtype)
    print(table(scores))
    print_settings(scores)
    return 0


def corpus_names() -> list[str]:
    """Return the names of the six corpora, which are those of their folders."""
    return [f"{extractor}-{filters}" for extractor in EXTRACTORS for filters in FILTERS]


def write_inputs(pages: Sequence[LabelledPage], folder: Path) -> list[Path]:
    """Write the pages to train on, the texts to score on and a tokenizer of bytes.

    Returns the files of texts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bytes.json").write_text(byte_tokenizer(), encoding="utf-8")
    training = [page for page in pages if page.set != "readability" and page.fold(NUM_FOLDS)]
    write_pages(training, folder / "pages.warc.gz")
    hosts = {page.host for page in training}
    print(f"{len(training):,} pages of {len(hosts):,} hosts to train on")

    paths = []
    for name in ("wcxb", "readability"):
        held_out = [page for page in pages if page.set == name]
        if name == "wcxb":
            held_out = [page for page in held_out if not page.fold(NUM_FOLDS)]
        excerpts = list(english_excerpts(held_out))
        lines = [json.dumps({"text": excerpt}) + "\n" for excerpt in excerpts]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        paths.append(path)
        num_bytes = sum(len(excerpt.encode()) for excerpt in excerpts)
        print(f"{name}: {len(excerpts):,} texts of {num_bytes:,} bytes to score on")
    return paths


def write_pages(pages: Iterable[LabelledPage], path: Path) -> None:
    """Write pages as records of a WARC file, unless it exists: its date enters the runs' keys."""
    if path.exists():
        return
    headers = [("Content-Type", "text/html; charset=utf-8")]
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        for page in pages:
            url = page.url if "://" in page.url else f"https://{page.host}/{page.url}"
            body = page.html.encode("utf-8", "replace")
            file.write(response_record(url, FETCHED_AT, "HTTP/1.1 200 OK", headers, body))
    part.rename(path)


def english_excerpts(pages: Iterable[LabelledPage]) -> Iterable[str]:
    """Yield the beginning of each page's main text, if it is English."""
    for page in pages:
        text = page.truth or ""
        if text and py3langid.classify(text)[0] == "en":
            yield text[:MAX_EXCERPT]


def byte_tokenizer() -> str:
    """Return a tokenizer.json whose tokens are the 256 bytes and end-of-text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {byte: number for number, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer.to_str()


def make_corpus(folder: Path, extractor: str, filters: str, texts: Sequence[Path]) -> Path:
    """Return the run of one extractor and one filter, made or continued."""
    run = folder / f"{extractor}-{filters}"
    if filters != "none" and not run.exists():
        # A copy shares the extracted texts, and reruns what the filter changes.
        copy = run.with_suffix(".part")
        shutil.copytree(folder / f"{extractor}-none", copy, dirs_exist_ok=True)
        copy.rename(run)
    pages = folder / "pages.warc.gz"
    command = [sys.executable, "-m", "owt_pipeline", "run", run, "--warcs", pages]
    command += ["--pages_from", pages, "--until", "tokenize", "--quiet", "--num_shards", 1]
    command += ["--extractor", EXTRACTORS[extractor], "--decontaminate", *texts]
    command += ["--tokenizer", folder / "bytes.json", "--val_fraction", 0]
    if FILTERS[filters]:
        command += ["--filters", *FILTERS[filters]]
    call(command)
    return run


def train_model(tokens: Path, run: Path, settings: dict[str, Any]) -> None:
    """Train a model, unless the folder has one. It is in this process, which saves the imports."""
    train(TrainConfig(data=(str(tokens),), out=str(run), **settings))
    print(f"{run.name} trained", flush=True)


def call(command: Sequence[object]) -> None:
    """Run a command; exits with its output if it fails."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def describe(run: Path) -> str:
    """Return how many documents and bytes a run's corpus has."""
    files = sorted(map(str, (run / "corpus").glob("*.parquet")))
    texts = pyarrow.dataset.dataset(files).to_table(["text"])["text"].to_pylist()
    return f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts):,} bytes"


def print_settings(scores: Scores) -> None:
    """Print the difference that each setting makes, averaged over the values of the other one."""
    for path, score_by_corpus in scores.items():
        bits = {
            corpus: [score_by_seed[seed].bits_per_byte for seed in sorted(score_by_seed)]
            for corpus, score_by_seed in score_by_corpus.items()
        }
        print(f"\n{Path(path).stem}, bits per byte, mean ± standard deviation over seeds")
        pairs = [(f"trafilatura-{name}", f"ours-{name}") for name in FILTERS]
        print(f"  ours − trafilatura: {mean_difference(bits, pairs)}")
        for name in FILTERS:
            if name == "none":
                continue
            pairs = [(f"{extractor}-none", f"{extractor}-{name}") for extractor in EXTRACTORS]
            print(f"  {name} − none: {mean_difference(bits, pairs)}")


def mean_difference(bits: dict[str, list[float]], pairs: Sequence[tuple[str, str]]) -> str:
    """Return the second corpus minus the first, averaged over the pairs, for each seed."""
    num_seeds = len(next(iter(bits.values())))
    by_seed = []
    for seed in range(num_seeds):
        differences = [bits[second][seed] - bits[first][seed] for first, second in pairs]
        by_seed.append(statistics.fmean(differences))
    deviation = statistics.stdev(by_seed) if num_seeds > 1 else 0.0
    return f"{statistics.fmean(by_seed):+.4f} ± {deviation:.4f}"


if __name__ == "__main__":
    sys.exit(main())
