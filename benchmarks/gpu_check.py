"""Check the trainer on a GPU by one command, without a network; write gpu.md and gpu.json.

    make gpu-check        the core within 8 minutes: 124M next to nanoGPT, checkpoints, resuming,
                          as many tests as fit
    make gpu-check-all    every piece; each ends within 8 minutes
    python benchmarks/gpu_check.py [PIECE …] [--all] [--again] [--data TOKENS] [--out FOLDER]
    python benchmarks/gpu_check.py --tiny --device cpu --out FOLDER    tries the command itself

Each piece runs in processes of its own, and its result is written when it ends. So the same command
continues where it was interrupted, and tries a piece that failed again. A result counts for one
commit, GPU and torch. A rate is the median of three runs, and `spread` how far they lie apart. Next
to it are the driver, the clocks and the power limit. It needs torch 2.9 or later with CUDA, numpy,
pyarrow, msgspec and safetensors. The tests also need pytest-xdist and tokenizers. It exits with 1
if a piece failed, and with 3 if all ran and an aim was missed. The trainer's own command is timed,
on Python's standard library as text (`library_tokens`), or on `--data`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

try:
    import torch
    from gpu_pieces import PIECES, REPOSITORY, Check, Result
    from token_shards import library_tokens
except ImportError as error:
    sys.exit(
        f"gpu-check: {error}; give the Python that has torch with CUDA: make gpu-check PYTHON=…"
    )

MAX_SECONDS = 480  # of a piece, and of the core
TINY_FILES = 40  # of the standard library
# A step of a tiny model with GPT-2's vocabulary would be mostly its output layer.
TINY_VOCABULARY = 512
# Tokens/s of 124M on an H200.
MIN_RATE = 490_000
NEXT_AIM = 600_000
MIN_EFFICIENCY = 0.9  # of several GPUs
MAX_CHECKPOINT_SHARE = 0.02  # of the time of 1,000 steps
# Columns of gpu.md, and how they show a number.
COLUMNS = {
    "tokens_per_s": "{:,}",
    "mfu": "{:.1%}",
    "memory_gb": "{:.1f} GB",
    "compile_s": "{:.0f} s",
}
CONDITIONS = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


def main() -> int:
    """Run the pieces that have no result yet; return the exit status."""
    started = time.perf_counter()
    arguments = parse_arguments()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu-check: torch finds no CUDA device; run it where there is one")
    names = arguments.pieces
    if not names:
        names = [name for name, piece in PIECES.items() if piece.is_core or arguments.all]
    is_core = not arguments.all and not arguments.pieces
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = read_report(arguments)
    has_failed = False
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        tokens = arguments.data or tokens_for(Path(scratch) / "tokens", arguments.tiny)
        for name in names:
            if is_done(report, name) and not arguments.again:
                print(f"{name}: done already (--again measures it again)", flush=True)
                continue
            print(f"{name}: {PIECES[name].title} …", flush=True)
            start = time.perf_counter()
            deadline = MAX_SECONDS + start
            if is_core:
                # The pieces of the core share its time.
                deadline = MAX_SECONDS + started
            conditions_at_start = conditions(arguments.device)
            result = run_piece(name, arguments, tokens, Path(scratch) / name, deadline)
            result["conditions"] = conditions_at_start
            result["wall_s"] = round(time.perf_counter() - start, 1)
            has_failed = has_failed or "error" in result
            report["pieces"][name] = result
            write_report(report, arguments.out)
            print(f"{name}: {json.dumps(result)}", flush=True)
    failures = find_failures(report)
    missed_aims = find_missed_aims(report)
    for line in failures:
        print(f"failed: {line}")
    for line in missed_aims:
        print(f"missed aim: {line}")
    if failures or has_failed:
        return 1
    if missed_aims:
        return 3
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments; exit for a piece that does not exist."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "pieces", nargs="*", metavar="PIECE", help=f"of {', '.join(PIECES)} (default: the core)"
    )
    parser.add_argument("--all", action="store_true", help="every piece")
    parser.add_argument("--again", action="store_true", help="pieces that have a result, too")
    parser.add_argument("--data", type=Path, help="token shards for the rates (default: made up)")
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY / "benchmarks", help="folder of gpu.md and gpu.json"
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="a tiny model and a few steps: to try the command itself",
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.pieces) - set(PIECES))
    if unknown:
        parser.error(f"no piece {', '.join(unknown)}; known: {', '.join(PIECES)}")
    return arguments


def read_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return gpu.json; an empty report if it is of another machine, commit or size of model."""
    path = arguments.out / "gpu.json"
    machine = machine_of(arguments.device)
    if path.exists():
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if report.get("machine") == machine and report.get("tiny", False) == arguments.tiny:
            return report
    return {"machine": machine, "tiny": arguments.tiny, "pieces": {}}


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write gpu.json and gpu.md."""
    (folder / "gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(page(report), encoding="utf-8")


def is_done(report: dict[str, Any], name: str) -> bool:
    """Return whether a piece has a result that is not an error."""
    return name in report["pieces"] and "error" not in report["pieces"][name]


def tokens_for(folder: Path, is_tiny: bool) -> Path:
    """Write the standard library's tokens; a few of them for tiny runs."""
    if is_tiny:
        return library_tokens(folder, files=TINY_FILES, vocab_size=TINY_VOCABULARY)
    return library_tokens(folder, files=10**6)


