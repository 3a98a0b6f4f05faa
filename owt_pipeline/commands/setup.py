"""`owt init`: a commented settings file to start from."""

from __future__ import annotations

import argparse
import importlib.resources
import os
import re

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.stages import ORDER, load
from schemas.settings import describe, did_you_mean, tables_of

_LINE = re.compile(r"^(\w+) = (.*?)\s+# (.*)$")


def preset_names() -> list[str]:
    """The recipes that ship."""
    folder = importlib.resources.files("owt_pipeline") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def commented_config(preset: str | None = None) -> str:
    """A TOML file with every option of every stage: the preset's set, the others commented out at their default."""
    values = _preset_values(preset) if preset else {}
    lines = [
        "# Settings of a run: `owt run RUN SETTINGS.toml`. Flags override them; `owt STAGE --help` explains each.",
        *([f"# Preset: {preset}."] if preset else []),
        "",
        "[run]",
        "# processes for CPU-bound work; by default, this machine's cores",
        "# workers = 8",
    ]
    tables = {name: load(name).options for name in ORDER}
    for name in ORDER:
        tables |= {f"{name}.{inner}": cls for inner, cls in tables_of(tables[name]).items()}
    for name in sorted(tables, key=lambda name: ORDER.index(name.partition(".")[0])):
        lines += ["", f"[{name}]"]
        for option, kind, default, help_text in describe(tables[name]):
            lines.append(f"# {help_text} ({kind})")
            if option in values.get(name, {}):
                value, source = values[name][option]
                lines.append(f"{option} = {value}  # {source}")
            else:
                lines.append(f"# {option} = {default}")
    lines += ["", "# Flags of Apache Beam, such as those for Dataflow:", "[beam]", '# runner = "DataflowRunner"']
    return "\n".join(lines) + "\n"


def _preset_values(preset: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Table -> option -> (value as TOML, where it comes from)."""
    if preset not in preset_names():
        raise UsageError(f"unknown preset {preset!r}{did_you_mean(preset, preset_names())}")
    text = (importlib.resources.files("owt_pipeline") / "presets" / f"{preset}.toml").read_text(encoding="utf-8")
    values: dict[str, dict[str, tuple[str, str]]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[] ")
        elif match := _LINE.match(line):
            values.setdefault(table, {})[match[1]] = (match[2], match[3])
    return values


def _init_flags(parser: CommandParser) -> None:
    """Write a commented settings file to start from.

    example:
      owt init --preset webtext config.toml
    """
    parser.add_argument(
        "path", nargs="?", metavar="SETTINGS.toml", default="config.toml", help="the file (default: config.toml)"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument("--preset", metavar="NAME", help=f"a known recipe: {', '.join(preset_names())}")


def _write(arguments: argparse.Namespace) -> int:
    path = arguments.path
    if os.path.exists(path) and not arguments.force:
        raise UserError(f"{path} exists; name another file, or replace it with --force")
    text = commented_config(arguments.preset)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {path}; now: owt run RUN {path} --dumps RS_*.zst")
    return 0


# Which flags take a file or a folder, by the names that their help gives the value.
main = Command("owt init", _init_flags, _write)
