"""Random programs of commands on one small run.

    python -m tests.owt_pipeline.random_runs --seeds 100-200

A program grows the run, changes options, forgets documents, deletes folders that may be deleted,
damages files, and stops commands at a random write. When a command refuses, the program does what
the message advises. At the end, it runs everything once more. The result has to equal a fresh run
with the same sources, options and takedowns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pyarrow.parquet as pq

from owt_pipeline.cli import main as main_of_owt
from owt_pipeline.ledger.root import COPY
from schemas.manifest import ROOT
from tests.owt_pipeline.one_process import (
    forget_processes,
    kill_this_process,
    refuse_writes,
    stopping_at,
    without_runner,
)
from tests.owt_pipeline.random_inputs import DUMPS, url_of, write_inputs
from tests.owt_pipeline.runs import files_of, root_of, run_here

_MODULE = "tests.owt_pipeline.random_runs"
_STAGES = ("collect", "fetch", "extract", "clean", "dedupe", "export", "tokenize")
_LAST = ("--until", "tokenize")
# For each option that a program changes: its value at the end of each program, and another one.
_OPTIONS = {
    "min_tokens": (64, 72),
    "threshold": (0.8, 0.6),
    "rules": ("exact near", "none"),
    "val_fraction": (0.3, 0.5),
}

_DELETABLE = ("urls", "warc", "pages", "documents", "clean", "duplicates", "corpus", "tokens")


class Failure(AssertionError):
    """A program that did not end as a fresh run, with its commands and the difference."""


class Program:
    """A random program of commands on a run."""

    def __init__(self, seed: int, inputs: Path, folder: Path, *, has_kills: bool = False):
        """Prepare the program of a seed.

        Args:
          inputs: the folder with the dumps and the WARC file, where finished runs are cached.
          folder: a new folder for the run.
          has_kills: stop a command by killing its process, in place of an error.
        """
        self.seed = seed
        self.inputs = inputs
        self.run = folder / "run"
        self.has_kills = has_kills
        self.rng = random.Random(seed)
        self.lists: list[str] = []
        self.begun: list[str] = []
        self.log: list[str] = []

    def execute(self) -> None:
        """Run the program; raise Failure."""
        try:
            self._begin()
            for step in self._steps():
                step()
            self._finish()
            self._compare()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            description = f"{type(error).__name__}: {error}"
            raise Failure("\n".join([f"seed {self.seed}", *self.log, description])) from error

    def _owt(self, *words: object, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command; if it refuses, do what its message advises, and run it again."""
        output = ""
        for _ in range(4):
            code, output = self._ask(*words)
            if code in codes:
                return output
            if not self._follow(output):
                break
        raise AssertionError(f"owt {shlex.join(map(str, words))}: {output}")

    def _ask(self, *words: object) -> tuple[int, str]:
        """Run a command; return its exit code and output."""
        forget_processes()
        self.log.append("owt " + shlex.join(map(str, words)).replace(str(self.inputs), "IN"))
        codes: list[int] = []

        def run_command() -> int:
            codes.append(main_of_owt([*map(str, words)]))
            return 0

        output = run_here(run_command)
        self.log += [f"    {line}" for line in _errors(output)]
        return codes[0], output

    def _follow(self, output: str) -> bool:
        """Follow an error message; return whether it advised anything."""
        error = next((line for line in output.splitlines() if "owt: error" in line), output)
        commands = re.findall(r"`(owt [^`]+)`", error)
        # The list has the lines of all requests, also of one whose file is lost.
        request_list = str(self.run.parent / "list.txt")
        commands = [command.replace("URLS.txt", request_list) for command in commands]
        if "settings" in error or "give at least one of --dumps" in error:
            # "With your other flags": what the message advises would give them their defaults.
            self._remove(self.run / "settings.toml")
            commands = [shlex.join(["owt", *map(str, self._complete_run())])]
        for path in re.findall(r"delete (\S+) to make", error):
            self._remove(Path(path))
            commands.append("")
        for command in filter(None, commands):
            self._ask(*shlex.split(command)[1:])
        return bool(commands)

    def _complete_run(self) -> list[object]:
        """Return the command that makes everything, with all its flags."""
        dumps = [self.inputs / f"RS_{name}.gz" for name in self._recorded() or ["A"]]
        flags: list[object] = ["--dumps", *dumps, "--pages_from", self.inputs / "pages.warc.gz"]
        for name, (value, _) in _OPTIONS.items():
            flags += [f"--{name}", *str(value).split()]
        shards = ["--num_shards", 2, "--languages", "all", "--workers", 1]
        return ["run", self.run, *flags, *shards, *_LAST]

    def _recorded(self) -> list[str]:
        """Return the dumps that the run has recorded, in the order of their generations."""
        if not (self.run / ROOT).exists():
            return []
        dumps = []
        for generation in root_of(self.run).generations:
            for source in generation.sources:
                # The name of dump A is RS_A.gz.
                if source["name"].startswith("RS_"):
                    dumps.append(source["name"][3])
        return dumps

    def _add(self, name: str) -> list[object]:
        """Return the command that adds a dump as another generation."""
        dump = self.inputs / f"RS_{name}.gz"
        return ["run", self.run, "--add", "--dumps", dump, "--workers", 1]

    def _begin(self) -> None:
        self.begun = ["A"]
        if self.rng.random() < 0.8:
            shutil.copytree(finished_run(self.inputs, ("A",), ()), self.run)
            self.log.append("(a finished run of dump A)")
        else:
            self._stop(self._complete_run())
            self._owt(*self._complete_run())

    def _steps(self) -> list[Callable[[], None]]:
        """Return random steps, with at least one growth, takedown, deletion and stop."""
        weights: dict[Callable[[], None], int] = {
            self._grow: 3,
            self._grow_half: 2,
            self._stop_growth: 2,
            self._forget: 4,
            self._stop_forget: 2,
            self._delete_folders: 2,
            self._delete_file: 3,
            self._damage_file: 2,
            self._damage_root: 2,
            self._change_option: 3,
            self._stop_change: 3,
            self._run: 2,
            self._run_until: 2,
            self._look: 1,
        }
        chosen = self.rng.choices(list(weights), list(weights.values()), k=self.rng.randint(1, 5))
        chosen += [
            self.rng.choice([self._grow_half, self._stop_growth]),
            self.rng.choice([self._forget, self._forget, self._stop_forget]),
            self.rng.choice([self._stop_change, self._stop_forget]),
            self._delete_folders,
        ]
        self.rng.shuffle(chosen)
        return chosen

    def _grow(self) -> None:
        if (name := self._next_dump()) is not None:
            self._owt(*self._add(name), *_LAST)

    def _grow_half(self) -> None:
        if (name := self._next_dump()) is not None:
            self._owt(*self._add(name), "--until", self.rng.choice(_STAGES[:-1]))

    def _next_dump(self) -> str | None:
        """Return a dump that the run does not have yet. The run gets it by its end."""
        remaining = [name for name in DUMPS if name not in self.begun]
        self.begun += remaining[:1]
        return remaining[0] if remaining else None

    def _stop_growth(self) -> None:
        if (name := self._next_dump()) is not None:
            self._stop([*self._add(name), *_LAST])

    def _forget(self) -> None:
        self._owt("forget", self.run, self._list(), "--workers", 1)

    def _stop_forget(self) -> None:
        self._stop(["forget", self.run, self._list(), "--workers", 1])

    def _list(self) -> Path:
        """Extend the list of takedowns by a post or two; return its path."""
        posts = [f"{name}{number}" for name in DUMPS for number in range(4)]
        for post in self.rng.sample(posts, self.rng.choice([1, 1, 2])):
            is_domain = self.rng.random() < 0.2
            self.lists.append(f"site{post.lower()}.example.org" if is_domain else url_of(post))
        path = self.run.parent / "list.txt"
        path.write_text("".join(f"{line}\n" for line in self.lists))
        self.log.append(f"(list: {' '.join(self.lists)})")
        return path

    def _delete_folders(self) -> None:
        names = ["warc", "pages", "documents", "clean"]
        if self.rng.random() < 0.5:
            names = self.rng.sample(_DELETABLE, self.rng.randint(1, 3))
        for name in names:
            self._remove(self.run / name)

    def _delete_file(self) -> None:
        if (path := self._any_file()) is not None:
            self._remove(path)

    def _damage_file(self) -> None:
        path = self._any_file()
        if path is None:
            return
        content = bytearray(path.read_bytes())
        is_cut = self.rng.random() < 0.5
        if is_cut or not content:
            content = content[: len(content) // 2]
        else:
            content[self.rng.randrange(len(content))] ^= 1
        path.write_bytes(content)
        self.log.append(f"({path.relative_to(self.run)} {'cut' if is_cut else 'changed'})")
        if not is_cut or self.rng.random() < 0.5:
            self._owt("verify", self.run, "--repair", codes=(0, 1))

    def _any_file(self) -> Path | None:
        """Return a random file of a dataset, its rejects, places, lists of files or takedowns."""
        paths = [*sorted(self.run.iterdir()), *sorted((self.run / "ledger").rglob("*"))]
        folders = [path for path in paths if path.is_dir()]
        candidates = [path for path in folders if not _is_spared(path.relative_to(self.run).parts)]
        folder = self.rng.choice(candidates)
        files = [path for path in sorted(folder.iterdir()) if path.is_file()]
        # Another step damages the root and its copy.
        files = [path for path in files if path.name not in (Path(ROOT).name, Path(COPY).name)]
        return self.rng.choice(files) if files else None

    def _damage_root(self) -> None:
        path = self.run / self.rng.choice([ROOT, COPY, COPY, "settings.toml"])
        if not path.exists():
            return
        if self.rng.random() < 0.5:
            self._remove(path)
        else:
            os.truncate(path, path.stat().st_size // 2)
            self.log.append(f"({path.relative_to(self.run)} cut)")
        # Nothing is promised if both the root and its copy are damaged.
        if path.name != "settings.toml":
            self._owt(self.rng.choice(["ls", "verify"]), self.run, codes=(0, 1, 3))

    def _change_option(self) -> None:
        name = self.rng.choice(list(_OPTIONS))
        until = self.rng.choice([_LAST, _LAST, ("--until", self.rng.choice(_STAGES))])
        self._owt("run", self.run, f"--{name}", *str(_OPTIONS[name][1]).split(), *until)

    def _stop_change(self) -> None:
        name = self.rng.choice(list(_OPTIONS))
        self._stop(
            ["run", self.run, f"--{name}", *str(_OPTIONS[name][1]).split(), "--workers", 1, *_LAST]
        )

    def _run(self) -> None:
        self._owt(*self._complete_run())

    def _run_until(self) -> None:
        self._owt("run", self.run, "--until", self.rng.choice(_STAGES), "--workers", 1)

    def _look(self) -> None:
        self._owt("ls", self.run, codes=(0, 3))
        self._owt("why", self.run, url_of(f"{self.rng.choice(DUMPS)}1"), codes=(0, 1, 3))
        self._owt("verify", self.run, codes=(0, 1))

    def _remove(self, path: Path) -> None:
        self.log.append(f"(delete {path.relative_to(self.run)})")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _stop(self, words: list[object]) -> None:
        """Run a command, and stop it at a random write."""

        max_writes = self.rng.choice([2, 5, 10, 20, 40, 60])
        num_writes = self.rng.randrange(max_writes)
        self.log.append(f"(at write {num_writes}:)")
        if self.has_kills:
            self.log.append("owt " + shlex.join(map(str, words)))
            command = [sys.executable, "-m", _MODULE, "--kill_at", str(num_writes), "--"]
            command += map(str, words)
            process = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=120
            )
            self.log.append(f"    exit code {process.returncode}")
            assert process.returncode in (0, -9) or "owt: error" in process.stderr, process.stderr
        else:
            with stopping_at(num_writes, refuse_writes):
                self._ask(*words)

    def _finish(self) -> None:
        for name in self.begun[1:]:
            if name not in self._recorded():
                self._owt(*self._add(name), *_LAST)
        self._owt(*self._complete_run())
        if self.lists:
            self._owt("forget", self.run, self.run.parent / "list.txt", "--workers", 1)
        self._owt("verify", self.run, "--repair", codes=(0, 1))
        # A run with the report sweeps the files that interrupted commands have left unpublished.
        self._owt(*self._complete_run()[: -len(_LAST)])
        output = self._owt("verify", self.run)
        assert "no problems found" in output, output

    def _compare(self) -> None:
        order = tuple(self._recorded())
        assert sorted(order) == sorted(self.begun), (order, self.begun)
        fresh = finished_run(self.inputs, order, tuple(dict.fromkeys(self.lists)))
        for name in ("corpus", "tokens"):
            files_in_folder = sorted(
                str(path.relative_to(self.run)) for path in _parts(self.run, name)
            )
            rows = _published(self.run, name)
            expected = _published(fresh, name)
            assert list(rows) == list(expected), f"{name}: {list(rows)}, {list(expected)}"
            assert rows == expected, name
            assert files_in_folder == sorted(rows), f"{name}/ has {files_in_folder}"
        url_rows = _rows(fresh, ["urls", "ledger/urls/rejects"])
        url_by_id = {row["url_id"]: row["url"] for row in url_rows}
        text_rows = _rows(self.run, ["corpus", "tokens/train", "tokens/val"])
        urls = {url_by_id[row["url_id"]] for row in text_rows}
        forgotten = [url for url in urls if any(line in url for line in self.lists)]
        assert not forgotten, f"these were forgotten: {forgotten}"


def _is_spared(parts: tuple[str, ...]) -> bool:
    """Return whether a program must not delete from a folder.

    Records make it possible to do without lists.
    """
    return parts[0] == ".tmp" or "work" in parts or "records" in parts


def _errors(output: str) -> list[str]:
    """Return the first lines of an output that describe an error."""
    lines = [line for line in output.splitlines() if "error" in line or line.startswith("  ")]
    return [line[:300] for line in lines[:4]]


def _parts(run: Path, dataset: str) -> Iterator[Path]:
    """Yield all files of rows in the folder of a dataset, published or not."""
    return (run / dataset).rglob("part-*")


def _published(run: Path, dataset: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each published file of a dataset, by its path."""
    return {file.path: _rows_of_file(run / file.path) for file in files_of(run, dataset)}


def _rows(run: Path, folders: list[str]) -> list[dict[str, Any]]:
    """Return the rows of all files in some folders of a run."""
    paths = [path for folder in folders for path in sorted((run / folder).glob("part-*"))]
    return [row for path in paths for row in _rows_of_file(path)]


def _rows_of_file(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or Arrow file."""
    if path.suffix == ".arrow":
        return pyarrow.ipc.open_file(path).read_all().to_pylist()
    return pq.read_table(path).to_pylist()


def finished_run(inputs: Path, dumps: tuple[str, ...], lines: tuple[str, ...]) -> Path:
    """Return a fresh run of some dumps, whose last command forgets the documents of a list."""
    name = "-".join(["fresh", *dumps, *(re.sub(r"\W", "", line) for line in sorted(lines))])
    folder = inputs / name
    if folder.exists():
        return folder
    program = Program(0, inputs, inputs / f"{name}.new")
    program.run.parent.mkdir()
    if lines:
        shutil.copytree(finished_run(inputs, dumps, ()), program.run)
        program.lists = list(lines)
        (program.run.parent / "list.txt").write_text("".join(f"{line}\n" for line in lines))
        program._owt("forget", program.run, program.run.parent / "list.txt", "--workers", 1)
    elif len(dumps) > 1:
        shutil.copytree(finished_run(inputs, dumps[:-1], ()), program.run)
        program._owt(*program._add(dumps[-1]), *_LAST)
    else:
        program._owt(*program._complete_run())
    program.run.rename(folder)
    return folder


def main(argv: list[str] | None = None) -> int:
    """Run the programs of the requested seeds; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-49", help="first and last seed")
    parser.add_argument("--kills", action="store_true", help="kill processes in place of errors")
    parser.add_argument("--beam", action="store_true", help="run the stages by Beam's runner")
    parser.add_argument("--verbose", action="store_true", help="print the commands of each seed")
    parser.add_argument("--kill_at", type=int, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.kill_at is not None:
        with without_runner(), stopping_at(arguments.kill_at, kill_this_process):
            return main_of_owt(arguments.words)
    first, _, last = arguments.seeds.partition("-")
    num_failed = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if not arguments.beam:
            stack.enter_context(without_runner())
        inputs = Path(folder)
        write_inputs(inputs)
        for seed in range(int(first), int(last or first) + 1):
            started = time.time()
            (inputs / str(seed)).mkdir()
            program = Program(seed, inputs, inputs / str(seed), has_kills=arguments.kills)
            try:
                program.execute()
                print(f"seed {seed}: ok, {time.time() - started:.1f} s", flush=True)
                if arguments.verbose:
                    print("\n".join(program.log))
            except Failure as error:
                num_failed += 1
                print(f"FAILED {error}", flush=True)
            shutil.rmtree(inputs / str(seed))
    print(f"{num_failed} failed; {time.process_time():.0f} CPU seconds")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
