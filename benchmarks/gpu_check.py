"""All that is to be shown on a GPU, by one command, without a network: benchmarks/gpu.md and
gpu.json.

    make gpu-check        the core, within 8 minutes: 124M next to nanoGPT, checkpoints,
                          resuming, as many tests as fit
    make gpu-check-all    all of it; each piece ends within 8 minutes
    python benchmarks/gpu_check.py [PIECE …] [--all] [--again] [--data TOKENS] [--out FOLDER]
    python benchmarks/gpu_check.py --tiny --device cpu --out FOLDER    tries the command itself

Each piece runs in processes of its own, and its result is written as soon as it is there: the same
command continues where it was interrupted, and a piece that failed is tried again. A result counts
for one commit, GPU and torch. A rate is the median of three runs, and `spread` how far they lie
apart; next to it are the driver, the clocks and the power limit. Needs torch 2.9 or later with
CUDA, numpy, pyarrow and safetensors; the tests also pytest-xdist and tokenizers. Exits 1 where a
piece failed, and 3 where all ran and an aim was missed. Rates are those of the trainer's own
command on Python's standard library as text (`library_tokens`), or on `--data`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import torch
    from token_shards import library_tokens
    from trainer_flags import TINY, flags_of
except ImportError as error:
    sys.exit(
        f"gpu-check: {error}; give the Python that has torch with CUDA: make gpu-check PYTHON=…"
    )

REPOSITORY = Path(__file__).resolve().parent.parent
SECONDS = 480  # of a piece at most, and of the core
# Of a tiny run: two of the checkpoint's intervals, and the resumed run's eight.
TINY_STEPS = 8
TINY_INTERVAL = 4  # steps between its checkpoints
TINY_VOCABULARY = 512  # most of a tiny step would be the output layer
DETERMINISTIC = (
    "import sys, torch; torch.use_deterministic_algorithms(True); "
    "from trainer.training import main; sys.exit(main(sys.argv[1:]))"
)
TRAIN = ("-m", "trainer.train")
SPEEDRUN = (*TRAIN, "presets/speedrun.toml")
Result = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """What the pieces have in common."""

    scratch: Path  # a folder for tokens and runs
    data: Path  # token shards to measure rates on
    device: str
    tiny: bool  # the smallest model and a few steps, to try the command itself
    deadline: float  # when the piece must have ended, by `time.perf_counter`

    @property
    def micro_batch(self) -> int:
        """Windows of a forward pass that fit in the GPU's memory."""
        return (
            32
            if self.device == "cuda" and torch.cuda.get_device_properties(0).total_memory > 70e9
            else 8
        )

    def train(
        self, name: str, *flags: object, steps: int, launcher: tuple[str, ...] = TRAIN
    ) -> Path:
        """Run the trainer by its command; return its folder, to which it adds output.txt."""
        run = self.scratch / name
        common = flags_of(
            data=self.data,
            out=run,
            device=self.device,
            val_every=0,
            save_every=0,
            micro_batch=self.micro_batch,
        )
        last = flags_of(max_steps=min(steps, TINY_STEPS) if self.tiny else steps)
        if self.tiny:
            last += flags_of(**TINY, compile=False)
        output = self.call(*launcher, *common, *flags, *last)
        (run / "output.txt").write_text(output, encoding="utf-8")
        return run

    def call(self, *arguments: object) -> str:
        """What Python printed with `arguments`; raises RuntimeError with the end of it if it
        fails."""
        done = self.run(*arguments)
        if done.returncode:
            lines = done.stdout.splitlines()
            errors = [
                line for line in lines if re.search(r"Error|FAILED|trainer\.\w+: ", line)
            ] or lines
            raise RuntimeError(f"exit code {done.returncode}: {' / '.join(errors[-4:])[-600:]}")
        return done.stdout

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Python with `arguments`; raises TimeoutExpired, with what it had printed, at the
        deadline."""
        sources = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sources),
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                # More threads would only wait for each other on so little work.
                **({"OMP_NUM_THREADS": "1"} if self.tiny else {}),
            },
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(1.0, self.deadline - time.perf_counter()),
            check=False,
        )


def records(run: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def rates(run: Path) -> Result:
    """The median rate after the first intervals, which hold the compilation; and what those took
    longer."""
    found = records(run)
    first = min(10, len(found) // 2)  # steps of the first progress line
    warm = found[first:]
    seconds = [record["tokens"] / record["tokens_per_s"] for record in found]
    early, settled = seconds[:first], statistics.median(seconds[first:])
    return {
        "tokens_per_s": round(statistics.median(record["tokens_per_s"] for record in warm)),
        "mfu": warm[-1]["mfu"],
        "memory_gb": round(max(record["memory_gb"] for record in found), 2),
        "compile_s": round(sum(max(0.0, own - settled) for own in early), 1),
        "micro_batch": int(
            re.findall(r"micro-batch(?:es)? of (\d+)", (run / "output.txt").read_text())[-1]
        ),
        "loss": round(found[-1]["loss"], 4),
    }


def repeated(check: Check, measure: Callable[[int], Result]) -> Result:
    """The result whose rate is the median of three, the rates of all, and how far they lie apart.

    Fewer than three where another one would not end before the deadline.
    """
    found: list[Result] = []
    for number in range(1 if check.tiny else 3):
        start = time.perf_counter()
        found.append(measure(number))
        if time.perf_counter() + 1.2 * (time.perf_counter() - start) > check.deadline:
            break
    found.sort(key=lambda result: result["tokens_per_s"])
    every = [result["tokens_per_s"] for result in found]
    return {
        **found[len(found) // 2],
        "rates": every,
        "spread": (every[-1] - every[0]) / every[len(every) // 2],
    }


def rate_of(
    preset: str,
    *flags: object,
    steps: int = 20,
    batch: int = 524288,
    launcher: tuple[str, ...] = TRAIN,
) -> Callable[[Check], Result]:
    """A piece: the trainer's rate with `flags`."""
    common = (*(("--preset", preset) if preset else ()), "--batch_tokens", batch, *flags)
    return lambda check: repeated(
        check,
        lambda number: rates(
            check.train(f"rate-{number}", *common, steps=steps, launcher=launcher)
        ),
    )


