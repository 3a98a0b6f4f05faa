"""What a run takes at scale.

    python benchmarks/scale.py simulate [--run FOLDER] [--prices vcpu_hour=0.05]

`simulate`: 10, 50 and 200 workers for OpenWebText, 23 million URLs of which 8 million become documents, and for ten
times that, from the rates that `owt run --dry_run` uses: those of a run's log (`--run`), or those that ship.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from owt_pipeline.commands.estimate import FOREST_SECONDS, Machines, Prices, Work, forecast, rate_of, read_log, table
from owt_pipeline.engine.storage import Storage

URLS, DOCUMENTS = 23_000_000, 8_000_000  # of OpenWebText: what was collected, what was left
SUBMISSIONS = 450_000_000  # on Reddit until the end of 2017, in 151 monthly dumps
DUMPS, LARGEST_DUMP = 151, 12_000_000  # submissions of the largest
ROWS_PER_SHARD = 10_000
STEPS = {"collect": 2, "dedupe": 7, "report": 4}
"""Rounds of parts, each of which waits for the one before; of the other stages it is one."""


def works(scale: float, run: str | None) -> list[Work]:
    """What each stage has to do for `scale` times OpenWebText."""
    log = read_log(Storage(run)) if run else []
    fetched = 0.75  # of URLs that old
    rows = {
        "collect": SUBMISSIONS * scale,
        "fetch": URLS * scale,
        "extract": URLS * scale * fetched,
        "clean": URLS * scale * fetched,
        "dedupe": DOCUMENTS * scale / 0.8,  # near-duplicates are taken out of these
        "export": DOCUMENTS * scale / 0.8,
        "tokenize": DOCUMENTS * scale,
        "report": DOCUMENTS * scale,
    }
    shards = min(round(URLS * scale / ROWS_PER_SHARD), 65_535)
    found = []
    for stage, entered in rows.items():
        rate = rate_of(stage, log)
        found.append(
            Work(
                stage,
                shards,
                entered / rate.rows_per_second,
                steps=STEPS.get(stage, 1),
                alone=entered * FOREST_SECONDS if stage == "dedupe" else 0.0,
                longest=STEPS["collect"] * LARGEST_DUMP / rate.rows_per_second if stage == "collect" else 0.0,
            )
        )
    return found


def simulate(arguments: argparse.Namespace) -> int:
    prices = Prices.from_flags(arguments.prices)
    for scale in (1, 10):
        print(f"{URLS * scale:,} URLs, {DOCUMENTS * scale:,} documents")
        for workers in arguments.workers:
            machines = Machines(workers, arguments.machine_type)
            print(table(forecast(works(scale, arguments.run), machines, prices), machines), end="\n\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("simulate")
    command.add_argument("--run", help="a run whose log has the rates (default: those that ship)")
    command.add_argument("--workers", type=int, nargs="+", default=[10, 50, 200])
    command.add_argument("--machine_type", default="n2-standard-4")
    command.add_argument("--prices", nargs="+", default=[], metavar="NAME=DOLLARS")
    command.set_defaults(run_command=simulate)
    arguments = parser.parse_args(argv)
    return int(arguments.run_command(arguments))


if __name__ == "__main__":
    sys.exit(main())
