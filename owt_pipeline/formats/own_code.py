"""Load and describe functions that an option names.

A name is `module:function` of the user's own, or an entry point of an installed package.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from owt_pipeline.additions import EXTRACTORS, FILTERS, Addition, additions_to
from owt_pipeline.errors import UsageError, UserError

_GROUPS = {"signals": FILTERS, "extractor": EXTRACTORS}


def _addition_of(name: str, option: str) -> Addition | None:
    """Return the entry point that a name means; None for `module:function`."""
    if ":" in name:
        return None
    addition = additions_to(_GROUPS[option]).get(name)
    if addition is None:
        raise UsageError(
            f"{option}: {name!r} is not module:function, and no installed package adds it"
        )
    return addition


def load_own(name: str, option: str) -> Callable[..., Any]:
    """Load the function `name`; raise UserError, which names `option`."""
    addition = _addition_of(name, option)
    target = addition.target if addition else name
    module_name, _, attribute = target.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        stem = os.path.basename(module_name).removesuffix(".py")
        raise UserError(
            f"{option}: {name} names a file; expected a module, as in {stem}:{attribute}"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # The user's code may raise anything.
        advice = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            advice = f"; run the command in the folder that has {module_name}.py, or set PYTHONPATH"
        raise UserError(
            f"{option}: {name} cannot be imported ({type(error).__name__}: {error}){advice}"
        ) from error
    if not hasattr(module, attribute):
        raise UserError(f"{option}: the module {module_name} has no function {attribute!r}")
    function = getattr(module, attribute)
    if not callable(function):
        raise UserError(f"{option}: {name} is of type {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def try_own(function: Callable[..., Any], argument: Any, name: str, option: str) -> Any:
    """Call the user's `function` once and return its result.

    A function that raises for an ordinary document would reject every document of a run, so it is
    called before the run's first stage. Raises UserError with the place in the user's code.
    """
    try:
        return function(argument)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = ""
        # The only frame is the call here if the function does not take the argument.
        if len(frames) > 1:
            place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
        raise UserError(
            f"{option}: {name} fails with an ordinary document: {type(error).__name__}: {error}"
            f"{place}. Correct it, then run the same command again"
        ) from error


def describe_own(name: str, option: str) -> dict[str, str]:
    """Return the name of a function, its package and the SHA-256 of its source, for a stage's key.

    The source is the file of its module, and the file of the module in which it is defined, if that
    is another one. A module without a file has no digest. Raises UserError.
    """
    addition = _addition_of(name, option)
    target = addition.target if addition else name
    modules = dict.fromkeys([load_own(name, option).__module__, target.partition(":")[0]])
    files = dict.fromkeys(getattr(sys.modules.get(module), "__file__", None) for module in modules)
    digest = hashlib.sha256()
    for path in filter(None, files):
        with open(path, "rb") as file:
            digest.update(file.read())
    description = {"name": name}
    if addition:
        description["package"] = addition.package
    if any(files):
        description["sha256"] = digest.hexdigest()
    return description
