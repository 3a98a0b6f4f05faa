"""The value of an option: its allowed values in words, and its conversion from TOML or a flag."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

DESCRIPTIONS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}

# TOML promises whole numbers of 64 bits, with a sign.
_MIN_INT = -(1 << 63)
_MAX_INT = (1 << 63) - 1
_MAX_FLOAT = sys.float_info.max


class SettingsError(ValueError):
    """A key that does not exist, or a value that is not allowed."""


class FieldType(NamedTuple):
    """The type of a field, in parts: `tuple[str, ...] | None` is a str, repeated, optional.

    A `Sequence[str]` is one, too: the value is a tuple, and a caller may give a list."""

    scalar: type
    is_repeated: bool
    is_optional: bool


def parts_of(kind: Any) -> FieldType:
    """Return the parts of a field's type."""
    is_optional = False
    # `int | None` is a UnionType, `Optional[int]` a Union.
    if typing.get_origin(kind) in (Union, types.UnionType):
        members = typing.get_args(kind)
        is_optional = type(None) in members
        (kind,) = (member for member in members if member is not type(None))
    if typing.get_origin(kind) in (tuple, Sequence):
        return FieldType(typing.get_args(kind)[0], True, is_optional)
    return FieldType(kind, False, is_optional)


def allowed_values(field: dataclasses.Field[Any], kind: Any) -> str:
    """Return the allowed values of a field, in words."""
    scalar, is_repeated, is_optional = parts_of(kind)
    choices = field.metadata.get("choices")
    low = field.metadata.get("minimum")
    high = field.metadata.get("maximum")
    text = "one of " + ", ".join(choices) if choices else DESCRIPTIONS[scalar]
    if low is not None and high is not None:
        text += f" from {low} to {high}"
    elif low is not None:
        text += f" of at least {low}"
    elif high is not None:
        text += f" of at most {high}"
    if is_repeated:
        text = f"a list, each {text}"
    if is_optional:
        text += ", or empty"
    return text


def convert(field: dataclasses.Field[Any], kind: Any, value: Any, name: str) -> Any:
    """Return a field's value from TOML or a flag; raise SettingsError, which begins with `name`."""
    scalar, is_repeated, is_optional = parts_of(kind)
    # TOML has no null, so an empty string stands for it.
    if is_optional and (value is None or value == ""):
        return None
    if not is_repeated:
        return _convert_scalar(field, kind, value, name)
    is_list = isinstance(value, (list, tuple))
    items = list(value) if is_list else [value]
    if field.metadata.get("choices") and items == ["none"]:
        # A flag cannot be an empty list, and a preset can have set another one.
        return ()
    if field.metadata.get("choices"):
        # No choice has a comma: `--sources live,archive` names two.
        items = _split_at_commas(items)
    # The error about a wrong item of a list describes an item, not the list.
    described = scalar if is_list or isinstance(value, scalar) else kind
    return tuple(_convert_scalar(field, described, item, name) for item in items)


def _split_at_commas(items: Iterable[Any]) -> list[Any]:
    parts: list[Any] = []
    for item in items:
        parts += item.split(",") if isinstance(item, str) else [item]
    return parts


def _convert_scalar(field: dataclasses.Field[Any], kind: Any, value: Any, name: str) -> Any:
    """Return a single value of a field; the error describes the values of `kind`."""
    scalar = parts_of(kind).scalar
    # A whole number is taken for a float; no other type is taken for another one.
    try:
        converted = msgspec.convert(value, _constrained(field, scalar))
    except msgspec.ValidationError:
        allowed = allowed_values(field, kind)
        if scalar is float and isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{name}: {value} is not finite; expected {allowed}") from None
        choices = field.metadata.get("choices")
        hint = _suggestion(value, choices) if choices and isinstance(value, str) else ""
        raise SettingsError(f"{name}: {value!r} is not {allowed}{hint}") from None
    if scalar is int and not _MIN_INT <= converted <= _MAX_INT:
        raise SettingsError(f"{name}: {value} does not fit into 64 bits")
    if field.metadata.get("is_path"):
        # A shell does not expand the `~` of `--out=~/x`, of a quoted path, or of a settings file.
        return os.path.expanduser(converted)
    return converted


def _constrained(field: dataclasses.Field[Any], scalar: type) -> Any:
    """Return the type of a field's values for msgspec, with their choices or bounds."""
    choices = field.metadata.get("choices")
    if choices:
        return Literal[choices]
    if scalar not in (int, float):
        return scalar
    low = field.metadata.get("minimum")
    high = field.metadata.get("maximum")
    if scalar is float:
        # Bounds that every finite number keeps: infinity and NaN are refused.
        low = -_MAX_FLOAT if low is None else low
        high = _MAX_FLOAT if high is None else high
        return Annotated[float, msgspec.Meta(ge=float(low), le=float(high))]
    # msgspec takes bounds of 64 bits only, so the range of TOML is checked afterwards.
    return Annotated[int, msgspec.Meta(ge=low, le=high)]


def did_you_mean(key: str, allowed: Iterable[str]) -> str:
    """Return the end of an error about an unknown key: the nearest allowed one, or all of them."""
    names = list(allowed)
    return _suggestion(key, names) or f"; known: {', '.join(sorted(names))}"


def nearest_words(word: str, allowed: Iterable[str], cutoff: float = 0.67) -> list[str]:
    """Return the allowed word nearest to a misspelled one, or an empty list.

    Capitals and the dashes of flags do not count. A word is near if about two thirds of its letters
    are right: a suggestion beyond that misleads more often than it helps.
    """
    allowed_by_letters = {name.lstrip("-").lower(): name for name in allowed}
    letters = word.lstrip("-").lower()
    near = difflib.get_close_matches(letters, allowed_by_letters, n=1, cutoff=cutoff)
    return [allowed_by_letters[name] for name in near]


def _suggestion(key: str, allowed: Sequence[str]) -> str:
    near = nearest_words(key, allowed)
    if not near:
        # A key may be the beginning of a longer name, as gofer is of gopher_quality.
        for name in sorted(allowed):
            first_word = re.split("[_-]", name)[0]
            if nearest_words(key, [first_word]):
                near.append(name)
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
