"""The table of characters is the oldest Python's, and no function asks a newer one."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.characters import apply_to_known, hide_unassigned, ranges_by_class
from tests.conftest import REPOSITORY

# Unicode 15 added the emoji and the letter of Kawi, Unicode 16 the letter with a lower case.
NEW = "\U0001fa77\U00011f02\ua7cb"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the table has Python 3.11's classes")
def test_the_table_is_what_the_oldest_python_writes() -> None:
    program = REPOSITORY / "tools/character_classes.py"
    written = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    table = REPOSITORY / "owt_pipeline/formats/character_classes.txt"
    assert written.stdout == table.read_text("ascii")


def test_a_character_of_a_word_is_in_one_class() -> None:
    num_codes = 0
    codes: set[int] = set()
    for name in ("letters", "marks", "unspaced"):
        for first, last in ranges_by_class()[name]:
            codes.update(range(first, last + 1))
            num_codes += last + 1 - first
    assert num_codes == len(codes)


@given(st.text(st.one_of(st.characters(), st.sampled_from(NEW + "\ud800\U00051234")), min_size=1))
def test_hidden_characters_come_back(text: str) -> None:
    assert apply_to_known(str, text) == text
    hidden = hide_unassigned(text)
    assert len(hidden) == len(text)
    for char, in_place in zip(text, hidden, strict=True):
        assert in_place == char or (ord(in_place) >> 16 in range(5, 9) and ord(char) < 0x40000)


def test_a_function_does_not_know_characters_of_newer_pythons() -> None:
    assert apply_to_known(str.lower, f"A{NEW}B") == f"a{NEW}b"
    assert not any(map(str.isalnum, hide_unassigned(NEW)))
    assert [unicodedata.category(char) for char in hide_unassigned(NEW)] == ["Cn"] * 3


def test_a_function_may_drop_and_move_hidden_characters() -> None:
    assert apply_to_known(lambda text: text[::-1][:2], NEW) == NEW[::-1][:2]


def test_new_characters_that_a_function_makes_stay() -> None:
    """Repaired mojibake may be an emoji that the table does not have."""
    assert apply_to_known(lambda text: text + NEW, "a") == f"a{NEW}"
    assert apply_to_known(lambda text: text + NEW, NEW) == NEW + NEW