def on_ranks(ranks: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *TRAIN)


def next_to_nanogpt(check: Check) -> Result:
    """The trainer's rate and nanoGPT's, in turns, on the same tokens."""
    peers: list[Result] = []

    def measure(number: int) -> Result:
        size = ("--shape", 2, 2, 32, 32, "--batch_tokens", 256) if check.tiny else ()
        size += ("--windows", check.micro_batch)
        output = check.call(
            "benchmarks/peers/nanogpt.py",
            "--data",
            check.data,
            "--device",
            check.device,
            "--steps",
            TINY_STEPS if check.tiny else 12,
            *size,
        )
        peers.append(json.loads(output.splitlines()[-1]))
        return rates(
            check.train(f"rate-{number}", "--preset", "124M", "--batch_tokens", 524288, steps=20)
        )

    result = repeated(check, measure)
    theirs = sorted(statistics.median(peer["rates"]) for peer in peers)
    return result | {
        "nanogpt_tokens_per_s": round(theirs[len(theirs) // 2]),
        "nanogpt_spread": (theirs[-1] - theirs[0]) / theirs[len(theirs) // 2],
        "times_nanogpt": result["tokens_per_s"] / theirs[len(theirs) // 2],
    }


def scaling(*flags: object) -> Callable[[Check], Result]:
    """A piece: the rate of every GPU of the machine together, and its share of as many times one
    GPU's."""

    def run(check: Check) -> Result:
        ranks = torch.cuda.device_count() if check.device == "cuda" else 2
        if ranks == 1:
            return {"note": "one GPU here: nothing to scale to"}
        one = rates(
            check.train("one", "--preset", "124M", "--batch_tokens", 524288, *flags, steps=20)
        )
        result = rate_of("124M", *flags, batch=524288, launcher=on_ranks(ranks))(check)
        return result | {
            "ranks": ranks,
            "efficiency": result["tokens_per_s"] / (ranks * one["tokens_per_s"]),
        }

    return run


def tests(check: Check) -> Result:
    """How many of the tests marked gpu passed; those that did by the deadline, where not all had
    run."""
    # The file alone, without pyproject's options: other tests want packages that a GPU's machine
    # may lack.
    folder = "tests/trainer"
    workers = "-n1" if check.tiny else "-n4"
    options = ("-v", workers, "-o", "addopts=", "--import-mode=importlib", "--confcutdir", folder)
    problem = ""
    try:
        output = check.run(
            "-u", "-m", "pytest", f"{folder}/test_gpu.py", *options, "-p", "no:cacheprovider"
        ).stdout
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        output = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
        problem = "not all ran in the time that was left"
    found = re.findall(
        r"^\[gw.*\b(PASSED|FAILED|ERROR|SKIPPED) \S+?::(.+?) *$", output, re.MULTILINE
    )
    outcomes = [outcome for outcome, _ in found]
    bad = [name for outcome, name in found if outcome in ("FAILED", "ERROR")]
    result = {
        "passed": outcomes.count("PASSED"),
        "failed": len(bad),
        "skipped": outcomes.count("SKIPPED"),
    }
    if bad:
        problem = (
            f"{', '.join(bad)}: {' / '.join(re.findall('^E  .*', output, re.MULTILINE))[-600:]}"
        )
    elif not problem and not (result["passed"] or (found and check.tiny)):
        problem = f"no test ran: {' / '.join(output.splitlines()[-2:])}"
    return result | ({"error": problem} if problem else {})


def checkpoint_cost(check: Check) -> Result:
    """How long the loop waits for a checkpoint, and how much slower the steps are while it is
    being written."""
    every = TINY_INTERVAL if check.tiny else 20
    flags = ("--preset", "124M", "--batch_tokens", 524288, "--save_every", every)
    run = check.train("saved", *flags, steps=3 * every, launcher=("-c", TIMED))
    seconds = [record["tokens"] / record["tokens_per_s"] for record in records(run)]
    # The first save pins its memory; the last is at the end, where the run waits for it.
    waits = json.loads((run / "waits.json").read_text())
    # Rates are those of ten steps: the first ten after a save, and the others before the next.
    late = [(step % every, own) for step, own in enumerate(seconds) if step >= every]
    quiet = statistics.median(own for step, own in late if step >= every // 2)
    after = statistics.median(own for step, own in late if step < every // 2)
    slower = max(0.0, after - quiet) * (every // 2)
    cost = statistics.median(waits[1:] or waits) + slower
    return {
        "first_wait_s": round(waits[0], 6),
        "wait_s": round(statistics.median(waits[1:] or waits), 6),
        "slower_after_s": round(slower, 3),
        "share_at_1000_steps": cost / (1000 * quiet),
        "step_s": round(quiet, 4),
    }


TIMED = """
import json, sys, time
from pathlib import Path
from trainer import checkpoint, training
save, waits = checkpoint.Saver.save, []
def timed(self, *arguments, **named):
    start = time.perf_counter()
    save(self, *arguments, **named)
    waits.append(time.perf_counter() - start)
checkpoint.Saver.save = timed
if training.main(sys.argv[1:]):
    sys.exit(1)
Path(sys.argv[sys.argv.index("--out") + 1], "waits.json").write_text(json.dumps(waits))
"""


def resumed(check: Check) -> Result:
    """Whether a run that is cut in the middle has the losses and weights of one that is not, bit
    for bit."""
    flags = ("--preset", "124M", "--batch_tokens", 65536, "--save_every", 4)
    launcher = ("-c", DETERMINISTIC)
    complete = check.train("complete", *flags, steps=8, launcher=launcher)
    shutil.copytree(complete, check.scratch / "cut")
    shutil.rmtree(check.scratch / "cut" / "checkpoints" / "step-00000008")
    cut = check.train("cut", *flags, steps=8, launcher=launcher)
    same = [
        [[record[key] for record in records(run)] for key in ("loss", "grad_norm")]
        for run in (complete, cut)
    ]
    weights = "checkpoints/step-00000008/model.safetensors"
    return {
        "losses_equal": same[0] == same[1],
        "weights_equal": (complete / weights).read_bytes() == (cut / weights).read_bytes(),
        "steps": len(records(cut)),
    }


def curve(check: Check) -> Result:
    """Three minutes of training."""
    seconds = 5 if check.tiny else 180
    flags = ("--preset", "124M", "--batch_tokens", 65536, "--val_every", 6 if check.tiny else 50)
    quick = rates(check.train("probe", *flags, "--val_every", 0, steps=20))
    steps = max(10, int(seconds * quick["tokens_per_s"] / 65536))
    started = time.perf_counter()
    run = check.train("curve", *flags, "--warmup_steps", max(1, steps // 50), steps=steps)
    points = [
        (r["step"] * r["tokens"], round(r["val_loss"], 4)) for r in records(run) if "val_loss" in r
    ]
    return {
        **rates(run),
        "seconds": round(time.perf_counter() - started),
        "first_loss": round(records(run)[0]["loss"], 4),
        "curve": points[:: max(1, len(points) // 12)],
    }


@dataclass(frozen=True)
class Piece:
    """A piece of the check; `core` ones are what `make gpu-check` runs."""

    title: str
    run: Callable[[Check], Result]
    core: bool = False


# In the order in which they run: what the end of the core cuts off is the tests, of which a part is
# a result, too.
PIECES: dict[str, Piece] = {
    "124M": Piece("124M, packed", next_to_nanogpt, core=True),
    "checkpoint": Piece("checkpoint cost, 124M", checkpoint_cost, core=True),
    "resume": Piece("resume, 124M", resumed, core=True),
    "tests": Piece("tests marked gpu", tests, core=True),
    "all_gpus": Piece("124M on every GPU, DDP", scaling()),
    "all_gpus_muon": Piece("124M on every GPU, Muon", scaling("--optimizer", "muon")),
    "longbiased": Piece("124M, longbiased", rate_of("124M", "--sampler", "longbiased")),
    "mask": Piece("124M, document mask", rate_of("124M", "--document_mask")),
    "muon": Piece("124M, Muon", rate_of("124M", "--optimizer", "muon")),
    "prettybig": Piece(
        "PrettyBig, checkpointed",
        rate_of("prettybig", "--save_every", 10, "--micro_batch", 8, steps=15, batch=131072),
    ),
    "1.5B": Piece(
        "1.5B, checkpointed, activations recomputed",
        rate_of(
            "1.5B",
            "--save_every",
            10,
            "--micro_batch",
            8,
            "--checkpoint_activations",
            steps=15,
            batch=65536,
        ),
    ),
    "speedrun": Piece("presets/speedrun.toml", rate_of("", launcher=SPEEDRUN)),
    "curve": Piece("three minutes of training", curve),
}
AIM, STRETCH = 490_000, 600_000  # tokens/s of 124M on an H200


def main() -> int:
    started = time.perf_counter()
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
    if unknown := set(arguments.pieces) - set(PIECES):
        parser.error(f"no piece {', '.join(sorted(unknown))}; known: {', '.join(PIECES)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu-check: torch finds no CUDA device; run it where there is one")
    wanted = arguments.pieces or [
        name for name, piece in PIECES.items() if piece.core or arguments.all
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path, machine = arguments.out / "gpu.json", machine_of(arguments.device)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if found.get("machine") != machine or found.get("tiny", False) != arguments.tiny:
        found = {"machine": machine, "tiny": arguments.tiny, "pieces": {}}
    failed, together = False, not arguments.all and not arguments.pieces
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        tokens = arguments.data or tokens_for(Path(scratch) / "tokens", arguments.tiny)
        for name in wanted:
            if "error" not in found["pieces"].get(name, {"error": ""}) and not arguments.again:
                print(f"{name}: done already (--again measures it anew)", flush=True)
                continue
            print(f"{name}: {PIECES[name].title} …", flush=True)
            start, before = time.perf_counter(), conditions(arguments.device)
            deadline = (started if together else start) + SECONDS
            result = in_time(name, arguments, tokens, Path(scratch) / name, deadline)
            result |= {"conditions": before, "wall_s": round(time.perf_counter() - start, 1)}
            failed |= "error" in result
            found["pieces"][name] = result
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            (arguments.out / "gpu.md").write_text(page(found), encoding="utf-8")
            print(f"{name}: {json.dumps(result)}", flush=True)
    failures, missed = verdict(found)
    print(
        "".join(
            [f"failed: {line}\n" for line in failures]
            + [f"missed aim: {line}\n" for line in missed]
        ),
        end="",
    )
    return 1 if failures or failed else 3 if missed else 0


def tokens_for(folder: Path, tiny: bool) -> Path:
    """Write the standard library's tokens; a few of them for tiny runs."""
    if tiny:
        return library_tokens(folder, files=40, vocab_size=TINY_VOCABULARY)
    return library_tokens(folder, files=10**6)


def in_time(
    name: str, arguments: argparse.Namespace, tokens: Path, scratch: Path, deadline: float
) -> Result:
    """The result of a piece; an `error` where it failed or was not finished at the deadline."""
    scratch.mkdir()
    check = Check(scratch, tokens, arguments.device, arguments.tiny, deadline)
    try:
        return PIECES[name].run(check)
    except subprocess.TimeoutExpired:
        return {"error": "not finished in the time that was left; the same command tries it again"}
    except Exception as error:  # of a piece: the next has its turn
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def verdict(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(what does not work, which aims of speed the pieces that do missed)."""
    pieces = found["pieces"]
    failures = [
        f"{name}: {result['error']}" for name, result in pieces.items() if "error" in result
    ]
    for key in ("losses_equal", "weights_equal"):
        if not pieces.get("resume", {}).get(key, True):
            failures.append(f"resume: {key.replace('_', ' ')}: no")
    if found["tiny"]:
        return failures, []
    missed, first = [], pieces.get("124M", {})
    if "H200" in found["machine"]["device"] and first.get("tokens_per_s", AIM) < AIM:
        missed.append(
            f"124M: {first['tokens_per_s']:,} tokens/s; the aim is {AIM:,}, and then {STRETCH:,}"
        )
    if first.get("times_nanogpt", 1) < 1:
        missed.append(
            f"124M: {first['times_nanogpt']:.2f} times nanoGPT's rate; the aim is 1 at least"
        )
    if pieces.get("checkpoint", {}).get("share_at_1000_steps", 0) > 0.02:
        missed.append(
            f"checkpoints take {pieces['checkpoint']['share_at_1000_steps']:.1%} of the time, not "
            f"2%"
        )
    for name in ("all_gpus", "all_gpus_muon"):
        if pieces.get(name, {}).get("efficiency", 1) < 0.9:
            missed.append(
                f"{name}: {pieces[name]['efficiency']:.0%} of the GPUs' rates alone; the aim is 90%"
            )
    return failures, missed


def conditions(device: str) -> Result:
    """What a rate depends on, apart from the code: clocks and power limit, as nvidia-smi reports
    them."""
    if device != "cuda":
        return {"load": os.getloadavg()[0]}
    fields = (
        "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
    )
    try:
        found = subprocess.check_output(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], text=True
        )
    except (OSError, subprocess.CalledProcessError):  # a machine without it still has rates
        return {}
    return dict(
        zip(fields.split(","), map(str.strip, found.splitlines()[0].split(",")), strict=False)
    )


def machine_of(device: str) -> dict[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    name, cuda = (
        (torch.cuda.get_device_name(), str(torch.version.cuda)) if device == "cuda" else ("CPU", "")
    )
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": cuda,
        "commit": commit.stdout.strip() or "unknown",
    }


def page(found: dict[str, Any]) -> str:
    """gpu.md."""
    machine = found["machine"]
    own = f"{machine['device']}, torch {machine['torch']}, CUDA {machine['cuda'] or 'none'}"
    tiny = (
        " A tiny model, to try the command itself: no figure here means anything."
        if found["tiny"]
        else ""
    )
    lines = [
        "# On a GPU",
        "",
        f"{own}, commit {machine['commit'][:12]}.{tiny} `gpu.json` has the same.",
        "",
    ]
    lines += ["| | tokens/s | MFU | memory | compiling | other |", "|---|---|---|---|---|---|"]
    columns = {
        "tokens_per_s": "{:,}",
        "mfu": "{:.1%}",
        "memory_gb": "{:.1f} GB",
        "compile_s": "{:.0f} s",
    }
    for name, result in found["pieces"].items():
        cells = [
            form.format(result[key]) if result.get(key) is not None else ""
            for key, form in columns.items()
        ]
        others = {
            key: value
            for key, value in result.items()
            if key not in {*columns, "curve", "conditions"}
        }
        rest = ", ".join(f"{key} {shown(value)}" for key, value in others.items())
        lines.append(f"| {PIECES[name].title} | {' | '.join(cells)} | {rest} |")
    if points := found["pieces"].get("curve", {}).get("curve"):
        lines += ["", "Validation loss, nats a token:", "", "| tokens | loss |", "|---|---|"]
        lines += [f"| {tokens:,} | {loss:.4f} |" for tokens, loss in points]
    failures, missed = verdict(found)
    lines += [
        "",
        *(f"- failed: {line}" for line in failures),
        *(f"- missed aim: {line}" for line in missed),
    ]
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
