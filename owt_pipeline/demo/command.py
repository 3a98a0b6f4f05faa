"""`owt demo`: the complete job on one machine, offline, from a small web that it serves itself."""

from __future__ import annotations

import argparse
import importlib.util
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template

from owt_pipeline.command_line import Command, CommandParser, at_least
from owt_pipeline.commands import run, verify
from owt_pipeline.demo.inputs import (
    ARCHIVE_NAME,
    CRAWL,
    CRAWL_INDEX,
    DUMP_NAME,
    LATER_DUMP_NAME,
    all_expectations,
    write_archive,
    write_dump,
    write_later_dump,
)
from owt_pipeline.demo.server import serving
from owt_pipeline.demo.site import DOMAIN, Expectation, Site, build_site
from owt_pipeline.engine import workers
from owt_pipeline.formats.urls import BadURL, canonical_url
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.settings import to_toml

LATER = "month-2"
"""The folder of the second month's run, below the first's."""
TRAIN_SECONDS = 60
"""Training ends after this long on any machine, with a checkpoint: the trainer saves when it is asked to stop."""

_TRAINING = {
    "preset": "tiny",
    "batch_tokens": 1024,
    "max_steps": 100,
    "warmup_steps": 10,
    "val_every": 50,
    "val_windows": 16,
    "save_every": 50,
}


def _flags(parser: CommandParser) -> None:
    """Run the complete job offline: serve a small web on loopback, write a Reddit dump of its links,
    run every stage over real HTTP, verify the run, add a second month to it, train a small GPT-2 on both and
    let it write.

    examples:
      owt demo --workdir demo-run --workers 2
      owt demo --write_inputs inputs
    """
    parser.add_argument("--workdir", metavar="DIR", default="demo-run", help="folder of the run (default: demo-run)")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--workers", type=at_least(1), metavar="N", default=cores, help="processes (default: this machine's cores)"
    )
    parser.add_argument(
        "--write_inputs",
        metavar="DIR",
        help=f"write {DUMP_NAME} and {ARCHIVE_NAME}, the web's pages, into DIR, and stop: to try other commands on",
    )


def run_demo(workdir: str, workers: int) -> int:
    """Run the demo in the local folder `workdir`; returns 0 if all of it went as it should."""
    started = time.monotonic()
    folder = Path(workdir)
    site = build_site()
    if code := run_stages(site, folder, workers):
        return code
    expectations = all_expectations(site)
    checked = _check(folder, expectations)
    if code := run_later(site, folder, workers):
        return code
    checked_later = _check(folder / LATER, site.later_expectations)
    trained = _train(folder / LATER / "tokens", folder / "gpt2")
    _say(f"done in {time.monotonic() - started:.0f} s. The report: {folder / 'report' / 'index.html'}")
    shown = next(link.url for link in expectations if link.cluster)
    _say(f"ask about any page:  owt why {shown} --workdir {folder}")
    return checked or checked_later or trained


def _check(folder: Path, expectations: Sequence[Expectation]) -> int:
    """Verify a run; 0 if all of it holds and every link ended as expected."""
    _say(f"owt verify --workdir {folder}")
    code = verify.main(["--workdir", str(folder)])
    unexpected = deviations(expectations, Storage(str(folder)))
    print(*unexpected, sep="\n", end="\n" if unexpected else "")
    wrong = f"{len(unexpected)} of {len(expectations)} links did not end as expected"
    _say(wrong if unexpected else f"All {len(expectations)} links ended as expected")
    return code or bool(unexpected)


def run_stages(site: Site, folder: Path, workers: int) -> int:
    """Write the dump of `site` and a config.toml into `folder`, and `owt run` it; returns the exit code."""
    dump = folder / "dump" / DUMP_NAME
    _say(f"{dump} holds {write_dump(site, dump)} submissions")
    _say(f"they link to {len(site.answers)} pages on {len(site.hosts)} hosts, which this machine serves")
    _say(f"{len(site.archived)} pages are gone; a small Common Crawl, served too, has them")
    return _run(folder, dump, workers)


def run_later(site: Site, folder: Path, workers: int) -> int:
    """Write the next month's dump, and `owt run` it as a run that builds on that in `folder`; returns the exit code."""
    dump = folder / "dump" / LATER_DUMP_NAME
    submissions = write_later_dump(site, dump)
    _say(f"{dump}, a month later, holds {submissions} submissions; some link to pages that {folder} has")
    return _run(folder / LATER, dump, workers, base=folder)


def _run(folder: Path, dump: Path, workers: int, base: Path | None = None) -> int:
    """Serve the demo's web and `owt run` a config.toml in `folder`. The servers are given no rest between requests,
    since all hosts are on one address."""
    template = (resources.files("owt_pipeline.demo") / "templates" / "config.toml").read_text(encoding="utf-8")
    config = folder / "config.toml"
    folder.mkdir(exist_ok=True)
    with serving() as address:
        settings = Template(template).substitute(
            workdir=to_toml(str(folder)),
            workers=workers,
            base=f"base = {to_toml((str(base),))}\n" if base else "",
            dumps=to_toml((str(dump),)),
            cc_index=to_toml(CRAWL_INDEX),
            cc_crawls=to_toml((CRAWL,)),
            user_agent=to_toml(f"owt-demo/1.0 (+http://garden.{DOMAIN}/about)"),
            resolve=to_toml((f"*.{DOMAIN}={address}",)),
        )
        config.write_text(settings, encoding="utf-8")
        _say(f"owt run {config}")
        return run.main([str(config), "--adopt"])


