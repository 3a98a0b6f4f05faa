"""Load and describe functions of the user's own, which an option names as `module:function`."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from owt_pipeline.errors import UserError


def load_own(name: str, option: str) -> Callable[..., Any]:
    """Load the function `name`, `module:function`; raise UserError, which names `option`."""
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        stem = os.path.basename(module_name).removesuffix(".py")
        raise UserError(
            f"{option}: {name} names a file; expected a module, as in {stem}:{attribute}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        advice = ""
        if error.name == module_name:
            advice = f"; run the command in the folder that has {module_name}.py, or set PYTHONPATH"
        raise UserError(f"{option}: {name} cannot be imported ({error}){advice}") from error
    except ImportError as error:
        raise UserError(f"{option}: {name} cannot be imported ({error})") from error
    except Exception as error:
        # The user's code may raise anything.
        raise UserError(
            f"{option}: {name} cannot be imported ({type(error).__name__}: {error})"
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
    """Return the name of the user's function and the SHA-256 of its source, for a stage's key.

    The source is the file of its module, and the file of the module in which it is defined, if that
    is another one. A module without a file has no digest. Raises UserError.
    """
    modules = dict.fromkeys([load_own(name, option).__module__, name.partition(":")[0]])
    files = dict.fromkeys(getattr(sys.modules.get(module), "__file__", None) for module in modules)
    digest = hashlib.sha256()
    for path in filter(None, files):
        with open(path, "rb") as file:
            digest.update(file.read())
    return {"name": name} | ({"sha256": digest.hexdigest()} if any(files) else {})
