"""Settings: a frozen dataclass is both a TOML table and a set of command-line flags.

    @dataclass(frozen=True)
    class Options:
        min_tokens: int = option(128, "documents with fewer are rejected", minimum=0)

`from_table` reads it from a parsed TOML table, `add_flags` and `flags_given` from the command
line, and both refuse a wrong value with the key, the value and the allowed values.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import textwrap
import typing
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from schemas.values import (
    DESCRIPTIONS,
    SettingsError,
    allowed_values,
    convert,
    did_you_mean,
    parts_of,
)

T = TypeVar("T")


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    choices: Iterable[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    shapes_bytes: bool = True,
    metavar: str | None = None,
    is_flag: bool = True,
    is_path: bool = False,
) -> Any:
    """Return a field of an options dataclass.

    Args:
      default: the value where none is given; without it the option is required. A frozen dataclass
        of options makes the option a table of its own.
      help: one line for `--help` and the reference.
      choices: the strings allowed (for each item, in a tuple).
      minimum: the smallest number allowed, included.
      maximum: the largest number allowed, included.
      shapes_bytes: whether the output's bytes depend on it. One that does not (a timeout, a number
        of connections) stays out of the key of a shard, so changing it reruns nothing.
      metavar: the value's name in `--help`.
      is_flag: whether there is a flag; otherwise only the settings file has the option.
      is_path: whether a value may be a local path, so that a leading `~` is the home folder.
    """
    if choices is not None:
        # The choices are read more than once, so an iterator would not do.
        choices = tuple(choices)
    metadata = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "shapes_bytes": shapes_bytes,
        "metavar": metavar,
        "is_flag": is_flag,
        "is_path": is_path,
    }
    # A dataclass refuses a mutable default.
    if isinstance(default, list):
        default = tuple(default)
    return dataclasses.field(default=default, metadata=metadata)


_types_of = functools.cache(typing.get_type_hints)


def from_table(
    cls: type[T], table: Mapping[str, Any], where: str, flags: Mapping[str, Any] | None = None
) -> T:
    """Return an instance of the dataclass `cls` from a parsed TOML table.

    Args:
      cls: a dataclass of options.
      table: values by key.
      where: the name of the table in errors.
      flags: values by their names on the command line without the dashes. They override the table;
        errors name them as flags.

    Raises:
      SettingsError: an unknown key (with the nearest right one), a value of the wrong type or out
        of its range, or a required key that is missing.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types_by_name = _types_of(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise SettingsError(f"{where}: unknown key '{key}'{did_you_mean(key, fields)}")
        if dataclasses.is_dataclass(types_by_name[key]):
            values[key] = _inner_table(types_by_name[key], value, where, key)
        else:
            values[key] = convert(fields[key], types_by_name[key], value, f"{where}: {key}")
    for key, value in (flags or {}).items():
        values[key] = convert(fields[key], types_by_name[key], value, f"--{key}")
    for name, field in fields.items():
        if name not in values and _is_required(field):
            raise SettingsError(f"{where}: {name} is required: {field.metadata.get('help', '')}")
    return cls(**values)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    has_default = field.default is not dataclasses.MISSING
    return not has_default and field.default_factory is dataclasses.MISSING


def _inner_table(cls: Any, value: Any, outer_name: str, key: str) -> Any:
    """Return the options of a table within another one; raise SettingsError."""
    if isinstance(value, cls):
        return value
    name = f"{outer_name}.{key}"
    if outer_name.endswith("]"):
        # The table `y` in `[x]` is `[x.y]`.
        name = f"{outer_name[:-1]}.{key}]"
    if not isinstance(value, Mapping):
        example = dataclasses.fields(cls)[0].name
        raise SettingsError(f"{name}: {value!r} is not a table, such as {{{example} = 1}}")
    return from_table(cls, value, name)


def add_flags(
    parser: argparse._ActionsContainer,
    cls: type,
    *,
    without: Iterable[str] = (),
    explained: Container[str] | None = None,
) -> None:
    """Add a flag for each field of the dataclass `cls`; flags that are not given leave no trace.

    Fields named in `without` get none. `--help` shows those of fields that are named in
    `explained`, by default all.
    """
    types_by_name = _types_of(cls)
    left_out = set(without)
    for field in dataclasses.fields(cls):
        if field.name not in left_out and field.metadata.get("is_flag", True):
            is_explained = explained is None or field.name in explained
            _add_flag(parser, field, types_by_name[field.name], is_explained)


def flags_given(cls: type, namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the flags of `cls` that were given on the command line, as a table of `from_table`."""
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: getattr(namespace, name) for name in names if hasattr(namespace, name)}


def shaping_options(options: Any) -> dict[str, Any]:
    """Return the options that shape the output's bytes, as JSON values: a part of a shard's key."""
    return {
        field.name: _as_json(getattr(options, field.name))
        for field in dataclasses.fields(options)
        if field.metadata.get("shapes_bytes", True)
    }


class FlagFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with one entry a flag: `--min_tokens N`."""

    def __init__(self, prog: str, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=30, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Break the lines of prose; keep paragraphs with indented lines, such as examples."""
        paragraphs = []
        for paragraph in text.strip("\n").split("\n\n"):
            lines = paragraph.splitlines()
            if not any(line.startswith(" ") for line in lines):
                lines = textwrap.wrap(paragraph, width - len(indent), break_on_hyphens=False)
            paragraphs.append("\n".join(indent + line for line in lines))
        return "\n\n".join(paragraphs)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Break a flag's help. Names with hyphens stay whole, so that they can be copied."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        if action.nargs == 0:
            return names
        value = action.metavar
        if not value and action.choices is not None:
            value = "{" + ",".join(action.choices) + "}"
        repeated = " ..." if action.nargs in ("+", "*") else ""
        return f"{names} {value or action.dest.upper()}{repeated}"


def shortened(message: str) -> str:
    """Return an error of argparse, which names all spellings of a flag, with only the first one."""
    return re.sub(r"(--\w[\w.]*)(?:/--\w[\w.]*)+", r"\1", message)


def tables_of(cls: type) -> dict[str, type]:
    """Return the types of the fields of `cls` that are tables of their own, by name."""
    return {
        name: kind
        for name, kind in _types_of(cls).items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }


def describe(cls: type) -> list[tuple[str, str, str, str]]:
    """Return (name, type, default, help) of each field of `cls` that is not in `tables_of`.

    The reference and `owt init` print them.
    """
    types_by_name = _types_of(cls)
    rows = []
    for field in dataclasses.fields(cls):
        kind = types_by_name[field.name]
        if dataclasses.is_dataclass(kind):
            continue
        default = "required" if field.default is dataclasses.MISSING else to_toml(field.default)
        rows.append(
            (field.name, allowed_values(field, kind), default, field.metadata.get("help", ""))
        )
    return rows


def to_toml(value: Any) -> str:
    """Return `value` as TOML; None, which TOML lacks, as an empty string."""
    if value is None:
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {to_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def _add_flag(
    parser: argparse._ActionsContainer,
    field: dataclasses.Field[Any],
    kind: Any,
    is_explained: bool,
) -> None:
    scalar, is_repeated, _ = parts_of(kind)
    # A flag without a default leaves no trace if it is not given, so the table's value stays.
    arguments: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
    arguments["help"] = _help(field) if is_explained else argparse.SUPPRESS
    if scalar is bool:
        parser.add_argument(f"--{field.name}", f"--no_{field.name}", action=_Switch, **arguments)
        return
    if is_repeated:
        # `--dumps a b --dumps c` names three.
        arguments["nargs"] = "+"
        arguments["action"] = "extend"
    parser.add_argument(
        f"--{field.name}", type=_converter(scalar), metavar=_metavar(field, scalar), **arguments
    )


def _help(field: dataclasses.Field[Any]) -> str:
    text = field.metadata.get("help", "")
    if field.default not in (dataclasses.MISSING, None, (), ""):
        text += f" (default: {_shown(field.default)})"
    # argparse formats the text with `%`.
    return str(text).replace("%", "%%")


def _metavar(field: dataclasses.Field[Any], scalar: type) -> str:
    if field.metadata.get("metavar"):
        return str(field.metadata["metavar"])
    choices = field.metadata.get("choices")
    if choices:
        return "{" + ",".join(choices) + "}"
    last_word = field.name.rpartition("_")[2]
    return _UNITS.get(last_word) or _METAVARS.get(scalar, "TEXT")


class _Switch(argparse.Action):
    """`--x` is true, `--no_x` false."""

    def __init__(self, option_strings: Sequence[str], dest: str, **arguments: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **arguments)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, option_string == f"--{self.dest}")


_METAVARS = {int: "N", float: "X"}

# The unit of an option, by the last word of its name.
_UNITS = {
    **dict.fromkeys(("timeout", "delay", "wait", "seconds"), "SECONDS"),
    "bytes": "BYTES",
    "gb": "GB",
    "mb": "MB",
    "days": "DAYS",
    "minutes": "MINUTES",
    "hours": "HOURS",
}


def _converter(scalar: type) -> Any:
    """Return a function from a flag's text to its value, for argparse."""

    def convert(text: str) -> Any:
        try:
            return scalar(text)
        except ValueError:
            description = DESCRIPTIONS[scalar]
            raise argparse.ArgumentTypeError(f"{text!r} is not {description}") from None

    return convert


def _shown(value: Any) -> str:
    """Return a default value for the help."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return shaping_options(value)
    # JSON has lists, no tuples.
    if isinstance(value, tuple):
        return list(value)
    return value


class ExitCode(IntEnum):
    """The exit status of a command; `meaning` is one line for the help and the documentation."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done; for `owt verify`: no problems found"
    ERROR = 1, "an error, in one line; for `owt verify`: problems found"
    USAGE = 2, "wrong usage: an unknown command, flag or setting, or a value that is not allowed"
    NOT_FOUND = (
        3,
        "not found: the folder is not a run, or has no such URL, dataset or document",
    )
    RUNNING = 4, "a job is running on a cluster; run the same command later to see its result"
    INTERRUPTED = 130, "interrupted (Ctrl-C); run the same command again to continue"
    NO_READER = 141, "the reader of the output has ended, as in `owt ls ... | head`"
    TERMINATED = 143, "terminated (SIGTERM); run the same command again to continue"