def _demo(arguments: argparse.Namespace) -> int:
    if not arguments.write_inputs:
        return run_demo(arguments.workdir, arguments.workers)
    folder, site = Path(arguments.write_inputs), build_site()
    print(f"{folder / DUMP_NAME}: {write_dump(site, folder / DUMP_NAME)} submissions")
    print(f"{folder / ARCHIVE_NAME}: {write_archive(site, folder / ARCHIVE_NAME)} pages")
    return 0


def _train(data: Path, out: Path) -> int:
    """Train a small GPT-2 on tokens and let it write; 0 too where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        _say("no training: torch is not installed (pip install torch safetensors tensorboard)")
        return 0
    shutil.rmtree(out, ignore_errors=True)  # of an earlier demo
    flags = [f"--{key}={value}" for key, value in _TRAINING.items()]
    command = ["trainer.train", "--data", str(data), "--out", str(out), *flags]
    _say(f"python -m {' '.join(command)}")
    code, stopped = _python(command, TRAIN_SECONDS)
    reached = max((int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/step-*")), default=0)
    if problem := training_problem(code, stopped, reached):
        _say(problem)
        return 1
    command = ["trainer.tools.sample", str(out), "--prompt", "The object is", "--max_tokens", "60"]
    _say(f"python -m {' '.join(command)}")
    return _python(command)[0]


def training_problem(code: int, stopped: bool, reached: int) -> str:
    """What was wrong with a training that ended with `code` at the step `reached`, or "".

    Args:
      stopped: whether its time was up. The trainer saves and ends with 0 at anybody's SIGTERM, so its code alone
        does not say that it was trained.
    """
    if code:
        return f"training failed with exit status {code}"
    if reached and (stopped or reached == _TRAINING["max_steps"]):
        return ""
    return f"training was stopped at step {reached} of {_TRAINING['max_steps']}; run the same command again"


def _python(command: list[str], seconds: float | None = None) -> tuple[int, bool]:
    """Run `python -m command`, which does not outlive this process; its exit code, and whether `seconds` were up."""
    child = workers.start_child(partial(_become, command))
    stopped = not select.select([child.socket], [], [], seconds)[0]
    if stopped:
        os.kill(child.pid, signal.SIGTERM)
        select.select([child.socket], [], [])
    return child.end(), stopped


def _become(command: list[str], connection: socket.socket) -> None:
    os.set_inheritable(connection.fileno(), True)  # it is open until the command ends
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", *command])


def _say(message: str) -> None:
    print(f"\n==> {message}", flush=True)


KEPT = "kept"
_WITH_REJECTS = ("urls", "pages", "documents", "clean", "corpus", "tokens")


def deviations(expectations: Iterable[Expectation], workdir: Storage) -> list[str]:
    """One line for each link, or cluster of links, that did not end as expected.

    Raises UserError if a dataset of the run is missing.
    """
    found = verdicts(workdir)
    problems = []
    clusters: dict[str, list[str]] = defaultdict(list)
    for link in expectations:
        verdict, detail = found.get(_canonical(link.url), ("nowhere in the run", ""))
        expected = [str(reason) for reason in link.reasons] or [KEPT]
        if link.cluster:
            clusters[link.cluster].append(verdict)
            expected.append(KEPT)
        if verdict not in expected:
            problems.append(f"{link.url}: {verdict} ({detail}), should be {' or '.join(expected)}")
    for cluster, members in clusters.items():
        if members.count(KEPT) != 1:
            problems.append(
                f"{cluster}: {members.count(KEPT)} of {len(members)} kept, should be one: {Counter(members)}"
            )
    return problems


def verdicts(workdir: Storage) -> dict[str, tuple[str, str]]:
    """For each URL of the run: KEPT, or the reason it was rejected for, with the detail."""
    found: dict[str, tuple[str, str]] = {}
    for name in _WITH_REJECTS:
        reader = DatasetReader.open(workdir, name)
        for row in reader.table(kind="rejects", columns=["url", "reason", "detail"]).to_pylist():
            if row["url"] and row["reason"] != Reason.REPEATED_URL:
                found[row["url"]] = (row["reason"], row["detail"] or "")
    corpus = DatasetReader.open(workdir, "corpus")
    for url in corpus.table(columns=["url"])["url"].to_pylist():
        found.setdefault(url, (KEPT, ""))
    return found


def _canonical(url: str) -> str:
    """The URL as rows have it: canonical, or as posted where it has no canonical form."""
    try:
        return canonical_url(url)
    except BadURL:
        return url


main = Command("owt demo", _flags, _demo)
