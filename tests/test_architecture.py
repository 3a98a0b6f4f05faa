"""Imports go one way, from commands down to schemas, and never in a circle.

They are read from the source, also the imports within functions and for a type checker. Two kinds
are left out: imports that run only if a module is started as a program, and those that show a type
checker the package's library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from owt_pipeline import cli, pipeline

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("owt_pipeline", "trainer", "schemas", "dags")
STAGES = (
    "collect",
    "fetch",
    "extract",
    "import_text",
    "clean",
    "dedupe",
    "export",
    "tokenize",
    "report",
)

# The rooms of `owt_pipeline`, from the lowest floor up. A module imports from its own room and from
# rooms on lower floors. Except for STAGES, it also imports from rooms on its own floor. `cli` loads
# commands by name. Nothing imports `owt_pipeline` itself, which is the face of the package.
FLOORS = (
    ("schemas",),
    ("additions", "errors", "foreign_words", "progress", "version"),
    ("storage",),
    ("ledger",),
    ("engine", "formats"),
    STAGES,
    ("library", "transforms"),
    ("pipeline", "stages", "config", "command_line", "cli"),
    ("commands", "demo", "flex_template", "__main__"),
    ("owt_pipeline",),
)

# The floors within a stage that has folders. A module imports from its own folder and lower floors.
ALCOVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "fetch": (
        ("page_sources",),
        ("options",),
        ("answers",),
        ("segments",),
        ("rounds", "outcomes"),
        ("recorder",),
        ("web",),
        ("archives",),
        ("shards",),
        ("stage",),
    ),
    "extract": (
        ("built_in", "charset"),
        ("options",),
        ("html",),
        ("content",),
        ("extractor",),
        ("not_pages", "reserved"),
        ("block_extractor",),
        ("pages",),
        ("stage",),
    ),
}


class Import(NamedTuple):
    """`importer` imports `name` of the module `module`, or all of it if the name is empty."""

    importer: str
    module: str
    name: str


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the packages' modules, by name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {_name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports() -> list[Import]:
    """Return the imports of all modules."""
    return list(chain.from_iterable(_imports_of(name, tree) for name, tree in modules().items()))


def _imports_of(importer: str, node: ast.AST) -> Iterator[Import]:
    """Yield the imports of a syntax tree, except those that are left out."""
    for child in ast.iter_child_nodes(node):
        condition = ast.unparse(child.test) if isinstance(child, ast.If) else ""
        if condition == "__name__ == '__main__'":
            continue
        if condition == "TYPE_CHECKING" and importer == "owt_pipeline":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(importer, alias.name, "") for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer}: a relative import"
            for alias in child.names:
                module = f"{child.module}.{alias.name}"
                if module in modules():
                    yield Import(importer, module, "")
                else:
                    yield Import(importer, str(child.module), alias.name)
        yield from _imports_of(importer, child)


def own_imports() -> list[Import]:
    """Return the imports of our own modules."""
    return [line for line in imports() if line.module in modules() and line.module != line.importer]


def room(module: str) -> str:
    """Return the room of a module; "" outside of `owt_pipeline` and `schemas`.

    A room is one of these packages, or a folder or module right below `owt_pipeline` or its
    `stages`.
    """
    package, *names = module.split(".")
    if package not in ("schemas", "owt_pipeline"):
        return ""
    if package == "schemas" or not names:
        return package
    is_in_stages = names[0] == "stages" and len(names) > 1
    return names[1] if is_in_stages else names[0]


def floor(module: str) -> int:
    """Return the number of the floor of a module's room."""
    (number,) = (number for number, rooms in enumerate(FLOORS) if room(module) in rooms)
    return number


def test_imports_go_down_the_floors_and_not_from_stage_to_stage() -> None:
    wrong = []
    for line in own_imports():
        importing_room = room(line.importer)
        imported_room = room(line.module)
        if not (importing_room and imported_room):
            continue
        importing_floor = floor(line.importer)
        imported_floor = floor(line.module)
        is_another_stage = importing_room != imported_room and {
            importing_room,
            imported_room,
        } <= set(STAGES)
        if imported_floor > importing_floor or is_another_stage:
            wrong.append(
                f"{line.importer} (floor {importing_floor}) imports {line.module} "
                f"(floor {imported_floor})"
            )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("stage", ALCOVES)
