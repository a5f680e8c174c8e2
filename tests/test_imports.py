"""Imports inside meanq/ follow one order, and each sub-package says what lives in it."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
MEANQ = PROJECT / "meanq"
# A package may import those of its own line and of the lines above.
ORDER = (
    ("rng",),
    ("config",),
    ("replay", "learning", "envs", "metrics"),
    ("rundir",),
    ("training",),
    ("launching", "mirrors", "status"),
    ("run", "api", "dashboard", "wandb_upload", "slurm_launcher"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
# The same for analysis/.
ANALYSIS = (
    ("runs", "intervals"),
    ("console", "labels", "notes"),
    ("metrics", "aggregate", "findings", "paper", "playing"),
    ("figures", "late"),
    ("compare", "evaluate", "video"),
    ("results",),
    ("report",),
)
# Imports against the order that are still to be removed: (importing module, imported package).
KNOWN: set[tuple[str, str]] = set()


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST, module: str) -> Iterator[str]:
    """Modules that a tree imports, inside functions too, but not under TYPE_CHECKING.

    Imports are relative in analysis/, which is `meanq.analysis` in a wheel, and absolute in meanq/.
    """
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        own = module.startswith("analysis.") and (node.level > 0 or f"{node.module}.".startswith("analysis."))
        assert own == (node.level > 0), f"{module}: import of {node.module}"
        above = module.split(".")[: -node.level] if node.level else []
        yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported(child, module)


IMPORTS = {
    module_name(path): set(imported(ast.parse(path.read_text()), module_name(path)))
    for path in sorted(MEANQ.rglob("*.py"))
}


def edges() -> set[tuple[str, str]]:
    """(module, package of meanq that it imports)."""
    return {
        (module, name.split(".")[1])
        for module, names in IMPORTS.items()
        for name in names
        if name.startswith("meanq.") and module != "meanq"
    }


def package(module: str) -> str:
    return module.split(".")[1]


def test_imports_follow_the_order() -> None:
    against = {(module, name) for module, name in edges() if RANK[name] > RANK[package(module)]}
    assert against - KNOWN == set(), "imports against the order"
    assert KNOWN - against == set(), "no longer needed: remove from KNOWN"


def test_packages_of_one_line_do_not_import_each_other_in_a_circle() -> None:
    pairs = {(package(module), name) for module, name in edges() if RANK[package(module)] == RANK[name]}
    assert {(a, b) for a, b in pairs if a < b and (b, a) in pairs} == set()


def test_imports_in_analysis_follow_the_order() -> None:
    rank = {name: rank for rank, names in enumerate(ANALYSIS) for name in names}
    against = set()
    for path in sorted((PROJECT / "analysis").rglob("*.py")):
        module = module_name(path)
        # `analysis.figures.__init__`: relative imports count from a package's own file
        own = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
        for name in imported(ast.parse(path.read_text()), own) if module != "analysis" else ():
            if name.startswith("analysis.") and rank[name.split(".")[1]] > rank[package(module)]:
                against.add((module, name))
    assert against == set()


def test_nothing_imports_analysis() -> None:
    assert {module for module, names in IMPORTS.items() if any(n.split(".")[0] == "analysis" for n in names)} == set()


def test_one_module_imports_the_internals_of_hydra() -> None:
    users = {module for module, names in IMPORTS.items() if any(name.startswith("hydra._") for name in names)}
    assert users == {"meanq.launching.hydra_bridge"}


@pytest.mark.parametrize(
    "path", sorted([*MEANQ.glob("*/__init__.py"), *PROJECT.glob("analysis/*/__init__.py")]), ids=lambda p: p.parent.name
)
def test_a_package_says_what_lives_in_it_and_what_it_may_import(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert len(text) > 40 and re.search(r"\b[Ii]mports?\b", text), text


def test_the_wheel_has_every_package() -> None:
    listed = set(tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {module_name(path) for top in ("meanq", "analysis") for path in (PROJECT / top).rglob("__init__.py")}
    inside = {f"meanq.{name}" if name.startswith("analysis") else name for name in found}
    assert listed == inside | {"meanq.conf", "meanq.ablations"}
