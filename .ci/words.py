"""Check the words that ruff cannot: docstring openings, sections of public functions, class names.

`make lint` runs it. Prints a line `path:line: problem` for each find, and exits with 1 if there is one.
"""

import ast
import importlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(
    r"(What|Whether|Those|Who|Whom|Whose|How|As|Of|One that|Where|When|Which|That|This|These|It|Its"
    r"|They|Their|He|All that)\b"
)


def definitions() -> Iterator[tuple[str, ast.AST]]:
    """Yield each node of the code with its place."""
    for path in sorted((ROOT / "rolegraph").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node


def openings() -> Iterator[str]:
    """Find docstrings that open with a pronoun or a relative clause."""
    for place, node in definitions():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = OPENING.match(ast.get_docstring(node) or "")
            if found:
                yield f"{place}: the docstring opens with {found[0]!r}"


def missing_sections() -> Iterator[str]:
    """Find exported functions without `Args:`, or without `Returns:` where they return a value."""
    sys.path.insert(0, str(ROOT))
    api = importlib.import_module("rolegraph")
    for name in api.__all__:
        function = inspect.unwrap(getattr(api, name))
        if not inspect.isfunction(function) or not inspect.signature(function).parameters:
            continue
        path = Path(function.__code__.co_filename).relative_to(ROOT)
        returns = inspect.signature(function).return_annotation not in (None, "None")
        for section in ("Args:", *(["Returns:"] if returns else [])):
            if section not in (function.__doc__ or ""):
                yield f"{path}:{function.__code__.co_firstlineno}: {name} has no `{section}`"


def shared_names() -> Iterator[str]:
    """Find class names that two files define."""
    files: dict[str, set[str]] = defaultdict(set)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef):
            files[node.name].add(place.partition(":")[0])
            if len(files[node.name]) > 1:
                yield f"{place}: class {node.name} is also in {min(files[node.name])}"


def main() -> int:
    """Print every find, and return the exit code."""
    finds = [*openings(), *missing_sections(), *shared_names()]
    for find in finds:
        print(find)  # noqa: T201
    return bool(finds)


if __name__ == "__main__":
    sys.exit(main())
