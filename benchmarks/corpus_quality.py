"""Compares models trained on texts of the same pages: ours, trafilatura's with FineWeb's filters, and all visible text.

    make bench-peers    # once: the environment of datatrove
    nice .venv/bin/python benchmarks/corpus_quality.py --folder DIR [--tokens 300000] [--seeds 3]    resumes in DIR

The pages of two labelled sets (`$OWT_TESTDATA/web`), except those of every fifth host, become three corpora:

    default      `owt run` with its default options
    datatrove    trafilatura, FineWeb's filters and MinHash deduplication, as in datatrove (`peers/`)
    visible      all visible text, by Resiliparse; then as `default`: English, at least 128 tokens, no near-duplicates

`python -m trainer.tools.compare` trains a model of a few million parameters on the bytes of each, with several seeds,
and evaluates it on the beginnings of main content marked by people: of WCXB's pages on the left-out hosts, and of all
of Mozilla Readability's pages, none of which is in a corpus. Excluded are texts in other languages than English, and
texts of which a tenth of the 13-word sequences occur in the visible text of a training page. Our extractor was fitted
on labels of these pages, including the left-out ones; the others were not."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import py3langid
import pyarrow.dataset
from extraction_model.labelled_pages import LabelledPage, read_labelled
from extraction_model.validation import FETCHED_AT
from resiliparse.extract.html2text import extract_plain_text
from train_pieces import bfloat16_here

from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.extract.extractor import Extracted, Page, Settings

REPOSITORY = Path(__file__).resolve().parents[1]
PEER = REPOSITORY / "benchmarks" / "peers" / "datatrove_end_to_end.py"
PEER_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
CORPORA = ("default", "datatrove", "visible")
FOLDS = 5  # of hosts; the first one is left out
RUN_OF_WORDS, MOST_KNOWN = 13, 0.1
# 4 layers of 256 over 257 ids: 3.3 million parameters.
MODEL = "--preset tiny --n_layer 4 --n_head 4 --width 256 --context 256 --rope --qk_norm --activation relu2".split()
# What learns most from few tokens, by train_pieces.py.
TRAINING = "--optimizer muon --learning_rate 2e-3 --batch_tokens 2048 --device cpu".split()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="everything is kept and continued here"
    )
    parser.add_argument("--tokens", type=int, default=300_000, metavar="N", help="bytes trained on (default: 300,000)")
    parser.add_argument("--excerpt", type=int, default=400, metavar="N", help="characters of each text (default: 400)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="models on each corpus (default: 3)")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=CORPORA, metavar="NAME")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read every Nth page only")
    parser.add_argument("--corpora_only", action="store_true", help="make the corpora and train nothing")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "pages.warc.gz").exists():
        write_inputs(read_labelled(arguments.data / "web")[:: arguments.every], folder)
    make = {"default": make_default, "datatrove": make_datatrove, "visible": make_visible}
    for name in arguments.corpora:
        make[name](folder, folder / name)
        print(f"{name}: {describe(folder / name)}", flush=True)
    if arguments.corpora_only:
        return 0
    texts = leave_out_known(folder, arguments.excerpt)
    data = [flag for name in arguments.corpora for flag in ("--data", str(folder / name / "tokens"))]
    compare = [sys.executable, "-m", "trainer.tools.compare", *data, "--out", str(folder / "comparison")]
    compare += ["--tokens", str(arguments.tokens), "--seeds", str(arguments.seeds), *MODEL, *TRAINING]
    compare += ["--no_eval_val", "--eval_tokens", "0", "--eval_text", *map(str, texts)]
    compare += ["--dtype", "bfloat16" if bfloat16_here() else "float32"]
    return subprocess.run(compare, cwd=REPOSITORY).returncode


def write_inputs(pages: list[LabelledPage], folder: Path) -> None:
    """The pages to train on as pages.warc.gz; the main text of the others as held-out-*.jsonl; the tokenizer."""
    training = [page for page in pages if page.set != "readability" and page.fold(FOLDS)]
    for name in ("wcxb", "readability"):
        texts = [page.truth for page in pages if page.set == name and (name == "readability" or not page.fold(FOLDS))]
        lines = [json.dumps({"text": text}) + "\n" for text in texts if text]
        (folder / f"held-out-{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "bytes.json").write_text(byte_tokenizer(), encoding="utf-8")
    part = folder / "pages.part"
    with part.open("wb") as file:
        for page in training:
            headers = [("Content-Type", "text/html; charset=utf-8")]
            url = page.url if "://" in page.url else f"https://{page.host}/{page.url}"
            file.write(response_record(url, FETCHED_AT, "HTTP/1.1 200 OK", headers, page.html.encode()))
    part.rename(folder / "pages.warc.gz")
    print(f"{len(training):,} pages to train on, of {len({page.host for page in training}):,} hosts")


def byte_tokenizer() -> str:
    """A tokenizer.json whose tokens are the 256 bytes and end-of-text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer.to_str()


