"""Measure or check one thing each, by the trainer's own command: the pieces of gpu_check."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trainer_flags import TINY, flags_of

REPOSITORY = Path(__file__).resolve().parent.parent
# A tiny run has two of the checkpoint's intervals, and the eight steps of the resumed run.
TINY_STEPS = 8
TINY_INTERVAL = 4  # steps between its checkpoints
# A GPU with more memory takes micro-batches of 32 windows, others of 8.
LARGE_MEMORY = 70e9  # bytes
DEFAULT_BATCH = 524288  # tokens of a step
SMALL_BATCH = 65536
NUM_REPEATS = 3  # a rate is the median of these runs
CURVE_SECONDS = 180

Result = dict[str, Any]
Measurement = Callable[["Check"], Result]

TRAIN = ("-m", "trainer")
SPEEDRUN = (*TRAIN, "presets/speedrun.toml")
DETERMINISTIC = (
    "-c",
    "import sys, torch; torch.use_deterministic_algorithms(True); "
    "from trainer.__main__ import main; sys.exit(main(sys.argv[1:]))",
)
# Writes how long each save kept the loop waiting, in seconds, to waits.json in the run's folder.
TIMING_SAVES = """
import json, sys, time
from pathlib import Path
from trainer import checkpoint
from trainer.__main__ import main
save, waits = checkpoint.Saver.save, []
def timed(self, *arguments, **named):
    start = time.perf_counter()
    save(self, *arguments, **named)
    waits.append(time.perf_counter() - start)
checkpoint.Saver.save = timed
if main(sys.argv[1:]):
    sys.exit(1)
