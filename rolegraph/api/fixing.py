"""`rolegraph validate --fix`: the certain patches of a spec's faults, applied to the author's own files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rolegraph.engine.errors import WorldError, os_errors_as
from rolegraph.engine.records.confined import write_whole
from rolegraph.engine.records.files import is_file
from rolegraph.engine.shipped import PROMPTS, SPECS
from rolegraph.engine.spec import Diagnostic, Patch
from rolegraph.engine.spec.files import resolve_path

FIX_ROUNDS = 20
"""Largest number of times that a spec is checked and patched, since a fault can hide others."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


def with_own_patches(spec: str | Path, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return diagnostics without the patches of files that are not the author's own.

    The author's own files are regular files in the spec's folder or below, reached without a link, and no
    shipped files.

    Args:
        spec: Path of the spec, or the name of a shipped one.
        diagnostics: Diagnostics of the spec.
    """
    folder = resolve_path(Path(spec).parent)
    return [
        it if it.patch is None or _is_own(Path(it.patch.file), folder) else replace(it, patch=None)
        for it in diagnostics
    ]


def _is_own(file: Path, folder: Path) -> bool:
    path = resolve_path(file)
    if not is_file(file) or not path.is_relative_to(folder):
        return False
    if any(path.is_relative_to(resolve_path(shipped_folder)) for shipped_folder in (SPECS, PROMPTS)):
        return False
    path_parents = [file.absolute(), *file.absolute().parents][: len(path.relative_to(folder).parts)]
    return not any(parent.is_symlink() for parent in path_parents)


def apply_patches(patches: Iterable[Patch]) -> list[Patch]:
    """Write patches into their files, each file completely or not at all; return the patches that were
    written.

    Args:
        patches: Patches. A patch is left out if its text is not at its place; of two overlapping patches, the
            later is written.

    Returns:
        The written patches, in the order of the files.

    Raises:
        WorldError: A file cannot be read or written.
    """
    files: dict[str, set[Patch]] = {}
    for patch in patches:
        files.setdefault(patch.file, set()).add(patch)
    applied: list[Patch] = []
    for name, file_patches in files.items():
        path = Path(name)
        with os_errors_as(WorldError, f"cannot read {name}"):
            data, mode = path.read_bytes(), path.stat().st_mode
        text, written_patches = _patched(data.decode(), sorted(file_patches, key=_start))
        if written_patches:
            write_whole(path, text.encode())
            with os_errors_as(WorldError, f"cannot write {name}"):
                path.chmod(mode)
        applied += written_patches
    return applied


def _start(patch: Patch) -> tuple[int, int, str]:
    return patch.line, patch.column, patch.replacement


def _patched(text: str, patches: Sequence[Patch]) -> tuple[str, list[Patch]]:
    """Return (file's text with patches of single lines, patches that were applied)."""
    bom = "\ufeff" if text.startswith("\ufeff") else ""  # positions are those behind a byte-order mark
    lines = _LINE.findall(text.removeprefix(bom))
    applied_patches: list[Patch] = []
    for patch in reversed(patches):
        if applied_patches and _start(applied_patches[0])[:2] < (patch.end_line, patch.end_column):
            continue
        line = lines[patch.line - 1] if patch.line <= len(lines) else ""
        start, end = patch.column - 1, patch.end_column - 1
        if line[start:end] == patch.before:
            lines[patch.line - 1] = f"{line[:start]}{patch.replacement}{line[end:]}"
            applied_patches.insert(0, patch)
    return bom + "".join(lines), applied_patches
