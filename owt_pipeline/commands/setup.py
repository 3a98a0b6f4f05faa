"""`owt init`: the settings of a run, with comments; and how `owt run` puts its flags there."""

from __future__ import annotations

import argparse
import importlib.resources
import re
import shlex
from collections.abc import Mapping
from typing import Any

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.config import SETTINGS, settings_of, with_values
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from schemas.settings import describe, did_you_mean, tables_of

_LINE = re.compile(r"^(\w+) = (.*?)\s+# (.*)$")


def preset_names() -> list[str]:
    """Return the names of the recipes that ship."""
    folder = importlib.resources.files("owt_pipeline") / "presets"
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def commented_config(preset: str | None = None) -> str:
    """Return a TOML file with every option of every stage.

    The options of the preset are set, the others are commented out at their default.
    """
    values = _preset_values(preset) if preset else {}
    lines = [
        "# Settings of this run. The flags of a run that succeeds are put here (`owt run --until "
        "STAGE --help`).",
        *([f"# Preset: {preset}."] if preset else []),
        "",
        "[run]",
        "# processes for CPU-bound work; by default, this machine's cores",
        "# workers = 8",
    ]
    tables: dict[str, type] = {}
    for name, stage in STAGES.items():
        tables[name] = stage.options
        tables |= {f"{name}.{inner}": cls for inner, cls in tables_of(stage.options).items()}
    for name in tables:
        lines += ["", f"[{name}]"]
        for option, kind, default, help_text in describe(tables[name]):
            lines.append(f"# {help_text} ({kind})")
            if option in values.get(name, {}):
                value, source = values[name][option]
                lines.append(f"{option} = {value}  # {source}")
            else:
                lines.append(f"# {option} = {default}")
    lines += [
        "",
        "# Flags of Apache Beam, such as those for Dataflow:",
        "[beam]",
        '# runner = "DataflowRunner"',
    ]
    return "\n".join(lines) + "\n"


def _preset_values(preset: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the values of a preset by table and option: as TOML, and where each comes from."""
    if preset not in preset_names():
        raise UsageError(f"unknown preset {preset!r}{did_you_mean(preset, preset_names())}")
    text = (importlib.resources.files("owt_pipeline") / "presets" / f"{preset}.toml").read_text(
        encoding="utf-8"
    )
    values: dict[str, dict[str, tuple[str, str]]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[] ")
        elif match := _LINE.match(line):
            values.setdefault(table, {})[match[1]] = (match[2], match[3])
    return values


def remember(run: Storage, given: Mapping[str, Mapping[str, Any]]) -> None:
    """Put options, by table and name, into the run's own settings; write them if missing."""
    own = settings_of(run)
    text = run.read(SETTINGS).decode("utf-8-sig") if own else commented_config()
    changed = with_values(text, given)
    if changed != text or own is None:
        run.write(SETTINGS, changed.encode())


def _init_flags(parser: CommandParser) -> None:
    """Write RUN/settings.toml, in which every option is explained, to edit before the first run.

    example:
      owt init runs/2013 --preset webtext
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--preset", metavar="NAME", help=f"a known recipe: {', '.join(preset_names())}"
    )


def _write(arguments: argparse.Namespace) -> int:
    """Write the settings; raises UserError if there are some."""
    run = Storage(arguments.run)
    text = commented_config(arguments.preset)
    if not run.create(SETTINGS, text.encode()):
        raise UserError(f"{run.path(SETTINGS)} exists: edit it, or delete it")
    run_it = shlex.join(["owt", "run", str(run)])
    print(f"wrote {run.path(SETTINGS)}; now: {run_it} --dumps RS_*.zst")
    return 0


main = Command("owt init", _init_flags, _write)
