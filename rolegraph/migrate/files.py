"""Files that `rolegraph migrate` rewrites: specs, their tests, folders of runs, and YAML in Markdown.

A YAML file is a spec of version 1 if it says so, or extends another without a version. Markdown is rewritten
block by block; without a version, a block that has keys of a spec is rewritten as well, unless the page has
blocks of version 2. Specs in Python strings are reported, not rewritten.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.limits.specs import SPEC_BYTES
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.files import read_bytes
from rolegraph.migrate.document import Change, Document, Problem, Rewrite
from rolegraph.migrate.rewrites import NOTES, REWRITES

YAML, MARKDOWN, PYTHON = (".yaml", ".yml"), (".md",), (".py",)
"""Endings of files with each kind of text."""
_OLD = re.compile(r"^rolegraph: 1\s*(?:#.*)?$", re.MULTILINE)
_NEW = re.compile(r"^[ \t]*rolegraph: 2\b", re.MULTILINE)
_BLOCK = re.compile(r"^([ \t]*)```ya?ml[^\n]*\n(.*?)^\1```[ \t]*\r?$", re.MULTILINE | re.DOTALL)
_IN_STRINGS = "a spec of version 1 in a string of Python, which is not rewritten"


class Migrated(NamedTuple):
    """Result of rewriting one file."""

    path: Path
    is_changed: bool
    problems: Sequence[tuple[int, str]]
    """Constructs that were not rewritten, each with its line, from 1."""
    notes: Sequence[tuple[int, str]] = ()
    """Constructs with a new meaning in version 2, each with its line in the original file."""


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the named files, and the files in the named folders.

    Args:
        paths: Files, or folders such as that of a run. Hidden folders and links inside of folders are left
            out.

    Raises:
        UsageError: A path does not exist, or names a file of another kind.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(_files_in(path))
        elif not path.exists():
            raise UsageError(f"cannot read {path}: there is no such file or folder")
        elif path.suffix in (*YAML, *MARKDOWN, *PYTHON):
            yield path
        else:
            raise UsageError(f"{path} is no spec; expected a file that ends in .yaml, .yml, .md or .py")


def _files_in(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files_in(path)
        elif path.suffix in (*YAML, *MARKDOWN, *PYTHON):
            yield path


def migrate_file(path: Path, rewrites: Iterable[Rewrite] = REWRITES) -> Migrated:
    """Rewrite a file in place; a file without anything of version 1 is not written.

    Raises:
        WorldError: The file cannot be read or written.
    """
    with os_errors_as(WorldError, f"cannot read {path}"):
        text, mode = read_bytes(path, SPEC_BYTES).decode("utf-8", "surrogateescape"), path.stat().st_mode
    if path.suffix in PYTHON:
        return Migrated(path, False, [(line, _IN_STRINGS) for line in specs_in_python(text)])
    migrate = migrate_markdown if path.suffix in MARKDOWN else migrate_yaml
    (new_text, problems), (_, notes) = migrate(text, [*rewrites]), migrate(text, NOTES)
    if new_text != text:
        write_whole(path, new_text.encode("utf-8", "surrogateescape"))
        with os_errors_as(WorldError, f"cannot write {path}"):
            path.chmod(mode)
    return Migrated(path, new_text != text, problems, [note for note in notes if note not in problems])


def migrate_yaml(text: str, rewrites: Iterable[Rewrite]) -> tuple[str, list[tuple[int, str]]]:
    """Return (YAML text after the rewrites, constructs that could not be rewritten, each with its line).

    A text that is not of version 1 is returned unchanged.
    """
    try:
        is_old = _version(text) == 1
    except (yaml.YAMLError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        return text, [(mark.line + 1 if mark else 1, "not valid YAML")] if _OLD.search(text) else []
    return rewritten(text, rewrites) if is_old else (text, [])


def _version(text: str) -> int | None:
    """Return the version of a spec; 1 for a spec with `extends` and without a version; None if the text is no
    spec."""
    keys = {entry.path[0]: entry for entry in Document(text).every if len(entry.path) == 1}
    if "rolegraph" in keys:
        version_text = keys["rolegraph"].value.value
        return int(version_text) if version_text in ("1", "2") else None
    return 1 if "extends" in keys else None


def migrate_markdown(text: str, rewrites: Iterable[Rewrite]) -> tuple[str, list[tuple[int, str]]]:
    """Return (page with rewritten YAML blocks, constructs that could not be rewritten, each with its line of
    the page)."""
    page, changes, problems = Document(text), list[Change](), list[tuple[int, str]]()
    has_version_2 = any(_NEW.search(block[2]) for block in _BLOCK.finditer(text))
    for block in _BLOCK.finditer(text):
        first_line = page.line(block.start(2))
        try:
            is_old = _version(block[2]) == 1 or not (has_version_2 or _NEW.search(block[2]))
            new_block, block_problems = rewritten(block[2], rewrites) if is_old else (block[2], [])
        except (yaml.YAMLError, RecursionError):
            new_block, block_problems = block[2], [(1, "not valid YAML")] if _OLD.search(block[2]) else []
        changes.append(Change(block.start(2), block.end(2), new_block))
        problems += [(first_line + line - 1, message) for line, message in block_problems]
    return page.apply(changes).text, problems


def rewritten(text: str, rewrites: Iterable[Rewrite]) -> tuple[str, list[tuple[int, str]]]:
    """Return (text after the rewrites, made one after the other; problems with their lines).

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    document, problems = Document(text), list[tuple[int, str]]()
    for rewrite in rewrites:
        results = [*rewrite(document)]
        problems += [(document.line(it.position), it.message) for it in results if isinstance(it, Problem)]
        document = document.apply(it for it in results if isinstance(it, Change))
    return document.text, sorted(problems)


def specs_in_python(text: str) -> list[int]:
    """Return the lines of strings and mappings in Python code that contain a spec of version 1."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OLD.search(node.value):
            lines.add(node.lineno)
        if isinstance(node, ast.Dict):
            key_values = zip(node.keys, node.values, strict=True)
            if any(_is(key, "rolegraph") and _is(value, 1) for key, value in key_values):
                lines.add(node.lineno)
    return sorted(lines)


def _is(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value
