"""Compares the estimates of `owt run --dry_run` with the actual run, for every dump of the real data.

    .venv/bin/python benchmarks/dry_run.py [--data DIR] [--workers 2]

Pages come from `web/wcxb-dev.warc.gz`. The last run builds on another one and reads a second dump. Times are CPU
seconds, which do not depend on other work on the machine. Exits 1 if the estimate of URLs is off by more than 30%, or
that of documents or seconds by more than a factor of 2.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these runs alone")
    arguments = parser.parse_args()
    reddit = arguments.data / "reddit"
    runs = {path.name: ([path], None) for path in sorted(reddit.iterdir()) if path.name.startswith(("RS_", "praw"))}
    runs["RS_wcxb-dev.zst and praw, on RS_wcxb-dev.zst"] = (
        [reddit / "RS_wcxb-dev.zst", reddit / "praw-submissions.ndjson.gz"],
        "RS_wcxb-dev.zst",
    )
    good = True
    print(f"{'dump':46}{'URLs':>18}{'documents':>18}{'core seconds':>18}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (dumps, base) in runs.items():
            if arguments.only and name not in arguments.only:
                continue
            run = Path(folder) / name.replace(" ", "_")
            command = [sys.executable, "-m", "owt_pipeline", "run", "--workdir", run, "--workers", arguments.workers]
            command += ["--dumps", *dumps, "--pages_from", arguments.data / "web" / "wcxb-dev.warc.gz"]
            command += ["--base", Path(folder) / base] if base else []
            shown = owt([*command, "--dry_run", "--log_json"])
            said = {step["stage"]: step for step in json.loads(shown)}
            before = core_seconds()
            owt([*command, "--quiet"])
            seconds = core_seconds() - before
            urls, documents = (
                json.loads((run / "ledger" / dataset / "manifest.json").read_text())["counts"]["left"]
                for dataset in ("urls", "corpus")
            )
            work = sum(step["core_seconds"] for step in said.values())
            expected = said["fetch"]["rows"], said["tokenize"]["rows"], work
            pairs = list(zip(expected, (urls, documents, seconds), strict=True))
            print(f"{name:46}" + "".join(f"{f'{said:,.0f} / {was:,.0f}':>17} " for said, was in pairs), flush=True)
            good &= off(expected[0], urls) <= 1.3 and off(expected[1], documents) <= 2
            good &= off(expected[2], seconds) <= 2
    return int(not good)


def off(expected: float, was: float) -> float:
    """The factor, at least 1, by which a forecast is wrong; 1 if both values are nearly zero."""
    return 1.0 if max(expected, was) < 10 else max(expected, was) / max(min(expected, was), 1e-9)


def core_seconds() -> float:
    """CPU seconds of the processes that have ended, with their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def owt(command: list[object]) -> str:
    done = subprocess.run(list(map(str, command)), check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: no document came out
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