Path(sys.argv[sys.argv.index("--out") + 1], "waits.json").write_text(json.dumps(waits))
"""


@dataclass(frozen=True)
class Check:
    """The settings that the pieces have in common, and how they run Python."""

    scratch: Path  # a folder for runs
    data: Path  # token shards to measure rates on
    device: str
    is_tiny: bool  # the smallest model and a few steps, to try the command itself
    deadline: float  # when the piece must have ended, by `time.perf_counter`

    @property
    def device_batch_size(self) -> int:
        """Windows of a forward pass that fit in the GPU's memory."""
        if self.device == "cuda":
            memory = torch.cuda.get_device_properties(0).total_memory
            if memory > LARGE_MEMORY:
                return 32
        return 8

    def sized(self, tiny: int, full: int) -> int:
        """Return a size of the tiny or of the full check."""
        return tiny if self.is_tiny else full

    def train(
        self, name: str, *flags: object, steps: int, launcher: tuple[str, ...] = TRAIN
    ) -> Path:
        """Run the trainer by its command; return its folder, to which output.txt is added."""
        run = self.scratch / name
        common = flags_of(
            data=self.data,
            out=run,
            device=self.device,
            eval_every=0,
            save_every=0,
            device_batch_size=self.device_batch_size,
        )
        # Flags that come later override those before.
        last = flags_of(max_steps=steps)
        if self.is_tiny:
            last = flags_of(**TINY, compile=False, max_steps=min(steps, TINY_STEPS))
        output = self.call(*launcher, *common, *flags, *last)
        (run / "output.txt").write_text(output, encoding="utf-8")
        return run

    def call(self, *arguments: object) -> str:
        """Return the output of Python; raises RuntimeError with its errors if it fails."""
        done = self.run(*arguments)
        if not done.returncode:
            return done.stdout
        lines = done.stdout.splitlines()
        errors = [line for line in lines if re.search(r"Error|FAILED|trainer\.\w+: ", line)]
        last_lines = " / ".join((errors or lines)[-4:])
        raise RuntimeError(f"exit code {done.returncode}: {last_lines[-600:]}")

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run Python; raises TimeoutExpired, with the output until then, at the deadline."""
        paths = [str(REPOSITORY)]
        if "PYTHONPATH" in os.environ:
            paths.append(os.environ["PYTHONPATH"])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            # Deterministic algorithms ask for it.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }
        if self.is_tiny:
            # More threads would only wait for each other on so little work.
            environment["OMP_NUM_THREADS"] = "1"
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=REPOSITORY,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(1.0, self.deadline - time.perf_counter()),
            check=False,
        )


def records_of(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's steps."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def seconds_of(records: list[dict[str, Any]]) -> list[float]:
    """Return the duration of each step."""
    return [record["tokens"] / record["tokens_per_s"] for record in records]


def rates_of(run: Path) -> Result:
    """Return the median rate without the first steps, and how much longer those took.

    The first steps contain the compilation.
    """
    records = records_of(run)
    seconds = seconds_of(records)
    num_first = min(10, len(records) // 2)  # steps of the first progress line
    later = records[num_first:]
    median = statistics.median(seconds[num_first:])
    compiling = sum(max(0.0, duration - median) for duration in seconds[:num_first])
    micro_batches = re.findall(
        r"micro-batch(?:es)? of (\d+)", (run / "output.txt").read_text(encoding="utf-8")
    )
    return {
        "tokens_per_s": round(statistics.median(record["tokens_per_s"] for record in later)),
        "mfu": later[-1]["mfu"],
        "memory_gb": round(max(record["memory_gb"] for record in records), 2),
        "compile_s": round(compiling, 1),
        "device_batch_size": int(micro_batches[-1]),
        "loss": round(records[-1]["loss"], 4),
    }


def repeat(check: Check, measure: Callable[[int], Result]) -> Result:
    """Return the result with the median rate, all rates, and how far they lie apart.

    There are fewer than three where another one would not end before the deadline.
    """
    results: list[Result] = []
    for number in range(check.sized(1, NUM_REPEATS)):
        start = time.perf_counter()
        results.append(measure(number))
        now = time.perf_counter()
        # The next one may take a little longer.
        if now + 1.2 * (now - start) > check.deadline:
            break
    results.sort(key=lambda result: result["tokens_per_s"])
    rates = [result["tokens_per_s"] for result in results]
    return {**results[len(results) // 2], "rates": rates, "spread": spread(rates)}


def spread(sorted_rates: list[float]) -> float:
    """Return the distance of the highest rate from the lowest, as a share of the median."""
    return (sorted_rates[-1] - sorted_rates[0]) / sorted_rates[len(sorted_rates) // 2]


def rate(
    preset: str,
    *flags: object,
    steps: int = 20,
    batch: int = DEFAULT_BATCH,
    launcher: tuple[str, ...] = TRAIN,
) -> Measurement:
    """Return a piece that measures the trainer's rate; with no preset, the launcher has one."""
    all_flags = [*flags_of(batch_tokens=batch), *flags]
    if preset:
        all_flags += flags_of(preset=preset)

    def measure(check: Check) -> Result:
        def run(number: int) -> Result:
            return rates_of(
                check.train(f"rate-{number}", *all_flags, steps=steps, launcher=launcher)
            )

        return repeat(check, run)

    return measure


