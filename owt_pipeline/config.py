"""Read the settings of a run, and write flags into them.

A settings file is TOML with a table per stage, and the tables [run] and [beam]. Flags of the
command line override it.
"""

from __future__ import annotations

import argparse
import codecs
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
import tomllib

from owt_pipeline.command_line import add_output_flags, at_least
from owt_pipeline.engine.stage import Stage
from owt_pipeline.errors import UsageError
from owt_pipeline.formats.file_kinds import describe_kind, read_start
from owt_pipeline.storage.folder import Storage, folder_of
from schemas import SettingsError
from schemas.settings import did_you_mean, from_table

TABLES = (
    "run",
    "collect",
    "fetch",
    "extract",
    "clean",
    "dedupe",
    "export",
    "tokenize",
    "report",
    "import",
    "beam",
)
RUN_KEYS = ("workers",)

SETTINGS = "settings.toml"
"""The settings of a run, in its folder."""

ONCE = ("retry_failed", "refetch")
"""Options for a single run, which are never written into the settings."""

ADDED = ("dumps", "links", "warcs", "subreddits", "pages_from")
"""Options whose values a run with `--add` appends to the values in the settings."""


def settings_of(run: Storage) -> str | None:
    """Return the path of a run's own settings; None if it has none."""
    if not run.exists(SETTINGS):
        return None
    return run.path(SETTINGS)


def problem_of_word(word: str) -> str:
    """Return why a word that follows no flag is not the run's settings, and what it may be."""
    if not os.path.exists(word):
        return "it is not a settings file and not the value of a flag"
    if os.path.isfile(word):
        with open(word, "rb") as file:
            kind = describe_kind(read_start(file), word)
        if kind:
            return f"it is {kind}"
    return "the name of a settings file ends in .toml"


def read_config(path: str | None) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file, local or in a bucket; none if `path` is None.

    Their keys are not checked yet. Raises UsageError for a file that cannot be read, is not TOML,
    or has an unknown table.
    """
    if path is None:
        return {}
    try:
        folder, name = folder_of(path)
        # Editors on Windows begin a file with a byte-order mark, which TOML has no rule for.
        content = folder.read(name)
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UsageError(f"{path} is UTF-16, and TOML is UTF-8: save it as UTF-8") from error
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(
                f"{path}: '{name}' is outside a table; put it under the table of its stage, such "
                "as [clean] (the file that `owt init` writes has each key in its table)"
            )
        if name not in TABLES:
            raise UsageError(f"{path}: unknown table [{name}]{did_you_mean(name, TABLES)}")
    for key in tables.get("run", {}):
        if key not in RUN_KEYS:
            raise UsageError(f"{path} [run]: unknown key '{key}'{did_you_mean(key, RUN_KEYS)}")
    try:
        workers_of(tables, None, 1)
    except UsageError as error:
        raise UsageError(f"{path} [run]: {error}") from None
    return tables


def stage_options(
    stage: Stage, config: str | None, tables: Mapping[str, Any], flags: Mapping[str, Any]
) -> Any:
    """Return the options of a stage's table, overridden by flags.

    Raises UsageError for an unknown or invalid option.
    """
    source = f"{config} [{stage.name}]" if config else stage.name
    try:
        return from_table(stage.options, tables.get(stage.name, {}), source, flags)
    except SettingsError as error:
        raise UsageError(str(error)) from error


def options_of(
    stages: Sequence[Stage],
    config: str | None,
    tables: Mapping[str, Any],
    flags: Mapping[str, Mapping[str, Any]],
) -> list[Any]:
    """Return the options of a run's stages: their tables, overridden by the flags of each stage.

    If `collect` reads the addresses in WARC files, `fetch` takes the pages from these files by
    default. Raises UsageError.
    """
    for stage in stages:
        for key in tables.get(stage.name, {}):
            owners = [other.name for other in stages if hasattr(other.options(), key)]
            if owners and stage.name not in owners:
                raise UsageError(f"{config} [{stage.name}]: {key} is an option of [{owners[0]}]")
    options = {
        stage.name: stage_options(stage, config, tables, flags.get(stage.name, {}))
        for stage in stages
    }
    collect = options["collect"]
    fetch = options["fetch"]
    may_read_archives = not fetch.sources or "archive" in fetch.sources
    if collect.warcs and not fetch.pages_from and may_read_archives:
        options["fetch"] = dataclasses.replace(fetch, pages_from=collect.warcs)
    return list(options.values())


def added(tables: Mapping[str, Any], stage: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a stage with `--add`: new sources follow the sources in the settings."""
    table = tables.get(stage, {})
    combined = dict(flags)
    for flag in ADDED:
        if flag in flags:
            sources = [*table.get(flag, ()), *flags[flag]]
            # A source that is named again stays in its place, once.
            combined[flag] = tuple(dict.fromkeys(sources))
    return combined


