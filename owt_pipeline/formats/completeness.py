"""The check that a reader yielded as much as the container declares.

A library's iterator that ends is not proof that the file ended: Arrow and decompressors also
end at a hollow piece.
"""

from __future__ import annotations


def check_is_complete(piece: str, num_read: int, num_declared: int, unit: str) -> None:
    """Raise OSError if `num_read` of a piece's `num_declared` units, such as rows, were read."""
    if num_read != num_declared:
        raise OSError(
            f"{piece} declares {num_declared:,} {unit}, but has {num_read:,}: the file is damaged, "
            "or its writer was stopped; create or download it again"
        )
