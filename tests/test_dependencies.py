"""Tests that pyproject.toml declares every import, as a core dependency or in the right extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SERVICE, BRIDGE = ROOT / "rolegraph" / "local" / "service", ROOT / "rolegraph" / "integrations" / "rllm"
VERIFIERS = ROOT / "rolegraph" / "integrations" / "verifiers" / "env.py"
"""File that only packages ejected for verifiers import."""
WITH_RLLM = {"rllm", "verl", "hydra", "omegaconf"}
"""Modules that every installation of rLLM provides, which the bridge imports undeclared."""
GATHERED = {"pydantic-monty-client": "pydantic-monty", "mlflow": "mlflow-skinny"}
"""Distributions that another distribution installs, mapped to the distribution to declare."""
ROOMS = ("rolegraph",)
NOT_OURS = {*sys.stdlib_module_names, *ROOMS}


def names(requirements: Iterable[str]) -> set[str]:
    """Normalize requirements to distribution names: `types_PyYAML>=6` becomes `types-pyyaml`."""
    bare = (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in bare}


CORE = names(PROJECT["dependencies"])


installed = cache(packages_distributions)


@cache
def distributions(module: str) -> set[str]:
    """Return the distributions that provide a module; its own name if the module is not installed."""
    found = names(installed().get(module, [module]))
    return found | {GATHERED[name] for name in found if name in GATHERED}


def written(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that `import` statements name, anywhere in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def at_once(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that `import` statements name outside functions and `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If(test=ast.Name("TYPE_CHECKING")):
                pass
            case ast.Import() | ast.ImportFrom():
                yield from written(node)
            case _:
                yield from at_once(node)


def looked_up(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that calls of `import_module` name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ):
                yield name


def undeclared(
    files: Iterable[Path], modules: Callable[[ast.AST], Iterable[str]], declared: set[str]
) -> list[str]:
    """Return `file: module` for each import that no declared distribution provides."""
    return sorted(
        {
            f"{file.relative_to(ROOT)}: {top}"
            for file in files
            for name in modules(ast.parse(file.read_text(encoding="utf-8")))
            for top in [name.partition(".")[0]]
            if top not in NOT_OURS and not (file.is_relative_to(BRIDGE) and top in WITH_RLLM)
            if not distributions(top) & declared
        }
    )


FILES = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]


def test_what_is_imported_at_once_is_in_the_core() -> None:
    files = [file for file in FILES if not file.is_relative_to(SERVICE) and file != VERIFIERS]
    assert undeclared(files, at_once, CORE) == []


def test_what_the_local_service_imports_is_in_the_core_or_its_extras() -> None:
    files = [file for file in FILES if file.is_relative_to(SERVICE)]
    assert undeclared(files, at_once, CORE | names(EXTRAS["local"])) == []
    assert undeclared(files, written, CORE | names(EXTRAS["local"] + EXTRAS["structured"])) == []


def test_what_is_imported_where_it_is_used_is_in_the_core_or_an_extra_for_users() -> None:
    extras = {
        name for extra, lines in EXTRAS.items() if extra not in ("dev", "bench") for name in names(lines)
    }
    assert undeclared(FILES, looked_up, CORE | extras) == []
    assert undeclared(FILES, written, CORE | extras) == []


def test_an_import_that_is_declared_nowhere_is_told_with_its_file() -> None:
    page = ROOT / "rolegraph" / "pages" / "report" / "html.py"
    assert undeclared([page], written, CORE - {"markupsafe"}) == [
        "rolegraph/pages/report/html.py: markupsafe"
    ]