def run_piece(
    name: str, arguments: argparse.Namespace, tokens: Path, scratch: Path, deadline: float
) -> Result:
    """Return the result of a piece; an `error` if it failed or was not finished in time."""
    scratch.mkdir()
    check = Check(
        scratch=scratch,
        data=tokens,
        device=arguments.device,
        is_tiny=arguments.tiny,
        deadline=deadline,
    )
    try:
        return PIECES[name].run(check)
    except subprocess.TimeoutExpired:
        return {"error": "not finished in the time that was left; the same command tries it again"}
    # Whatever stopped this piece, the next has its turn.
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def find_failures(report: dict[str, Any]) -> list[str]:
    """Return the pieces that do not work, with the reasons."""
    pieces = report["pieces"]
    failures = [f"{name}: {piece['error']}" for name, piece in pieces.items() if "error" in piece]
    for key in ("losses_equal", "weights_equal"):
        if not pieces.get("resume", {}).get(key, True):
            failures.append(f"resume: {key.replace('_', ' ')}: no")
    return failures


def find_missed_aims(report: dict[str, Any]) -> list[str]:
    """Return the aims of speed that were missed; none for tiny models."""
    if report["tiny"]:
        return []
    pieces = report["pieces"]
    missed = []
    of_124m = pieces.get("124M", {})
    rate = of_124m.get("tokens_per_s", MIN_RATE)
    if "H200" in report["machine"]["device"] and rate < MIN_RATE:
        missed.append(f"124M: {rate:,} tokens/s; the aim is {MIN_RATE:,}, and then {NEXT_AIM:,}")
    times = of_124m.get("times_nanogpt", 1)
    if times < 1:
        missed.append(f"124M: {times:.2f} times nanoGPT's rate; the aim is 1 at least")
    share = pieces.get("checkpoint", {}).get("share_at_1000_steps", 0)
    if share > MAX_CHECKPOINT_SHARE:
        missed.append(f"checkpoints take {share:.1%} of the time, not {MAX_CHECKPOINT_SHARE:.0%}")
    for name in ("all_gpus", "all_gpus_muon"):
        efficiency = pieces.get(name, {}).get("efficiency", 1)
        if efficiency < MIN_EFFICIENCY:
            missed.append(
                f"{name}: {efficiency:.0%} of the rates that the GPUs have one by one; the aim is "
                f"{MIN_EFFICIENCY:.0%}"
            )
    return missed


def conditions(device: str) -> Result:
    """Return the clocks and power by nvidia-smi; a rate depends on them, too."""
    if device != "cuda":
        return {"load": os.getloadavg()[0]}
    try:
        output = subprocess.check_output(
            ["nvidia-smi", f"--query-gpu={','.join(CONDITIONS)}", "--format=csv,noheader"],
            text=True,
        )
    # A machine without it still has rates.
    except (OSError, subprocess.CalledProcessError):
        return {}
    values = output.splitlines()[0].split(",")
    return dict(zip(CONDITIONS, (value.strip() for value in values), strict=False))


def machine_of(device: str) -> dict[str, str]:
    """Return the device, the versions and the commit that a result counts for."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    machine = {
        "device": "CPU",
        "torch": torch.__version__,
        "cuda": "",
        "commit": commit.stdout.strip() or "unknown",
    }
    if device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
        machine["cuda"] = str(torch.version.cuda)
    return machine


def page(report: dict[str, Any]) -> str:
    """Return gpu.md."""
    machine = report["machine"]
    origin = (
        f"{machine['device']}, torch {machine['torch']}, CUDA {machine['cuda'] or 'none'}, commit "
        f"{machine['commit'][:12]}."
    )
    if report["tiny"]:
        origin += " A tiny model, to try the command itself: no figure here means anything."
    lines = ["# On a GPU", "", f"{origin} `gpu.json` has the same.", ""]
    lines += ["| | tokens/s | MFU | memory | compiling | other |", "|---|---|---|---|---|---|"]
    lines += [row(name, result) for name, result in report["pieces"].items()]
    points = report["pieces"].get("curve", {}).get("curve")
    if points:
        lines += ["", "Validation loss, nats a token:", "", "| tokens | loss |", "|---|---|"]
        lines += [f"| {tokens:,} | {loss:.4f} |" for tokens, loss in points]
    lines.append("")
    lines += [f"- failed: {line}" for line in find_failures(report)]
    lines += [f"- missed aim: {line}" for line in find_missed_aims(report)]
    return "\n".join(lines) + "\n"


def row(name: str, result: Result) -> str:
    """Return a piece's row of the table: its columns, and all other values in the last one."""
    cells = [PIECES[name].title]
    for key, form in COLUMNS.items():
        value = result.get(key)
        cells.append("" if value is None else form.format(value))
    details = []
    for key, value in result.items():
        if key not in (*COLUMNS, "curve", "conditions"):
            details.append(f"{key} {shown(value)}")
    return f"| {' | '.join([*cells, ', '.join(details)])} |"


def shown(value: Any) -> str:
    """Return a value as the table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
