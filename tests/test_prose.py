"""The measure of language counts what its columns name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.prose import FLOORS, MINIMUMS, count_dialect, main, measure

DENSE = '''\
def shares(found, some):
    """The shares of so many rows."""
    first, second = found[0], some[0]  # of those of the others
    return max(abs(min(int(str(found[len(some)]))), 1)) if found else None
'''
PLAIN = '''\
def share_of_row(rows, num_columns):
    """Return the share of one row in all rows."""
    # A row without columns has no share.
    if num_columns == 0:
        return 0
    first, rest = rows.split()
    return rest
'''


def measured(source: str, tmp_path: Path) -> dict[str, float]:
    """Return the columns of a source text."""
    file = tmp_path / "module.py"
    file.write_text(source)
    return measure(file)


def test_dense_code_is_worse_in_every_column(tmp_path: Path) -> None:
    dense = measured(DENSE, tmp_path)
    plain = measured(PLAIN, tmp_path)
    for column in dense:
        sign = -1 if column in MINIMUMS else 1
        assert sign * dense[column] > sign * plain[column], column


def test_each_column_is_a_ratio_of_its_kind(tmp_path: Path) -> None:
    assert measured(DENSE, tmp_path) == {
        "tokens": pytest.approx(50 / 3),
        "nested": pytest.approx(100 / 3),
        "if-else": pytest.approx(1000 / 3),
        "tuple": pytest.approx(1000 / 3),
        "generic": 50,
        "comments": 0,
        "verb": 0,
        "noun": 100,
        "dialect": pytest.approx(2000 / 3),
    }


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("A folder is no run, and what is gone was asked for anew.", 5),
        ("The header says so many things of which none is true.", 3),
        ('A row that has no text; `says` and "those of the others" are quoted.', 0),
        ("There is no such file. Files must not be left alone.", 0),
    ],
)
def test_the_dialect_is_counted_outside_of_quotations(text: str, matches: int) -> None:
    assert count_dialect(text) == matches


def test_a_swap_or_an_unpacked_call_is_not_counted(tmp_path: Path) -> None:
    source = "a = 1\nb = 2\na, b = b, a\nc, d = a.split()\n"
    assert measured(source, tmp_path)["tuple"] == 0


def test_a_package_below_a_floor_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = FLOORS.strip().splitlines()[0]
    monkeypatch.setattr("tools.prose.FLOORS", f"{header}\ntools 20 90 90 90 9 900 0 90 1000\n")
    assert main([]) == 1
    assert "the floor is" in capsys.readouterr().err
    monkeypatch.setattr("tools.prose.FLOORS", f"{header}\ntools 20 90 90 90 9 0 0 90 1000\n")
    assert main([]) == 0