def with_values(text: str, values_by_table: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a settings file with values set, by table and option. Comments stay.

    A value takes the place of the line on which `owt init` has commented its option out.
    """
    document = tomlkit.parse(text)
    for name, values in values_by_table.items():
        if values and name not in document:
            if document.body:
                document.add(tomlkit.nl())
            document.add(name, tomlkit.table())
        for option, value in values.items():
            table = document[name]
            if option in table:
                table[option] = _as_toml(value)
                # The comment next to an option is about its old value, so it is removed.
                # `table[option]` of a boolean is a plain bool, so the container gives the item.
                item = table.value.item(option)
                item.trivia.comment = ""
                item.trivia.comment_ws = ""
            else:
                document[name] = _with_option(table, option, value)
    return document.as_string()


def _with_option(table: Any, option: str, value: Any) -> Any:
    """Return a tomlkit table with one more option, in the place of its commented line.

    Without such a line, the option comes first.
    """
    if isinstance(table, tomlkit.items.InlineTable):
        table.append(option, _as_toml(value))
        return table
    body = table.value.body
    places = [
        place for place, (_, item) in enumerate(body) if _is_commented(item.as_string(), option)
    ]
    changed = tomlkit.table()
    if not places:
        changed.add(option, _as_toml(value))
    for place, (key, item) in enumerate(body):
        if place in places[:1]:
            changed.add(option, _as_toml(value))
        else:
            changed.append(key, item)
    return changed


def _is_commented(line: str, option: str) -> bool:
    """Return whether a line of a settings file is an option that is commented out."""
    return re.match(rf"# {option} *=", line) is not None


def _as_toml(value: Any) -> Any:
    """Return an option's value for tomlkit; None, which TOML lacks, is an empty string."""
    return tomlkit.item("" if value is None else value)


def beam_flags(tables: Mapping[str, Any], command_line: list[str]) -> tuple[str, ...]:
    """Return Beam's flags of the table `[beam]`, and after them the flags of the command line.

    True is a flag without a value. False leaves the flag out. A list repeats the flag.
    """
    flags = []
    for key, value in tables.get("beam", {}).items():
        items = value if isinstance(value, list) else [value]
        for item in items:
            if item is True:
                flags.append(f"--{key}")
            elif item is not False:
                flags.append(f"--{key}={item}")
    return (*flags, *command_line)


def workers_of(tables: Mapping[str, Any], flag: int | None, default: int) -> int:
    """Return the number of local processes: by the flag, else the table [run], else the default.

    Raises UsageError for a number that is not a whole number of at least 1.
    """
    workers = tables.get("run", {}).get("workers", default)
    if flag is not None:
        workers = flag
    # isinstance() would take `workers = true` for 1.
    if type(workers) is not int or workers < 1:
        raise UsageError(f"workers: {workers!r} is not a whole number of at least 1")
    return workers


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the arguments RUN and SETTINGS.toml, which are shown in the help."""
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "settings",
        nargs="?",
        metavar="SETTINGS.toml",
        help="settings of the run (default: settings.toml in the folder)",
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `owt run` and `owt import` share."""
    group = parser.add_argument_group("running")
    group.add_argument(
        "--add",
        action="store_true",
        help="add the sources that the run does not have yet, as a new generation",
    )
    group.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="processes for CPU-bound work (default: this machine's cores)",
    )
    add_output_flags(parser)
