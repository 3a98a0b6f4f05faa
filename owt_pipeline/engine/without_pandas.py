"""pyarrow and Beam import pandas, where it is installed: 50 MB a process and half a second, for nothing here."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas when it first looks for it; `to_pandas` looks again, and works as ever."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    with _hidden():
        pa.array([])


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Let the block import what is large, without pandas and without a search for garbage, of which imports make none.

    Beam takes 0.9 s of the CPU so, 1.3 s otherwise. What was imported is left out of all later searches.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        with _hidden():
            yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _hidden() -> Iterator[None]:
    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]  # the class is the finder
    try:
        yield
    finally:
        sys.meta_path.remove(_NoPandas)  # type: ignore[arg-type]


class _NoPandas:
    """An import finder (importlib.abc.MetaPathFinder) to which there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
