"""`owt demo`: the complete job on one machine, offline, from a small web that it serves itself."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import zstandard

from owt_pipeline.command_line import Command, CommandParser, at_least
from owt_pipeline.commands import run, verify
from owt_pipeline.demo.server import serving
from owt_pipeline.ledger.root import read_root
from owt_pipeline.storage.folder import Storage
from schemas.settings import to_toml

INPUTS = ("RS_demo.zst", "demo.warc.gz")

SETTINGS = """\
[collect]
dumps = {dumps}
num_shards = 4

[fetch]
user_agent = "owt-demo/1.0 (+http://garden.demo.test/about)"
resolve = ["*.demo.test={address}"]
host_delay = 0.02
timeout = 4.0

[tokenize]
val_fraction = 0.05
"""

TRAINING = (
    "--preset=tiny --batch_tokens=1024 --max_steps=60 --warmup_steps=10 --val_every=30".split()
)


def _flags(parser: CommandParser) -> None:
    """Run the complete job offline: serve a small web on loopback, run every stage over real
    HTTP from a Reddit dump of its links, verify the run, train a small GPT-2 on it and let it
    write.

    examples:
      owt demo demo-run --workers 2
      owt demo --write_inputs inputs
    """
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        default="demo-run",
        help="folder of the run (default: demo-run)",
    )
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        default=cores,
        help="processes (default: this machine's cores)",
    )
    parser.add_argument(
        "--write_inputs",
        metavar="DIR",
        help=f"write {INPUTS[0]} and {INPUTS[1]}, the web's pages, into DIR, and stop: to try "
        f"other commands on",
    )


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.write_inputs:
        write_inputs(Path(arguments.write_inputs))
        return 0
    started = time.monotonic()
    folder = Path(arguments.run)
    if code := run_stages(folder, arguments.workers):
        return code
    _say(shlex.join(["owt", "verify", str(folder)]))
    if code := verify.main([str(folder)]):
        return code
    code = train(folder / "tokens", folder / "gpt2")
    _say(
        f"done in {time.monotonic() - started:.0f} s. The report: "
        f"{folder / 'report' / 'index.html'}"
    )
    _say(f"ask about any page:  owt why {folder} http://hermit.demo.test/a")
    return code


def write_inputs(folder: Path) -> None:
    """Copy the dump and the pages into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in INPUTS:
        content = (resources.files("owt_pipeline.demo") / name).read_bytes()
        (folder / name).write_bytes(content)
        print(f"{folder / name}: {len(content):,} bytes")


def run_stages(folder: Path, workers: int) -> int:
    """Serve the demo's web and `owt run` two generations of its links in `folder`; returns the
    exit code."""
    inputs = folder / ".inputs"
    write_inputs(inputs)
    lines = (
        zstandard.ZstdDecompressor(max_window_size=2**31)
        .stream_reader((inputs / INPUTS[0]).read_bytes())
        .read()
        .splitlines(True)
    )
    months = [str(inputs / f"RS_demo-{month}.jsonl") for month in (1, 2)]
    at = len(lines) * 4 // 5
    for path, some in zip(months, (lines[:at], lines[at:]), strict=True):
        Path(path).write_bytes(b"".join(some))
    with serving() as address:
        begun = len(read_root(Storage(str(folder)))[0].generations)
        for number, more in ((1, []), (2, ["--add"]))[max(begun - 1, 0) :]:
            settings = SETTINGS.format(dumps=to_toml(tuple(months[:number])), address=address)
            (folder / "config.toml").write_text(settings, encoding="utf-8")
            flags = [str(folder), str(folder / "config.toml"), *more]
            _say(f"owt run {shlex.join(map(str, flags))}")
            if code := run.main([*flags, "--workers", str(workers)]):
                return code
    return 0


def train(data: Path, out: Path) -> int:
    """Train a small GPT-2 on tokens and let it write; 0 too where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        _say("no training: torch is not installed (pip install torch safetensors)")
        return 0
    shutil.rmtree(out, ignore_errors=True)  # of an earlier demo
    sampling = ["trainer.tools.sample", str(out), "--prompt", "The object is", "--max_tokens", "60"]
    for command in (["trainer.train", "--data", str(data), "--out", str(out), *TRAINING], sampling):
        _say(f"python -m {shlex.join(map(str, command))}")
        if code := subprocess.run([sys.executable, "-m", *command], check=False).returncode:
            return code
    return 0


def _say(message: str) -> None:
    print(f"\n==> {message}", flush=True)


main = Command("owt demo", _flags, _demo)
