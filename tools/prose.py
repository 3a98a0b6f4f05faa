"""Measures how the code reads, and fails where a package is worse than its floors.

    python tools/prose.py              a row for each package; exit status 1 below a floor
    python tools/prose.py PATH ...     the same columns for these files or folders

Columns; "per 1,000" is per 1,000 lines of code, without docstrings, comments and blank lines:

    tokens     tokens per line of code
    nested     % of statements with expressions nested seven deep
    if-else    conditional expressions per 1,000
    tuple      assignments such as `a, b = x, y` per 1,000
    generic    % of bound names that do not describe their value, such as `found`
    comments   comments on lines of their own per 1,000
    verb       % of function docstrings that begin with a verb; noun: with "The", "Whether", "What"
    dialect    matches of DIALECT per 1,000, in comments, docstrings and messages

docs/writing-code.md has the rules. The figures are a thermometer: a better name is not measured.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The worst values that a package may have. A row that the program prints can stand here.
FLOORS = """
                 tokens   nested  if-else    tuple  generic comments     verb     noun  dialect
owt_pipeline        9.5       12       15        4      1.5       25       70       10        5
trainer             9.5       12       15        4      1.5       25       70       10        5
schemas             9.5       12       15        4      1.5       25       70       10       11
dags                9.5       12       15        4      1.5       25       70       10        5
benchmarks          9.5       12       15        4      1.5       25       70       10        5
tests               9.0     13.5      8.5        1        1       15       90        3        4
"""
MINIMUMS = {"comments", "verb"}

GENERIC = set("""
    about after all another asked before both each enough few found given gone here how kept known
    least less made many more most needed obj one other others own rest res ret said same some
    stuff such temp that them there these thing things this those tmp wanted was what where which
""".split())  # fmt: skip
VERBS = set("""
    accept add allow append apply ask assert await begin build call cancel change check choose clean
    clear close collect combine compare compile compress compute connect continue convert copy count
    create cut decide decode define delete describe detect download draw drop emit encode ensure
    estimate evaluate execute expand export extend extract fail fetch fill filter find fit fold
    follow format generate get give group guess handle hash hold import insert install iterate join
    judge keep label launch leave let limit list load lock log look make map mark match measure
    merge move name normalize open order parse pass pick plan predict prepare print produce provide
    publish put raise read rebuild record reject remove rename render repeat replace report request
    require reset resolve restore restrict resume retry return reverse rewrite run sample save scale
    scan score search select send serve set share show skip sort split start stop store stream strip
    submit sum take tell test tokenize train translate truncate try turn update upload use validate
    verify wait walk warn weigh work write yield