def next_to_nanogpt(check: Check) -> Result:
    """Measure the trainer's rate and nanoGPT's, in turns, on the same tokens."""
    peers: list[float] = []
    peer_flags: dict[str, object] = {
        "data": check.data,
        "device": check.device,
        "steps": check.sized(TINY_STEPS, 12),
        "windows": check.device_batch_size,
    }
    peer_shape = []
    if check.is_tiny:
        # Layers, heads, width, context.
        peer_shape = ["--shape", 2, 2, TINY["n_embd"], TINY["block_size"]]
        peer_flags["batch_tokens"] = TINY["batch_tokens"]

    def measure(number: int) -> Result:
        output = check.call("benchmarks/peers/nanogpt.py", *peer_shape, *flags_of(**peer_flags))
        peer = json.loads(output.splitlines()[-1])
        peers.append(statistics.median(peer["rates"]))
        flags = flags_of(preset="124M", batch_tokens=DEFAULT_BATCH)
        return rates_of(check.train(f"rate-{number}", *flags, steps=20))

    result = repeat(check, measure)
    peers.sort()
    peer_rate = peers[len(peers) // 2]
    return result | {
        "nanogpt_tokens_per_s": round(peer_rate),
        "nanogpt_spread": spread(peers),
        "times_nanogpt": result["tokens_per_s"] / peer_rate,
    }


def scaling(*flags: object) -> Measurement:
    """Return a piece that measures the rate of all GPUs together, next to one GPU's."""

    def measure(check: Check) -> Result:
        # A CPU's two ranks show that the piece works.
        num_ranks = 2
        if check.device == "cuda":
            num_ranks = torch.cuda.device_count()
        if num_ranks == 1:
            return {"note": "one GPU here: nothing to scale to"}
        of_124m = flags_of(preset="124M", batch_tokens=DEFAULT_BATCH)
        of_one_gpu = rates_of(check.train("one", *of_124m, *flags, steps=20))
        torchrun = (
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={num_ranks}",
        )
        result = rate("124M", *flags, launcher=(*torchrun, *TRAIN))(check)
        efficiency = result["tokens_per_s"] / (num_ranks * of_one_gpu["tokens_per_s"])
        return result | {"ranks": num_ranks, "efficiency": efficiency}

    return measure


def run_tests(check: Check) -> Result:
    """Count the tests marked gpu that pass; at the deadline, those that have run."""
    folder = "tests/trainer"
    # Only this file, without pyproject's options: other tests want packages that a GPU's machine
    # may lack.
    workers = f"-n{check.sized(1, 4)}"
    options = ("-v", workers, "-o", "addopts=", "--import-mode=importlib", "--confcutdir", folder)
    command = ("-u", "-m", "pytest", f"{folder}/test_gpu.py", *options, "-p", "no:cacheprovider")
    problem = ""
    try:
        output = check.run(*command).stdout
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        # The output until then is bytes, although `run` asks for text.
        output = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
        problem = "not all ran in the time that was left"
    outcomes = re.findall(
        r"^\[gw.*\b(PASSED|FAILED|ERROR|SKIPPED) \S+?::(.+?) *$", output, re.MULTILINE
    )
    failures = [name for outcome, name in outcomes if outcome in ("FAILED", "ERROR")]
    num_passed = sum(outcome == "PASSED" for outcome, _ in outcomes)
    num_skipped = sum(outcome == "SKIPPED" for outcome, _ in outcomes)
    if failures:
        errors = " / ".join(re.findall("^E  .*", output, re.MULTILINE))
        problem = f"{', '.join(failures)}: {errors[-600:]}"
    # Without a GPU, all are skipped.
    elif not problem and not num_passed and not (num_skipped and check.is_tiny):
        problem = f"no test ran: {' / '.join(output.splitlines()[-2:])}"
    result: Result = {"passed": num_passed, "failed": len(failures), "skipped": num_skipped}
    if problem:
        result["error"] = problem
    return result


def checkpoint_cost(check: Check) -> Result:
    """Measure how long the loop waits for a checkpoint, and how it slows the steps after it."""
    interval = check.sized(TINY_INTERVAL, 20)
    flags = flags_of(preset="124M", batch_tokens=DEFAULT_BATCH, save_every=interval)
    run = check.train("saved", *flags, steps=3 * interval, launcher=("-c", TIMING_SAVES))
    waits = json.loads((run / "waits.json").read_text(encoding="utf-8"))
    # The first save pins its memory.
    wait = statistics.median(waits[1:] or waits)
    # A rate is that of ten steps: the first ten after a save are slowed, the others are not.
    half = interval // 2
    slowed = []
    undisturbed = []
    for step, seconds in enumerate(seconds_of(records_of(run))):
        if step < interval:
            continue
        if step % interval < half:
            slowed.append(seconds)
        else:
            undisturbed.append(seconds)
    step_seconds = statistics.median(undisturbed)
    slower = max(0.0, statistics.median(slowed) - step_seconds) * half
    return {
        "first_wait_s": round(waits[0], 6),
        "wait_s": round(wait, 6),
        "slower_after_s": round(slower, 3),
        "share_at_1000_steps": (wait + slower) / (1000 * step_seconds),
        "step_s": round(step_seconds, 4),
    }


def resumed(check: Check) -> Result:
    """Check that a run that is cut has the losses and weights of one that is not, bit for bit."""
    flags = flags_of(preset="124M", batch_tokens=SMALL_BATCH, save_every=4)
    complete = check.train("complete", *flags, steps=8, launcher=DETERMINISTIC)
    shutil.copytree(complete, check.scratch / "cut")
    shutil.rmtree(check.scratch / "cut" / "checkpoints" / "step-00000008")
    cut = check.train("cut", *flags, steps=8, launcher=DETERMINISTIC)
    weights = "checkpoints/step-00000008/model.safetensors"
    return {
        "losses_equal": _losses(complete) == _losses(cut),
        "weights_equal": (complete / weights).read_bytes() == (cut / weights).read_bytes(),
        "steps": len(records_of(cut)),
    }


def _losses(run: Path) -> list[tuple[float, float]]:
    return [(record["loss"], record["grad_norm"]) for record in records_of(run)]


def curve(check: Check) -> Result:
    """Train for three minutes, and return the validation losses."""
    seconds = check.sized(5, CURVE_SECONDS)
    flags = flags_of(preset="124M", batch_tokens=SMALL_BATCH)
    probe = rates_of(check.train("probe", *flags, steps=20))
    steps = max(10, int(seconds * probe["tokens_per_s"] / SMALL_BATCH))
    flags += flags_of(eval_every=check.sized(6, 50), warmup_steps=max(1, steps // 50))
    start = time.perf_counter()
    run = check.train("curve", *flags, steps=steps)
    records = records_of(run)
    points = [
        (record["step"] * record["tokens"], round(record["val_loss"], 4))
        for record in records
        if "val_loss" in record
    ]
    return {
        **rates_of(run),
        "seconds": round(time.perf_counter() - start),
        "first_loss": round(records[0]["loss"], 4),
        # A dozen of them.
        "curve": points[:: max(1, len(points) // 12)],
    }


@dataclass(frozen=True)
class Piece:
    """A piece of the check."""

    title: str
    run: Measurement
    is_core: bool = False  # whether `make gpu-check` runs it


# In the order in which they run. The end of the core cuts off tests: a part of them is a result,
# too.
PIECES: dict[str, Piece] = {
    "124M": Piece("124M, packed", next_to_nanogpt, is_core=True),
    "checkpoint": Piece("checkpoint cost, 124M", checkpoint_cost, is_core=True),
    "resume": Piece("resume, 124M", resumed, is_core=True),
    "tests": Piece("tests marked gpu", run_tests, is_core=True),
    "all_gpus": Piece("124M on every GPU, DDP", scaling()),
    "all_gpus_muon": Piece("124M on every GPU, Muon", scaling("--optimizer", "muon")),
    "longbiased": Piece("124M, longbiased", rate("124M", "--sampler", "longbiased")),
    "mask": Piece("124M, document mask", rate("124M", "--document_mask")),
    "muon": Piece("124M, Muon", rate("124M", "--optimizer", "muon")),
    "prettybig": Piece(
        "PrettyBig, checkpointed",
        rate("prettybig", *flags_of(save_every=10, device_batch_size=8), steps=15, batch=131072),
    ),
    "1.5B": Piece(
        "1.5B, checkpointed, activations recomputed",
        rate(
            "1.5B",
            *flags_of(save_every=10, device_batch_size=8, checkpoint_activations=True),
            steps=15,
            batch=SMALL_BATCH,
        ),
    ),
    "speedrun": Piece("presets/speedrun.toml", rate("", launcher=SPEEDRUN)),
    "curve": Piece("three minutes of training", curve),
}
