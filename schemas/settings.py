"""Settings: a frozen dataclass is both a TOML table and a set of command-line flags.

    @dataclass(frozen=True)
    class Options:
        min_tokens: int = option(128, "documents with fewer are rejected", minimum=0)

`from_table` reads it from a parsed TOML table, `add_flags` and `flags_given` from the command
line, and both refuse a wrong value with the key, the value and what is allowed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import re
import textwrap
import types
import typing
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar, Union

T = TypeVar("T")

_SCALARS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


class SettingsError(ValueError):
    """A key that does not exist, or a value that is not allowed."""


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
) -> Any:
    """A field of an options dataclass.

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
      is_flag: whether there is a flag; else the option is for the settings file alone.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices) if choices is not None else None,
        "minimum": minimum,
        "maximum": maximum,
        "shapes_bytes": shapes_bytes,
        "metavar": metavar,
        "is_flag": is_flag,
    }
    if isinstance(default, (list, tuple)):
        default = tuple(default)
    return dataclasses.field(default=default, metadata=metadata)


_types_of = functools.cache(typing.get_type_hints)


def from_table(
    cls: type[T], table: Mapping[str, Any], where: str, flags: Mapping[str, Any] | None = None
) -> T:
    """An instance of the dataclass `cls` from a parsed TOML `table`, named `where` in errors.

    `flags`, by their names on the command line without the dashes, override the table; errors name
    them so.

    Raises:
      SettingsError: an unknown key (with the nearest right one), a value of the wrong type or out
        of its range, or a required key that is missing.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise SettingsError(f"{where}: unknown key '{key}'{did_you_mean(key, fields)}")
    kinds = _types_of(cls)  # type: ignore[arg-type]
    values = {
        key: _inner(kinds[key], value, where, key)
        if dataclasses.is_dataclass(kinds[key])
        else _checked(fields[key], kinds[key], value, f"{where}: {key}")
        for key, value in table.items()
    }
    for key, value in (flags or {}).items():
        values[key] = _checked(fields[key], kinds[key], value, f"--{key}")
    for name, f in fields.items():
        if (
            name not in values
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ):
            raise SettingsError(f"{where}: {name} is required: {f.metadata.get('help', '')}")
    return cls(**values)


def _inner(cls: Any, value: Any, where: str, key: str) -> Any:
    """The table `key` of the table `where`."""
    if isinstance(value, cls):
        return value
    place = f"{where[:-1]}.{key}]" if where.endswith("]") else f"{where}.{key}"
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"{place}: {value!r} is not a table, such as {{{dataclasses.fields(cls)[0].name} = 1}}"
        )
    return from_table(cls, value, place)


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
    kinds, left_out = _types_of(cls), set(without)
    for f in dataclasses.fields(cls):
        if f.name not in left_out and f.metadata.get("is_flag", True):
            _add_flag(parser, f, kinds[f.name], explained is None or f.name in explained)


def flags_given(cls: type, namespace: argparse.Namespace) -> dict[str, Any]:
    """The flags of `cls` that were given on the command line, as a table for `from_table`."""
    given = vars(namespace)
    return {f.name: given[f.name] for f in dataclasses.fields(cls) if f.name in given}


def shaping_options(options: Any) -> dict[str, Any]:
    """The options that shape the output's bytes, as JSON values: a part of a shard's key."""
    return {
        f.name: _as_json(getattr(options, f.name))
        for f in dataclasses.fields(options)
        if f.metadata.get("shapes_bytes", True)
    }


class FlagFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with one entry a flag: `--min_tokens N`."""

    def __init__(self, prog: str, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=30, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap the paragraphs of prose; keep those with indented lines, such as examples."""
        paragraphs = []
        for paragraph in text.strip("\n").split("\n\n"):
            lines = paragraph.splitlines()
            if not any(line.startswith(" ") for line in lines):
                lines = textwrap.wrap(paragraph, width - len(indent), break_on_hyphens=False)
            paragraphs.append("\n".join(indent + line for line in lines))
        return "\n\n".join(paragraphs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        if action.nargs == 0:
            return names
        value = action.metavar or (
            action.dest.upper() if action.choices is None else "{" + ",".join(action.choices) + "}"
        )
        return f"{names} {value}{' ...' if action.nargs in ('+', '*') else ''}"


def shortened(message: str) -> str:
    """An error of argparse, which names all spellings of a flag, with the first one alone."""
    return re.sub(r"(--\w[\w.]*)(?:/--\w[\w.]*)+", r"\1", message)


def tables_of(cls: type) -> dict[str, type]:
    """The fields of `cls` that are tables of their own."""
    return {
        name: kind
        for name, kind in _types_of(cls).items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }


def describe(cls: type) -> list[tuple[str, str, str, str]]:
    """(name, type, default, help) of each field of `cls` but those of `tables_of`, for the
    reference and `owt init`."""
    kinds = _types_of(cls)
    rows = []
    for f in dataclasses.fields(cls):
        if dataclasses.is_dataclass(kinds[f.name]):
            continue
        default = "required" if f.default is dataclasses.MISSING else to_toml(f.default)
        rows.append((f.name, _expected(f, kinds[f.name]), default, f.metadata.get("help", "")))
    return rows


def to_toml(value: Any) -> str:
    """`value` as TOML; None, which TOML lacks, as an empty string."""
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


def did_you_mean(key: str, allowed: Iterable[str]) -> str:
    """The end of an error about an unknown `key`: the nearest allowed one, or all of them."""
    allowed = list(allowed)
    return _suggestion(key, allowed) or f"; known: {', '.join(sorted(allowed))}"


def _suggestion(key: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.6)
    # perhaps the beginning of a longer name: gofer for gopher_quality, sample for sample-documents
    if not near:
        first = {name: re.split("[_-]", name)[0] for name in sorted(allowed)}
        near = [name for name in first if difflib.get_close_matches(key, [first[name]], cutoff=0.6)]
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def _unwrap(kind: Any) -> tuple[Any, bool, bool]:
    """(scalar type, is a tuple, may be None) of a field's type."""
    optional = False
    if typing.get_origin(kind) in (Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        optional = len(members) < len(typing.get_args(kind))
        (kind,) = members
    if typing.get_origin(kind) is tuple:
        return typing.get_args(kind)[0], True, optional
    return kind, False, optional


def _expected(f: dataclasses.Field[Any], kind: Any) -> str:
    scalar, many, optional = _unwrap(kind)
    choices = f.metadata.get("choices")
    low, high = f.metadata.get("minimum"), f.metadata.get("maximum")
    text = "one of " + ", ".join(choices) if choices else _SCALARS[scalar]
    if low is not None and high is not None:
        text += f" from {low} to {high}"
    elif low is not None:
        text += f" of at least {low}"
    elif high is not None:
        text += f" of at most {high}"
    if many:
        text = f"a list, each {text}"
    return text + (", or empty" if optional else "")


def _checked(f: dataclasses.Field[Any], kind: Any, value: Any, where: str) -> Any:
    scalar, many, optional = _unwrap(kind)
    if optional and (value is None or value == ""):
        return None
    if many:
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if f.metadata.get("choices"):  # which hold no comma: `--sources live,archive` is two
            items = [
                part
                for item in items
                for part in (item.split(",") if isinstance(item, str) else [item])
            ]
        expected = scalar if isinstance(value, (list, tuple, scalar)) else kind
        return tuple(_checked_scalar(f, expected, scalar, item, where) for item in items)
    return _checked_scalar(f, kind, scalar, value, where)


def _checked_scalar(
    f: dataclasses.Field[Any], kind: Any, scalar: type, value: Any, where: str
) -> Any:
    problem = f"{where}: {value!r} is not {_expected(f, kind)}"
    fits = not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
    if scalar is float and isinstance(value, int) and not isinstance(value, bool) and fits:
        value = float(value)
    if type(value) is not scalar:
        raise SettingsError(problem)
    choices = f.metadata.get("choices")
    if choices and value not in choices:
        raise SettingsError(problem + _suggestion(str(value), choices))
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{where}: {value} is not finite; expected {_expected(f, kind)}")
    if isinstance(value, (int, float)):
        low, high = f.metadata.get("minimum"), f.metadata.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            raise SettingsError(problem)
    if not fits:
        raise SettingsError(f"{where}: {value} does not fit into 64 bits")
    return value


def _add_flag(
    parser: argparse._ActionsContainer, f: dataclasses.Field[Any], kind: Any, shown: bool
) -> None:
    scalar, many, _ = _unwrap(kind)
    default = (
        ""
        if f.default in (dataclasses.MISSING, None, (), "")
        else f" (default: {_shown(f.default)})"
    )
    text = (f.metadata.get("help", "") + default).replace("%", "%%") if shown else argparse.SUPPRESS
    arguments: dict[str, Any] = {"dest": f.name, "default": argparse.SUPPRESS}
    if scalar is bool:
        parser.add_argument(f"--{f.name}", f"--no_{f.name}", action=_Switch, help=text, **arguments)
        return
    if many:
        arguments |= {"nargs": "+", "action": "extend"}
    choices = f.metadata.get("choices")
    metavar = f.metadata.get("metavar") or ("{" + ",".join(choices) + "}" if choices else None)
    parser.add_argument(
        f"--{f.name}",
        type=_converter(scalar),
        metavar=metavar or _unit(f.name) or {int: "N", float: "X"}.get(scalar, "TEXT"),
        help=text,
        **arguments,
    )


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


_UNITS = {
    **dict.fromkeys(("timeout", "delay", "wait", "seconds"), "SECONDS"),
    "bytes": "BYTES",
    "gb": "GB",
    "mb": "MB",
    "days": "DAYS",
    "minutes": "MINUTES",
    "hours": "HOURS",
}


def _unit(name: str) -> str | None:
    """The unit that an option's name ends in."""
    return _UNITS.get(name.rpartition("_")[2])


def _converter(scalar: type) -> Any:
    def convert(text: str) -> Any:
        try:
            return scalar(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {_SCALARS[scalar]}") from None

    return convert


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return shaping_options(value)
    return list(value) if isinstance(value, tuple) else value


class ExitCode(IntEnum):
    """What a command's exit status says; `meaning` is one line for the help and the
    documentation."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done; of verify: no problems found"
    ERROR = 1, "an error, in one line; of verify: something does not hold"
    USAGE = 2, "wrong usage: an unknown command, flag or setting, or a value that it does not take"
    NOT_FOUND = (
        3,
        "not found: the folder is not a run, the URL does not appear in it, or there is no such "
        "dataset or document",
    )
    RUNNING = (
        4,
        "a job on a cluster is at work on the run; the same command, run later, shows how it ended",
    )
    INTERRUPTED = 130, "interrupted (Ctrl-C); the same command continues where it stopped"
    NO_READER = 141, "the output has no reader any more, as in `owt ls ... | head`"
    TERMINATED = 143, "terminated (SIGTERM); the same command continues where it stopped"
