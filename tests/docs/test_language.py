"""The documentation, docstrings, comments, messages and names use the words of CONTRIBUTING.md's glossary."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PACKAGES = ("owt_pipeline", "trainer", "schemas", "dags", "flex", "docs", "tests", "benchmarks")

AVOID = {
    r"besides?": "next to, in addition to",
    r"(?:fore)?told": "said, shown, distinguished",
    r"stand(?:s|ing)": "is, applies, represents",
    r"broken off": "interrupted",
    r"fates?": "outcomes",
    r"aloud": "in a message",
    r"becom(?:es|e) of|became of": "happens to",
    r"whole(?! numbers?\b| years\b)": "complete",
    r"yes-man": "always agrees",
}
"""Words that read as translated, and what to write in their place."""

WORDS = re.compile(r"\b(?:" + "|".join(AVOID) + r")\b", re.IGNORECASE)
NAMES = re.compile(r"(?:^|_)(?:aloud|besides?|fates?|story|(?:fore)?told|stand(?:s|ing)?|whole)(?:_|$)")
"""The same words in a name of ours; `Story` is one of them as `story` is."""

FENCE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def prose_of_markdown(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, text) of a page, without its code."""
    text = FENCE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text(encoding="utf-8"))
    yield from enumerate(text.splitlines(), 1)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def prose_of_python(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, text) of a module's comments and of its strings of several words that are no patterns."""
    source = path.read_text(encoding="utf-8")
    tree = parsed(path)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    patterns = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in patterns:
            for number, line in enumerate(node.value.splitlines(), node.lineno):
                if len(line.split()) > 2 and not re.search(r"\(\?|\[\\|\\b", line):
                    yield number, re.sub(r"`[^`]*`", "", line)


def names_of_python(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, name) of what a module defines: functions, classes, parameters, variables; its own name too."""
    yield 1, path.stem
    for node in ast.walk(parsed(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def found_in(path: Path) -> list[str]:
    prose = prose_of_markdown(path) if path.suffix == ".md" else prose_of_python(path)
    return [
        f"{path.relative_to(REPOSITORY)}:{number}: {match[0]!r}: {' '.join(text.split())[:100]}"
        for number, text in prose
        for match in WORDS.finditer(text)
    ]


def pages() -> list[Path]:
    made = {REPOSITORY / "docs/api.md", *(REPOSITORY / "docs/options").glob("*.md")}
    return [path for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")) if path not in made]


@pytest.mark.parametrize("package", ["pages", *PACKAGES])
def test_no_word_that_reads_as_translated(package: str) -> None:
    paths = pages() if package == "pages" else sorted({*(REPOSITORY / package).rglob("*.py")} - {Path(__file__)})
    wrong = [line for path in paths for line in found_in(path)]
    assert not wrong, "\n".join(["write it with the words of CONTRIBUTING.md:", *wrong])


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_that_reads_as_translated(package: str) -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{number}: {name}"
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for number, name in names_of_python(path)
        if NAMES.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    ]
    assert not wrong, "\n".join(["name it with the words of CONTRIBUTING.md:", *wrong])


def test_the_check_finds_words_in_prose_and_leaves_code_alone(tmp_path: Path) -> None:
    text = (
        'def f():\n    """It stands beside it."""\n    whole = 1  # told twice\n    return "a whole number is fine"\n'
    )
    (tmp_path / "m.py").write_text(text)
    assert [match[0] for _, line in prose_of_python(tmp_path / "m.py") for match in WORDS.finditer(line)] == [
        "told", "stands", "beside"
    ]  # fmt: skip
    assert [name for _, name in names_of_python(tmp_path / "m.py") if NAMES.search(name)] == ["whole"]