def make_default(folder: Path, workdir: Path, *options: str) -> None:
    pages = str(folder / "pages.warc.gz")
    owt("run", "--workdir", workdir, "--warcs", pages, "--pages_from", pages, *options, *tokenizing(folder))


def make_visible(folder: Path, workdir: Path) -> None:
    make_default(folder, workdir, "--extractor", "corpus_quality:visible_text")


def make_datatrove(folder: Path, workdir: Path) -> None:
    texts = folder / "datatrove.jsonl"
    if not texts.exists():
        work = folder / "datatrove-work"
        subprocess.run(["rm", "-rf", work], check=True)  # datatrove takes what is there for its own
        peer = [PEER_PYTHON, PEER, folder / "pages.warc.gz", "--folder", work, "--fineweb", "--timeout", "30"]
        print(subprocess.run([*peer, "--workers", "1"], check=True, capture_output=True, text=True).stdout)
        part = folder / "datatrove.part"
        with part.open("w", encoding="utf-8") as out:
            for path in sorted((work / "deduplicated").glob("*.jsonl.gz")):
                for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()):
                    out.write(json.dumps({"url": row["metadata"]["url"], "text": row["text"]}) + "\n")
        part.rename(texts)
    owt("import", texts, "--workdir", workdir)
    owt("clean", "--workdir", workdir, "--no_fix_text", "--min_tokens", "0", "--languages", "all")
    for stage in ("dedupe", "export", "tokenize"):
        owt(stage, "--workdir", workdir, *(tokenizing(folder)[2:] if stage == "tokenize" else []))


def tokenizing(folder: Path) -> list[str]:
    own = ["--tokenizer", str(folder / "bytes.json"), "--val_fraction", "0"]
    return ["--until", "tokenize", *own]


def visible_text(settings: Settings) -> Callable[[Page], Extracted | None]:
    """An extractor for `owt extract`: every visible text of the page."""

    def extract(page: Page) -> Extracted | None:
        text = extract_plain_text(page.html, preserve_formatting=True, main_content=False, alt_texts=False)
        return Extracted(text) if text.strip() else None

    return extract


def owt(*arguments: object) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "benchmarks")}
    command = [sys.executable, "-m", "owt_pipeline", *map(str, arguments), "--workers", "1", "--quiet"]
    subprocess.run(command, check=True, env=environment, cwd=REPOSITORY)


def describe(workdir: Path) -> str:
    texts = list(documents(workdir))
    return f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts):,} bytes"


def documents(workdir: Path, name: str = "corpus") -> Iterator[str]:
    for batch in pyarrow.dataset.dataset(sorted(map(str, (workdir / name).glob("*.parquet")))).to_batches(["text"]):
        yield from batch.column("text").to_pylist()


def leave_out_known(folder: Path, excerpt: int) -> list[Path]:
    """Files of the first `excerpt` characters of held-out texts that hardly occur in the training pages.

    At equal cost, many short texts are more informative than a few long ones.
    """

    def runs(text: str) -> set[int]:
        words = text.split()
        return {hash(tuple(words[k : k + RUN_OF_WORDS])) for k in range(len(words) - RUN_OF_WORDS + 1)}

    known = set().union(*(runs(text) for text in documents(folder / "visible", "documents")))
    found = []
    for name in ("wcxb", "readability"):
        path = folder / f"{name}.jsonl"
        lines = (folder / f"held-out-{name}.jsonl").read_text(encoding="utf-8").splitlines()
        own = [(line, runs(json.loads(line)["text"])) for line in lines]
        kept = [line for line, words in own if len(words & known) <= MOST_KNOWN * len(words)]
        kept = [line for line in kept if py3langid.classify(json.loads(line)["text"])[0] == "en"]
        texts = [json.loads(line)["text"][:excerpt] for line in kept]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        print(f"{name}: {len(kept):,} of {len(lines):,} texts are English and in no corpus")
        found += [path] if kept else []
    return found


if __name__ == "__main__":
    sys.exit(main())
