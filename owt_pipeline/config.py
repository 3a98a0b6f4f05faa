"""Settings of a run: a TOML file with one table per stage, flags that override it, and Beam's flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from owt_pipeline.command_line import add_output_flags, at_least
from owt_pipeline.engine.stage import Stage
from owt_pipeline.errors import UsageError
from owt_pipeline.storage.folder import folder_of
from schemas import SettingsError
from schemas.settings import did_you_mean, from_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = ("run", "collect", "fetch", "extract", "clean", "dedupe", "export", "tokenize", "report", "import", "beam")
RUN_KEYS = ("workers",)


def read_config(path: str | None) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file (a path, or a URI of a bucket), not yet checked; none where `path` is None.

    Raises UsageError for a file that cannot be read, is not TOML, or has an unknown table.
    """
    if path is None:
        return {}
    try:
        folder, name = folder_of(path)
        tables = tomllib.loads(folder.read(name).decode())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: '{name}' is outside a table; put it under [run] or a stage's table")
        if name not in TABLES:
            raise UsageError(f"{path}: unknown table [{name}]{did_you_mean(name, TABLES)}")
    for key in tables.get("run", {}):
        if key not in RUN_KEYS:
            raise UsageError(f"{path} [run]: unknown key '{key}'{did_you_mean(key, RUN_KEYS)}")
    return tables


def stage_options(stage: Stage, config: str | None, tables: Mapping[str, Any], flags: Mapping[str, Any]) -> Any:
    """The stage's options: its table, overridden by the given flags; raises UsageError."""
    where = f"{config} [{stage.name}]" if config else stage.name
    try:
        return from_table(stage.options, tables.get(stage.name, {}), where, flags)
    except SettingsError as error:
        raise UsageError(str(error)) from error


def beam_flags(tables: Mapping[str, Any], rest: list[str]) -> tuple[str, ...]:
    """Beam's flags: those of the table `[beam]`, then those of the command line."""
    flags = []
    for key, value in tables.get("beam", {}).items():
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                flags.append(f"--{key}")
            elif item is not False:
                flags.append(f"--{key}={item}")
    return (*flags, *rest)


def workers_of(tables: Mapping[str, Any], given: int | None, default: int) -> int:
    """The processes of the local pool: as given on the command line, or in the table [run]; raises UsageError."""
    workers = given if given is not None else tables.get("run", {}).get("workers", default)
    if type(workers) is not int or workers < 1:
        raise UsageError(f"[run] workers: {workers!r} is not a whole number of at least 1")
    return workers


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that every stage and `owt run` share."""
    group = parser.add_argument_group("running")
    group.add_argument(
        "--add", action="store_true", help="add sources that the run does not have yet, as another generation"
    )
    group.add_argument(
        "--workers", type=at_least(1), metavar="N", help="processes for CPU-bound work (default: this machine's cores)"
    )
    add_output_flags(parser)