def test_imports_within_a_stage_go_down_its_floors(stage: str) -> None:
    prefix = f"owt_pipeline.stages.{stage}."
    floor_by_name = {name: number for number, row in enumerate(ALCOVES[stage]) for name in row}

    def name_within(module: str) -> str:
        return module.removeprefix(prefix).partition(".")[0]

    within = [name for name in modules() if name.startswith(prefix)]
    assert {name_within(module) for module in within} == set(floor_by_name)
    wrong = []
    for line in own_imports():
        if not (line.importer.startswith(prefix) and line.module.startswith(prefix)):
            continue
        importer = name_within(line.importer)
        imported = name_within(line.module)
        if importer != imported and floor_by_name[imported] >= floor_by_name[importer]:
            wrong.append(f"{line.importer} imports {line.module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_the_same_form(stage: str) -> None:
    """`options.py` has the class Options; `stage.py` ends with the stage's class and `STAGE`."""
    room_of_stage = f"owt_pipeline.stages.{stage}"
    options = modules()[f"{room_of_stage}.options"].body
    assert "Options" in [node.name for node in options if isinstance(node, ast.ClassDef)]
    assert isinstance(modules()[room_of_stage].body[0], ast.Expr)
    *_, last_class, last_line = modules()[f"{room_of_stage}.stage"].body
    assert isinstance(last_class, ast.ClassDef)
    assert ast.unparse(last_class.bases[0]) == "Stage"
    assert ast.unparse(last_line) == f"STAGE = {last_class.name}()"


def test_the_chain_of_stages_is_the_one_that_the_texts_name() -> None:
    names = list(pipeline.STAGES)
    table = re.findall(r"^    (\w+) .*-> ", str(pipeline.__doc__), re.M)
    assert [name for name in table if name != "import"] == names
    assert f"\n  {', '.join(names)}\n" in cli._usage()


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("owt_pipeline", {"torch", "trainer"}),
        ("trainer", {"apache_beam", "owt_pipeline"}),
        ("schemas", {"apache_beam", "owt_pipeline", "torch", "trainer"}),
        ("dags", {"apache_beam", "owt_pipeline", "schemas", "torch", "trainer"}),
        # A training step needs none of the other commands.
        ("trainer", {"trainer.sample", "trainer.evaluate", "trainer.export"}),
    ],
)
def test_packages_do_not_import_forbidden_packages(package: str, forbidden: set[str]) -> None:
    wrong = []
    for line in imports():
        # A forbidden package may import itself, as a command of the trainer does.
        if not is_within(line.importer, {package}) or is_within(line.importer, forbidden):
            continue
        if is_within(line.module, forbidden):
            wrong.append(f"{line.importer} imports {line.module}")
    assert not wrong, "\n".join(wrong)


def is_within(module: str, packages: set[str]) -> bool:
    """Return whether a module belongs to one of the packages."""
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def folder(module: str) -> str:
    """Return the folder of a module; modules next to folders count as folders.

    So `owt_pipeline.cli` is above the stages and `config` below them, and a stage's own modules may
    be above and below its alcoves (`fetch/web`, `extract/html`).
    """
    path = ROOT / module.replace(".", "/")
    if (path / "__init__.py").exists() or module.count(".") < 2:
        return module
    has_folders = any((child / "__init__.py").exists() for child in path.parent.iterdir())
    return module if has_folders else module.rpartition(".")[0]


@pytest.mark.parametrize("place", [str, folder], ids=["files", "folders"])
def test_no_circle(place: Callable[[str], str]) -> None:
    graph: dict[str, set[str]] = {}
    for line in own_imports():
        importer = place(line.importer)
        imported = place(line.module)
        if importer != imported:
            graph.setdefault(importer, set()).add(imported)
    # It raises CycleError.
    TopologicalSorter(graph).prepare()


def test_a_module_has_a_subjects_name_and_at_most_450_lines() -> None:
    wrong = [
        name
        for name in modules()
        if name.rpartition(".")[2] in ("utils", "util", "helpers", "common", "misc")
    ]
    for name in modules():
        path = ROOT / name.replace(".", "/")
        file = path / "__init__.py"
        if not file.exists():
            file = path.with_suffix(".py")
        num_lines = len(file.read_text(encoding="utf-8").splitlines())
        if num_lines > 450:
            wrong.append(f"{name} has {num_lines} lines")
    assert not wrong, "\n".join(wrong)
