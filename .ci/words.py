"""Check the words that ruff cannot: openings, sections, `Args:` entries, class and variable names, denied
words, templates.

`make lint` runs it. Prints a line `path:line: problem` for each find, and exits with 1 if there is one.
"""

import ast
import importlib
import inspect
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(
    r"(What|Whether|Those|Who|Whom|Whose|How|As|Of|One that|Where|When|Which|That|This|These|It|Its"
    r"|They|Their|He|All that)\b"
)
# Persons and riddles. `nobody` in backticks is the user of Unix.
DENIED = re.compile(
    r"(?<!`)\b(somebody|nobody|strangers?|told|(?-i:is|are)\s+(?-i:none)|on\s+top|(hangs?|hung)\s+on|ones?\s+that)\b",
    re.IGNORECASE,
)
PAGES = ("docs/**/*.md", "README.md", "CONTRIBUTING.md")
# `name: Sentence with a capital.`; a name in backticks and a digit are sentences, too.
ARGUMENT = re.compile(r"\*{0,2}\w+(?:, \*{0,2}\w+)*: [A-Z`\d'\"{\[(].*[.:]$", re.DOTALL)
WIDTH = 140
# Participles and other words that say nothing of the value that they name.
VAGUE = {"found", "own", "at", "known", "noted", "said", "told", "those"}


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


def arguments() -> Iterator[str]:
    """Find entries of `Args:` that are not `name: Sentence with a capital.`"""
    for place, node in definitions():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
        for entry in re.split(r"\n(?=    \S)", section[1].rstrip()) if section else []:
            if not ARGUMENT.match(entry.strip()):
                yield f"{place}: {node.name} has the entry {entry.strip()!r:.80}, expected `name: Sentence.`"


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each text that people read in a file, with its line: comments and strings of code, all of a
    page."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    with tokenize.open(path) as file:
        code = file.read()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def denied() -> Iterator[str]:
    """Find denied words in docstrings, comments, messages and pages."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    for path in [*sorted((ROOT / "rolegraph").rglob("*.py")), *pages]:
        for line, text in texts(path):
            for found in DENIED.finditer(text):
                number = line + text.count("\n", 0, found.start())
                yield f"{path.relative_to(ROOT)}:{number}: denied words {' '.join(found[0].split())!r}"


def wide_templates() -> Iterator[str]:
    """Find lines of page templates with more than `WIDTH` characters."""
    for path in sorted((ROOT / "rolegraph" / "pages").rglob("*.j2")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > WIDTH:
                yield f"{path.relative_to(ROOT)}:{number}: {len(line)} characters, expected at most {WIDTH}"


def shared_names() -> Iterator[str]:
    """Find class names that two files define."""
    files: dict[str, set[str]] = defaultdict(set)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef):
            files[node.name].add(place.partition(":")[0])
            if len(files[node.name]) > 1:
                yield f"{place}: class {node.name} is also in {min(files[node.name])}"


def vague_names() -> Iterator[str]:
    """Find variables, parameters, fields and functions whose names say nothing of their values."""
    for place, node in definitions():
        name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "at":  # as of an axis
            name = node.name
        if name in VAGUE:
            yield f"{place}: the name {name!r}, expected a noun that says what the value is"


def main() -> int:
    """Print every find, and return the exit code."""
    finds = [
        *openings(),
        *missing_sections(),
        *arguments(),
        *shared_names(),
        *denied(),
        *wide_templates(),
        *vague_names(),
    ]
    for find in finds:
        print(find)  # noqa: T201
    return bool(finds)


if __name__ == "__main__":
    sys.exit(main())
