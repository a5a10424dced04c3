"""Loading of a spec's file: a validated `Spec`, and every fault with its place.

Reads the file, the specs it extends and the overrides, merges them and validates the result (`validation`).
`engine/compile` checks names, edges and templates.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.limits.specs import SPEC_BYTES, SPEC_EXTENDS, SPEC_FAULTS
from rolegraph.engine.records.files import is_file, is_folder, is_no_file
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec.diagnostics import Diagnostic, Finding, Path, Place
from rolegraph.engine.spec.files import display_path, read_text, resolve_path
from rolegraph.engine.spec.merge import choose_model, merge, override
from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.scalars import place_within
from rolegraph.engine.spec.validation import REQUIRED, validate
from rolegraph.engine.spec.yaml_source import (
    KeyPositions,
    YamlSource,
    parse_yaml,
    unreadable_source,
    value_at,
    walk_paths,
)

TESTS_SUFFIX = ".test.yaml"
"""Suffix of the file that holds a spec's tests."""


@dataclass(slots=True)
class LoadedSpec:
    """The valid part of a spec, with the diagnostics of the rest; complete without faults."""

    spec: Spec
    data: dict[str, Any]
    """Resolved mapping, after `extends` and overrides, as one file would hold it."""
    folders: tuple[FilePath, ...]
    """Folders of its templates and data: the spec's, then those of the specs it extends."""
    diagnostics: list[Diagnostic]
    positions: KeyPositions
    texts: Mapping[str, str]
    """Text of each file that was read, by the file's shown path."""
    broken: set[Path] = field(default_factory=set[Path])
    """Paths that were left out; findings at or below them are consequences."""

    @property
    def faults(self) -> list[Diagnostic]:
        """Diagnostics that are errors."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == "error"]

    def shown_diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return the diagnostics to show: of errors and of warnings SPEC_FAULTS at most, then a count."""
        shown: list[Diagnostic] = []
        counts = Counter[str]()
        left = Counter(diagnostic.severity for diagnostic in self.diagnostics)
        for diagnostic in self.diagnostics:
            severity = diagnostic.severity
            counts[severity] += 1
            left[severity] -= 1
            if counts[severity] <= SPEC_FAULTS.most:
                shown.append(diagnostic)
            elif counts[severity] == SPEC_FAULTS.most + 1:
                hint = f"fix the first ones and run again; at most {SPEC_FAULTS} are shown"
                more = f"and {left[severity]:,} more: {diagnostic.message}"
                shown.append(replace(diagnostic, message=more, expected="", hint=hint))
        return tuple(shown)

    def is_overridden(self, path: Path) -> bool:
        """Return True for a value that the command line set, not a file."""
        while path not in self.positions:
            path = path[:-1]
        return self.positions[path].value.file not in self.texts

    def report(self, findings: Iterable[Finding]) -> None:
        """Add findings with their places to the diagnostics, except those at or below a broken part."""
        known = dict.fromkeys(self.diagnostics)
        for finding in findings:
            if any(finding.path[:depth] in self.broken for depth in range(len(finding.path) + 1)):
                continue
            known[finding.at(place_of(finding, self.data, self.positions, self.texts))] = None
        self.diagnostics = sorted(known, key=lambda d: (d.place.file, d.place.line, d.place.column))


def place_of(
    finding: Finding, data: Mapping[str, Any], positions: KeyPositions, texts: Mapping[str, str]
) -> Place:
    """Return the place of a finding in the files that `data` was read from."""
    if finding.place is not None:
        return finding.place
    path = finding.path
    if finding.offset is not None and path in positions:
        value = positions[path].value
        source = texts.get(value.file, value.text)
        return place_within(value, source, str(value_at(data, path)), finding.offset, finding.word)
    if finding.word:
        # A list in place of a mapping has no keys to point at, only its items.
        listed = path not in positions and isinstance(value_at(data, path[:-1]), list)
        inside = path[:-1] if listed else path
        for at, value in walk_paths(value_at(data, inside), inside):
            spot = positions.get(at)
            if spot is None or at == inside:
                continue
            if spot.key is not None and at[-1] == finding.word:
                return spot.key
            if value == finding.word:
                return spot.value
    at_key = finding.at_key
    while path not in positions:  # missing: its mapping, or the short form
        path = path[:-1]
        at_key = isinstance(value_at(data, path), Mapping | list)
    spot = positions[path]
    return spot.key if at_key and spot.key is not None else spot.value


def is_tests_file(path: str | FilePath) -> bool:
    """Return True for the name of a file of tests, NAME.test.yaml.

    Args:
        path: Path of a file, which need not exist.

    Returns:
        True where the name ends in `.test.yaml`.
    """
    return str(path).endswith(TESTS_SUFFIX)


