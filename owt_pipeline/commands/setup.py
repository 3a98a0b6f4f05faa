"""`owt init`: write the settings of a run, with comments. `owt run` adds its flags to them."""

from __future__ import annotations

import argparse
import importlib.resources
import re
import shlex
from collections.abc import Mapping
from typing import Any

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.config import SETTINGS, read_config, settings_of, with_values
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from schemas.settings import describe, did_you_mean, tables_of

# `option = value  # source`, as all lines of a preset are written.
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
    values: dict[str, dict[str, tuple[str, str]]] = {}
    lines = [
        "# Settings of this run. After a successful run, its flags are written into this file.",
        "# `owt run --until STAGE --help` explains the options of a stage.",
    ]
    if preset:
        values = _preset_values(preset)
        lines.append(f"# Preset: {preset}.")
    lines += [
        "",
        "[run]",
        "# processes for CPU-bound work (default: this machine's cores)",
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
    """Return (value as TOML, its source) of each option of a preset, by table and option."""
    if preset not in preset_names():
        raise UsageError(f"unknown preset {preset!r}{did_you_mean(preset, preset_names())}")
    folder = importlib.resources.files("owt_pipeline") / "presets"
    text = (folder / f"{preset}.toml").read_text(encoding="utf-8")
    values: dict[str, dict[str, tuple[str, str]]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[] ")
        elif match := _LINE.match(line):
            values.setdefault(table, {})[match[1]] = (match[2], match[3])
    return values


def remember(run: Storage, flags_by_stage: Mapping[str, Mapping[str, Any]]) -> None:
    """Put flags into the run's own settings; write the settings if there are none."""
    if settings_of(run) is None:
        run.write(SETTINGS, with_values(commented_config(), flags_by_stage).encode())
        return
    try:
        read_config(run.path(SETTINGS))
    except UsageError as error:
        # It was read without an error when the command began.
        raise UsageError(
            f"{error}. It was changed during the run: correct it, and run the same command again, "
            "which puts its flags there"
        ) from None
    text = run.read(SETTINGS).decode("utf-8-sig")
    changed_text = with_values(text, flags_by_stage)
    if changed_text != text:
        run.write(SETTINGS, changed_text.encode())


def _init_flags(parser: CommandParser) -> None:
    """Write RUN/settings.toml with every option, its explanation and its default. Edit the file
    before the first run.

    example:
      owt init runs/2013 --preset webtext
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"set the options of a published recipe: {', '.join(preset_names())}",
    )


def _write(arguments: argparse.Namespace) -> int:
    """Write the settings; raises UserError if there are some."""
    run = Storage(arguments.run)
    text = commented_config(arguments.preset)
    # `create` never replaces settings, not even settings that another command writes meanwhile.
    if not run.create(SETTINGS, text.encode()):
        raise UserError(f"{run.path(SETTINGS)} exists: edit it, or delete it")
    run_it = shlex.join(["owt", "run", str(run)])
    print(f"wrote {run.path(SETTINGS)}; now: {run_it} --dumps RS_*.zst")
    return 0


main = Command("owt init", _init_flags, _write)
