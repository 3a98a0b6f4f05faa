"""Find the messages of the code that advise something: a command, a deletion, a flag."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("owt_pipeline", "trainer", "schemas")

# They describe data, and advise nobody.
_DESCRIPTIONS = (
    "owt_pipeline/stages/clean/filters.py",
    "schemas/datasets.py",
    "schemas/reasons.py",
    "schemas/reference.py",
)

_VERBS = (
    "add|ask|check|choose|convert|copy|correct|delete|download|edit|fetch|free|give|hf|install|"
    "leave|make|mount|move|name|raise|rename|repeat|restore|run|save|see|set|start|take|tokenize|"
    "try|turn|use|write"
)
# A verb that begins a clause: "...: run X", "..., or delete Y", "... Use Z".
_ADVICE = re.compile(
    rf"(?:^|[:;.(] ?|, |\bor |\bthen |\band )(?:{_VERBS}) (?!{{}}$)|`(?:owt|pip|hf|warcio) "
    r"|pip install|--help|{command}|{did_you_mean}|{advice}",
    re.IGNORECASE,
)
_CALLS_OF_ADVICE = {
    "command": "{command}",
    "did_you_mean": "{did_you_mean}",
    "_advice": "{advice}",
}
# Text that a person reads before a mistake, not after one.
_EXPLAINS = (
    "option",
    "_how",
    "not_in_key",
    "toml_only",
    "_api",
    "add_argument",
    "add_argument_group",
    "CommandParser",
    "compile",
)
_EXAMPLES = ("example", "_EXAMPLES", "help", "COMMANDS", "MODELS", "_USAGE")


def advising_messages(repository: Path) -> dict[str, str]:
    """Return each message that advises something, with its file and line.

    `{}` stands for an interpolated value, and `{command}` for a complete command line.
    """
    place_by_message = {}
    for package in PACKAGES:
        for path in sorted((repository / package).rglob("*.py")):
            name = str(path.relative_to(repository))
            if name in _DESCRIPTIONS:
                continue
            for line, text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
                is_sql = "SELECT" in text or text.startswith("SET ")
                if " " not in text or is_sql or not _ADVICE.search(text):
                    continue
                place_by_message[text] = f"{name}:{line}"
    return place_by_message


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string below a node but docstrings and explanations."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _EXAMPLES:
        return
    if isinstance(node, ast.FunctionDef) and node.name in ("_usage", "_parser"):
        return
    if isinstance(node, ast.Call) and _name_of(node) in _EXPLAINS:
        return
    text = _text_of(node)
    if text is not None:
        yield getattr(node, "lineno", 0), text
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _text_of(node: ast.AST) -> str | None:
    """Return the text of a string, an f-string or their sum; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(value) or _interpolated(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = _text_of(node.left)
        right = _text_of(node.right)
        if left is None and right is None:
            return None
        return (left or _interpolated(node.left)) + (right or _interpolated(node.right))
    return None


def _interpolated(node: ast.AST) -> str:
    """Return what stands for an expression in a message."""
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(inner, ast.Call):
        return _CALLS_OF_ADVICE.get(_name_of(inner), "{}")
    if isinstance(inner, ast.Name) and inner.id in ("advice", "remedy", "hint"):
        return "{advice}"
    return "{}"


def _name_of(call: ast.Call) -> str:
    """Return the last name of the function that is called."""
    return ast.unparse(call.func).rpartition(".")[2]