""".split())  # fmt: skip
NOUN_HEADS = set("a all an how that the those what where whether why".split())
DIALECT = re.compile(
    r"\bso (many|much|long|often|few)\b(?! (as|that)\b)"
    r"|(?<!there )\b(is|are|was|were) (no|none|neither)\b(?! (longer|more|need)\b)"
    r"|(?<!see )(?<!know )\bwhat (is|was|are|were|has|have|a|an|it|they|each|comes?)\b"
    r"|(?<!, )\b(say|says|said|tell|tells|told)\b(?! if\b)"
    r"|\b(those|that) of (the|its|a|an|each|all|this|other)\b|\bones? of (it|them|its)\b"
    r"|(?<!stand )(?<!let )(?<!left )\balone\b|\bbut for\b|\bof (which|whom)\b"
    r"|\b(asked|manners|forgiv\w+|gone(?! through)|anew|made again|for good|likewise)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"``?[^`]*``?|\"[^\"\n]*\"|\{[^}\n]*\}")
PRAGMA = re.compile(r"#\s*(type:|noqa|fmt:|pylint|ruff|mypy|!)")
WITHOUT_EXPRESSIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.Try)
EXPRESSIONS = (ast.expr, ast.comprehension, ast.keyword)


def count(path: Path) -> Counter[str]:
    """Return the counts of a Python file."""
    source = path.read_text(encoding="utf-8")
    counts: Counter[str] = Counter()
    lines_of_code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("NAME", "OP", "NUMBER"):
            counts["token"] += 1
            lines_of_code.add(token.start[0])
        elif kind == "COMMENT" and not PRAGMA.match(token.string):
            counts["comment"] += token.line.lstrip().startswith("#")
            counts["dialect"] += count_dialect(token.string)
    counts["code"] = len(lines_of_code)
    for node in ast.walk(ast.parse(source)):
        count_node(node, counts)
    return counts


def count_dialect(text: str) -> int:
    """Return how often DIALECT matches a text, except in code and quotations."""
    return len(DIALECT.findall(QUOTED.sub("`x`", text)))


def count_node(node: ast.AST, counts: Counter[str]) -> None:
    """Add the counts of one node of the syntax tree."""
    if isinstance(node, ast.stmt) and not isinstance(node, WITHOUT_EXPRESSIONS):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        counts["statement"] += not is_text
        counts["nested"] += depth(node) >= 7
    if isinstance(node, ast.IfExp):
        counts["if-else"] += 1
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        counts["tuple"] += isinstance(node.targets[0], ast.Tuple) and not is_swap(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        # Shorter strings are keys and names.
        if node.value.count(" ") > 2:
            counts["dialect"] += count_dialect(node.value)
    elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        counts["dialect"] += count_dialect(node.name.replace("_", " "))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        # Properties and fixtures are described as the value that they return.
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        docstring = ast.get_docstring(node)
        if docstring and not re.search("property|fixture|overload", decorators):
            head = re.sub(r"\W.*", "", docstring.split()[0].lower())
            stems = {head, head.removesuffix("s"), head.removesuffix("es")}
            counts["docstring"] += 1
            counts["verb"] += not VERBS.isdisjoint(stems)
            counts["noun"] += head in NOUN_HEADS
    if name := bound_name(node):
        words = set(re.split(r"[_\d]+", name.lower())) - {""}
        counts["binding"] += 1
        counts["generic"] += bool(words) and words <= GENERIC


def bound_name(node: ast.AST) -> str | None:
    """Return the parameter, variable or attribute that a node binds."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return None


def is_swap(node: ast.Assign) -> bool:
    """Return whether a value of the assignment uses one of its targets."""
    used = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    return not used.isdisjoint(map(ast.unparse, node.targets[0].elts))  # type: ignore[attr-defined]


def depth(node: ast.AST) -> int:
    """Return how deep the expressions of a statement are nested."""
    children = (child for child in ast.iter_child_nodes(node) if isinstance(child, EXPRESSIONS))
    return 1 + max(map(depth, children), default=0)


def measure(path: Path) -> dict[str, float]:
    """Return the columns of a file, or of all Python files of a folder."""
    counts: Counter[str] = Counter()
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        counts += count(file)
    code = max(counts["code"], 1)
    docstrings = max(counts["docstring"], 1)
    return {
        "tokens": counts["token"] / code,
        "nested": 100 * counts["nested"] / max(counts["statement"], 1),
        "if-else": 1000 * counts["if-else"] / code,
        "tuple": 1000 * counts["tuple"] / code,
        "generic": 100 * counts["generic"] / max(counts["binding"], 1),
        "comments": 1000 * counts["comment"] / code,
        "verb": 100 * counts["verb"] / docstrings,
        "noun": 100 * counts["noun"] / docstrings,
        "dialect": 1000 * counts["dialect"] / code,
    }


def main(paths: list[str]) -> int:
    """Print a row for each path, or for each package with floors; return the exit status."""
    header, *rows = (line.split() for line in FLOORS.strip().splitlines())
    floors = {name: dict(zip(header, map(float, row), strict=True)) for name, *row in rows}
    print(f"{'':14}", *(f"{column:>8}" for column in header))
    failures = []
    for name in paths or floors:
        values = measure(Path(name) if paths else ROOT / name)
        print(f"{name:14}", *(f"{values[column]:8.1f}" for column in header))
        for column, floor in floors.get(name, {}).items():
            sign = -1 if column in MINIMUMS else 1
            if sign * round(values[column], 1) > sign * floor:
                failures.append(f"{name}: {column} is {values[column]:.1f}, the floor is {floor}")
    sys.stdout.flush()
    sys.stderr.writelines(f"{failure}\n" for failure in failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
