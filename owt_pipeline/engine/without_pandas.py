"""pyarrow imports pandas, where it is installed, as soon as it makes an array: 50 MB a process, for nothing here."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas when it first looks for it; `to_pandas` looks again, and works as ever."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]  # the class is the finder
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)  # type: ignore[arg-type]


class _NoPandas:
    """An import finder (importlib.abc.MetaPathFinder) to which there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
