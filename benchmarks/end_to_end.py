"""From WARC to tokens with 2 workers, compared with datatrove from the same WARC to a
deduplicated corpus.

    make bench-peers    # once: the peer's environment
    .venv/bin/python benchmarks/end_to_end.py [PAGES.warc.gz] [--workers 2] \
        [--repeats 1] [--no_peer]

Ours is `owt run` in a new folder, from the WARC's URLs to token shards; the complete command is
timed, with the interpreter's start, and once more when all is finished. The peer
(`peers/datatrove_end_to_end.py`) does less: it does not tokenize, and its imports and the splitting
of the WARC are not counted. They run in turns, never at the same time; the fastest repeat of each
counts. Exits 1 if ours is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage

REPOSITORY = Path(__file__).resolve().parent.parent
PEER = REPOSITORY / "benchmarks" / "peers" / "datatrove_end_to_end.py"
PEER_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    data = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    parser.add_argument(
        "warc", type=Path, nargs="?", default=data / "web" / "wcxb-dev.warc.gz", help="the pages"
    )
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="processes (default: 2)"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="runs of each (default: 1)"
    )
    parser.add_argument("--no_peer", action="store_true", help="measure ours alone")
    arguments = parser.parse_args()
    if not arguments.warc.is_file():
        parser.error(
            f"no WARC file {arguments.warc}: name one, or set OWT_TESTDATA to the folder of test "
            f"data"
        )
    if not arguments.no_peer and not PEER_PYTHON.exists():
        parser.error(f"no {PEER_PYTHON}: run `make bench-peers`, or give --no_peer")

    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"warning: the machine is busy (load {load:.1f}), and the peer gives each page one "
            f"second of wall clock"
        )

    warc = arguments.warc.resolve()
    ours, peers = [], []
    for _ in range(arguments.repeats):
        ours.append(measure_ours(warc, arguments.workers))
        if not arguments.no_peer:
            peers.append(measure_peer(warc, arguments.workers))
    own = min(ours, key=lambda run: run["seconds"])
    print(
        f"owt_pipeline, WARC to tokens:  {line(own)}, {own['tokens'] / own['seconds']:,.0f} "
        f"tokens/s"
    )
    print(
        "  "
        + ", ".join(
            f"{stage} {seconds:.1f} s" for stage, seconds in own["seconds_by_stage"].items()
        )
    )
    print(f"  the same command when all is finished {own['seconds_when_finished']:.2f} s")
    if not peers:
        return 0
    peer = min(peers, key=lambda run: run["seconds"])
    print(f"datatrove, WARC to documents:  {line(peer)}")
    print(
        "  "
        + ", ".join(f"{step} {seconds:.1f} s" for step, seconds in peer["seconds_by_step"].items())
    )
    ratio = peer["seconds"] / own["seconds"]
    print(f"ours is {ratio:.2f} times as fast, tokenizing included")
    return 0 if ratio > 1 else 1


def measure_ours(warc: Path, workers: int) -> dict[str, Any]:
    """One run of our stages over `warc`: seconds in all and by stage, pages, documents kept,
    tokens."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "-m", "owt_pipeline", "run", str(workdir), "--until", "tokenize"]
        command += ["--warcs", str(warc), "--pages_from", str(warc), "--workers", str(workers)]
        started = time.perf_counter()
        run(command)
        seconds = time.perf_counter() - started
        run(command)
        finished = time.perf_counter() - started - seconds
        log = [json.loads(entry) for entry in (workdir / "run-log.jsonl").read_text().splitlines()]
        tokens, urls = (
            require_manifest(Storage(str(workdir)), name) for name in ("tokens", "urls")
        )
        return {
            "seconds": seconds,
            "seconds_when_finished": finished,
            "seconds_by_stage": {
                entry["stage"]: entry["seconds"] for entry in log if "stage" in entry
            },
            "pages": urls.counts.entered,
            "documents_kept": tokens.counts.left,
            "tokens": tokens.stats["tokens_train"] + tokens.stats["tokens_val"],
        }


def measure_peer(warc: Path, workers: int) -> dict[str, Any]:
    """One run of the peer, as it reports itself."""
    return json.loads(run([str(PEER_PYTHON), str(PEER), str(warc), str(workers)]))  # type: ignore[no-any-return]


def run(command: list[str]) -> str:
    """The standard output of `command`; exits with its errors where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode:
        sys.exit(
            f"{' '.join(command)}\nfailed with exit code {done.returncode}:\n{done.stderr[-4000:]}"
        )
    return done.stdout


def line(result: dict[str, Any]) -> str:
    pages, seconds = result["pages"], result["seconds"]
    return (
        f"{pages:,} pages in {seconds:.1f} s, {pages / seconds:.1f} pages/s, "
        f"{result['documents_kept']:,} documents"
    )


if __name__ == "__main__":
    sys.exit(main())
