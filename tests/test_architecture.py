"""Who imports whom: one way, from commands down to schemas, and never in a circle.

The imports are read from the source: those within functions and those for a type checker, too. Left
out is what runs only where a module is started as a program, and what the package itself shows a
type checker of its library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
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

FLOORS = (
    ("schemas",),
    ("errors", "progress", "version"),
    ("storage",),
    ("ledger",),
    ("engine", "formats"),
    STAGES,
    ("library", "transforms"),
    ("pipeline", "stages", "config", "command_line", "cli"),
    ("commands", "demo", "flex_template", "__main__"),
    ("owt_pipeline",),
)
"""The rooms of `owt_pipeline`, from the lowest floor up. A module imports its own room and those
on lower floors, and but for STAGES also those next to it. `cli` loads commands by name; nothing
imports the package's face, `owt_pipeline` itself."""

ALCOVES: dict[str, tuple[tuple[str, ...], ...]] = {
    "fetch": (
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
        ("built_in", "legacy_charsets"),
        ("options", "charset"),
        ("html",),
        ("content",),
        ("extractor",),
        ("not_pages", "reserved"),
        ("block_extractor",),
        ("pages",),
        ("stage",),
    ),
}
"""The floors within a stage that has folders: a module imports its own folder, and lower floors."""


class Import(NamedTuple):
    """`importer` takes `name` of the module `module`; "" for all of it."""

    importer: str
    module: str
    name: str


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax trees of the packages' modules, by name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {_name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports() -> list[Import]:
    return [found for name, tree in modules().items() for found in _imports_of(name, tree)]


def _imports_of(importer: str, node: ast.AST) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "__name__ == '__main__'":
            continue
        if (
            isinstance(child, ast.If)
            and ast.unparse(child.test) == "TYPE_CHECKING"
            and importer == "owt_pipeline"
        ):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(importer, alias.name, "") for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer}: a relative import"
            for alias in child.names:
                is_module = f"{child.module}.{alias.name}" in modules()
                yield Import(
                    importer,
                    f"{child.module}.{alias.name}" if is_module else str(child.module),
                    "" if is_module else alias.name,
                )
        yield from _imports_of(importer, child)


def own_imports() -> list[Import]:
    """Those of a module of ours."""
    return [
        found for found in imports() if found.module in modules() and found.module != found.importer
    ]


def room(module: str) -> str:
    """`schemas`, `owt_pipeline` itself, or the folder or module right below it or its `stages`;
    "" for all others."""
    package, _, rest = module.partition(".")
    if package != "owt_pipeline" or not rest:
        return package if package in ("schemas", "owt_pipeline") else ""
    first, _, rest = rest.partition(".")
    return rest.partition(".")[0] if first == "stages" and rest else first


def floor(module: str) -> int:
    (found,) = (number for number, rooms in enumerate(FLOORS) if room(module) in rooms)
    return found


def test_imports_go_down_the_floors_and_not_from_stage_to_stage() -> None:
    def is_wrong(importer: str, module: str) -> bool:
        rooms = room(importer), room(module)
        return all(rooms) and (
            floor(module) > floor(importer) or (rooms[0] != rooms[1] and set(rooms) <= set(STAGES))
        )

    wrong = [
        f"{found.importer} (floor {floor(found.importer)}) imports {found.module} (floor "
        f"{floor(found.module)})"
        for found in own_imports()
        if is_wrong(found.importer, found.module)
    ]
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
    for found in own_imports():
        if not (found.importer.startswith(prefix) and found.module.startswith(prefix)):
            continue
        importer, imported = name_within(found.importer), name_within(found.module)
        if importer != imported and floor_by_name[imported] >= floor_by_name[importer]:
            wrong.append(f"{found.importer} imports {found.module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_the_same_form(stage: str) -> None:
    """`options.py` with the class Options; `stage.py` that ends with the stage's class and
    `STAGE`."""
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
        ("trainer", {"trainer.tools"}),  # a training step needs none of them
    ],
)
def test_packages_do_not_import_what_they_must_not(package: str, forbidden: set[str]) -> None:
    wrong = [
        f"{found.importer} imports {found.module}"
        for found in imports()
        if is_within(found.importer, {package})
        and is_within(found.module, forbidden)
        and not is_within(found.importer, forbidden)
    ]
    assert not wrong, "\n".join(wrong)


def is_within(module: str, packages: set[str]) -> bool:
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
    for found in own_imports():
        here, there = place(found.importer), place(found.module)
        if here != there:
            graph.setdefault(here, set()).add(there)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_a_module_has_a_subjects_name_and_at_most_450_lines() -> None:
    wrong = [
        name
        for name in modules()
        if name.rpartition(".")[2] in ("utils", "util", "helpers", "common", "misc")
    ]
    for name in modules():
        path = ROOT / name.replace(".", "/")
        path = path / "__init__.py" if (path / "__init__.py").exists() else path.with_suffix(".py")
        lines = len(path.read_text(encoding="utf-8").splitlines())
        wrong += [f"{name} has {lines} lines"] if lines > 450 else []
    assert not wrong, "\n".join(wrong)
