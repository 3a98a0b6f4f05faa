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
from owt_pipeline.errors import UserError, command
from owt_pipeline.ledger.root import read_root
from owt_pipeline.storage.folder import Storage
from schemas.settings import to_toml

INPUTS = ("RS_demo.zst", "demo.warc.gz")

# The folder of a demo's run for its inputs, by which a later demo recognises it.
_INPUTS_FOLDER = ".inputs"

# The hosts of the demo's web exist only on its server, so all are resolved to its address.
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
    "--preset=tiny --batch_tokens=1024 --max_steps=60 --warmup_steps=10 --eval_every=30".split()
)


def _flags(parser: CommandParser) -> None:
    """Run the complete pipeline offline. The demo serves a small web on loopback, runs every stage
    over real HTTP from a Reddit dump of links into that web, verifies the run, trains a small GPT-2
    on the tokens, and prints a sample of the model.

    examples:
      owt demo demo-run --workers 2
      owt demo --write_inputs inputs
    """
    parser.add_argument(
        "run",
        nargs="?",
        type=os.path.expanduser,
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
        type=os.path.expanduser,
        metavar="DIR",
        help=f"write {INPUTS[0]} (links) and {INPUTS[1]} (pages) into DIR, for trying other "
        "commands, and stop",
    )


def _demo(arguments: argparse.Namespace) -> int:
    """Run the demo, or only write its inputs; return the exit code."""
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
    _say(f"see what happened to a page:  owt why {folder} http://hermit.demo.test/a")
    return code


def write_inputs(folder: Path) -> None:
    """Copy the dump and the pages into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in INPUTS:
        content = (resources.files("owt_pipeline.demo") / name).read_bytes()
        (folder / name).write_bytes(content)
        print(f"{folder / name}: {len(content):,} bytes")


def run_stages(folder: Path, workers: int) -> int:
    """Serve the demo's web, and run two generations of its links in `folder`.

    A repeated call continues with the generation that was begun last. Returns the exit code of
    `owt run`.
    """
    _check_folder(folder)
    months = _write_months(folder / _INPUTS_FOLDER)
    settings_path = folder / "config.toml"
    root, _ = read_root(Storage(str(folder)))
    first_number = max(len(root.generations), 1)
    with serving() as address:
        for number in range(first_number, len(months) + 1):
            settings = SETTINGS.format(dumps=to_toml(tuple(months[:number])), address=address)
            settings_path.write_text(settings, encoding="utf-8")
            words = [str(folder), str(settings_path)]
            if number > 1:
                words.append("--add")
            _say(shlex.join(["owt", "run", *words]))
            if code := run.main([*words, "--workers", str(workers)]):
                return code
    return 0


def _check_folder(folder: Path) -> None:
    """Raise UserError for a folder with other files than those of an earlier demo."""
    if (folder / _INPUTS_FOLDER).exists() or not folder.exists():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    raise UserError(
        f"{folder} has other files than a demo, which would replace its config.toml: give a new "
        f"folder, as in {command('owt', 'demo', 'demo-run')}"
    )


def _write_months(folder: Path) -> list[str]:
    """Write the inputs and the dump's two parts, the months, into `folder`; return their paths."""
    write_inputs(folder)
    dump = (folder / INPUTS[0]).read_bytes()
    # Reddit's dumps are compressed with a window of 2 GiB, which zstd refuses by default.
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    lines = decompressor.stream_reader(dump).read().splitlines(keepends=True)
    num_first = len(lines) * 4 // 5
    paths = []
    for month, lines_of_month in ((1, lines[:num_first]), (2, lines[num_first:])):
        path = folder / f"RS_demo-{month}.jsonl"
        path.write_bytes(b"".join(lines_of_month))
        paths.append(str(path))
    return paths


def train(data: Path, out: Path) -> int:
    """Train a small GPT-2 on tokens, and let it write; return the exit code.

    Does nothing and returns 0 if torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        _say("skipped the training: torch is not installed (pip install torch safetensors)")
        return 0
    # An earlier demo may have left a model there.
    shutil.rmtree(out, ignore_errors=True)
    training = ["trainer", "--data", str(data), "--out", str(out), *TRAINING]
    sampling = ["trainer.sample", str(out), "--prompt", "The object is", "--max_tokens", "60"]
    for words in (training, sampling):
        _say(shlex.join(["python", "-m", *words]))
        finished = subprocess.run([sys.executable, "-m", *words], check=False)
        if finished.returncode:
            return finished.returncode
    return 0


def _say(message: str) -> None:
    """Print the demo's next step, apart from the output of the step before."""
    print(f"\n==> {message}", flush=True)


main = Command("owt demo", _flags, _demo)