def find_spec(name: str | FilePath) -> FilePath:
    """Find the file of a spec.

    Args:
        name: Path of a spec, or the name of a shipped one with or without `.yaml`.

    Returns:
        Path of the file.

    Raises:
        UsageError: There is no such file or shipped spec; the message names the nearest one.
    """
    path = FilePath(name)
    if is_file(path):
        return path
    shipped = SPECS / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.parent == FilePath() and is_file(shipped):
        return shipped
    known = {spec.stem: spec for spec in SPECS.glob("*.yaml")}
    near = path.parent.glob("*.yaml") if is_folder(path.parent) else ()
    beside = [entry.name for entry in near if is_file(entry)]
    hint = did_you_mean(path.name, [*beside, *known], "{}") or f"shipped specs: {', '.join(sorted(known))}"
    if is_folder(path):
        raise UsageError(f"{name} is a folder, not a spec; {hint}")
    if is_no_file(path):
        raise UsageError(f"cannot read {name}: not a regular file; {hint}")
    raise UsageError(f"no spec {str(name)!r}: there is no such file; {hint}")


def load_spec(
    name: str | FilePath,
    overrides: Sequence[str] = (),
    *,
    model: str | None = None,
    base_url: str | None = None,
) -> LoadedSpec:
    """Load a spec and collect its faults.

    Args:
        name: Path of a spec, or the name of a shipped one.
        overrides: Values to set, each `key.path=value`.
        model: Model that replaces the spec's, as `provider:name`.
        base_url: URL of the endpoint of the model's provider.

    Raises:
        UsageError: The file is missing or cannot be read. Faults in the file are in the result instead.
    """
    path = find_spec(name)
    source, folders = _read(path, ())
    unreadable = source.unreadable
    for position, text in enumerate(() if unreadable else overrides):
        override(source, text, position)
    if not unreadable:
        choose_model(source, model, base_url)
    source.data.pop("extends", None)
    fitting, unread = validate(source.data), _unread(source)
    loaded = LoadedSpec(
        fitting.value, source.data, folders, list(source.faults), source.positions, source.texts
    )
    if not unreadable:
        loaded.report(finding for finding in fitting.findings if finding.path not in unread)
    loaded.broken = fitting.left_out | unread
    return loaded


def _unread(source: YamlSource) -> set[Path]:
    """Return the paths whose value the YAML reader rejected."""
    places = {fault.place for fault in source.faults}
    return {path for path, spot in source.positions.items() if path and spot.value in places}


def _read(path: FilePath, chain: tuple[FilePath, ...]) -> tuple[YamlSource, tuple[FilePath, ...]]:
    """Read a file and the specs it extends, merged; return the folders of all, the file's own first.

    `chain` holds the specs that extend this one, which it may not extend in turn.
    """
    try:
        source = parse_yaml(read_text(path, SPEC_BYTES), display_path(path))
    except UnicodeDecodeError:
        source = unreadable_source(Place(display_path(path), 1, 1, ""), "not valid YAML: not UTF-8 text")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        source = unreadable_source(Place(display_path(path), 1, 1, ""), error.strerror or "")
    folder = resolve_path(path).parent
    if source.data.get("extends") is None:
        return source, (folder,)
    base = _base_of(source, folder, (*chain, resolve_path(path)))
    if base is None:
        return _with_required(source), (folder,)
    parent, folders = _read(base, (*chain, resolve_path(path)))
    merged = merge(parent, source)
    inherited = tuple(other for other in folders if other != folder)
    return _with_required(merged) if parent.unreadable else merged, (folder, *inherited)


def _base_of(source: YamlSource, folder: FilePath, chain: tuple[FilePath, ...]) -> FilePath | None:
    """Return the file that a spec in `folder` extends; None with a fault in the source if it cannot."""
    name, place = source.data["extends"], source.positions["extends",].value

    def refuse(message: str, expected: str = "", hint: str = "") -> None:
        source.faults.append(Diagnostic(message, place, expected, hint))

    if not isinstance(name, str):
        return refuse("`extends` names one spec", "the file name of a spec, such as solver_judge.yaml")
    base = folder / name
    if resolve_path(base) in chain:
        loop = " -> ".join(step.name for step in (*chain[chain.index(resolve_path(base)) :], base))
        return refuse(f"the specs extend each other: {loop}")
    if len(chain) > SPEC_EXTENDS.most:
        return refuse(f"more than {SPEC_EXTENDS} extend each other")
    if not resolve_path(base).is_relative_to(folder):
        expected = "a spec in the same folder or below it, or a shipped one"
        return refuse(f"{name} lies outside the spec's folder", expected)
    if is_file(base):
        return base
    shipped = SPECS / FilePath(name).name
    if is_file(shipped) and resolve_path(shipped) not in chain:
        return shipped
    files = (entry for where in (folder, SPECS) for entry in where.glob("*.yaml"))
    names = [entry.name for entry in files if is_file(entry)]
    problem = f"{name!r} is not a file" if is_no_file(base) else f"there is no spec {name!r}"
    hint = did_you_mean(name, names, "{}")
    return refuse(f"{problem} to extend", "a file beside this one, or a shipped spec", hint)


def _with_required(source: YamlSource) -> YamlSource:
    """Fill in the required keys that a spec which cannot be extended would have given."""
    missing = {key: value for key, value in REQUIRED.items() if not source.data.get(key)}
    return replace(source, data={**source.data, **missing})
