"""A spec's file to a checked `Spec`, or to every fault in it with its place.

Reads the file, what it extends and the overrides; merges; validates against `models`. A part
that does not fit the schema is reported and left out, so that later checks still see the rest and all
faults come at once (`validation`). Names, edges and templates are for `engine/compile`.
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
"""How the file of a spec's tests ends."""


@dataclass(slots=True)
class LoadedSpec:
    """A spec as far as it could be read. Usable when no diagnostic is an error."""

    spec: Spec
    data: dict[str, Any]
    """The resolved mapping: extended, overridden, as it could be written in one file."""
    folders: tuple[FilePath, ...]
    """The spec's folder, then those of the specs it extends: where its templates and data may lie."""
    diagnostics: list[Diagnostic]
    positions: KeyPositions
    texts: Mapping[str, str]
    """The text of each file that was read."""
    broken: set[Path] = field(default_factory=set[Path])
    """Paths that were left out; what is found at or below them is a consequence, not a fault."""

    @property
    def faults(self) -> list[Diagnostic]:
        """The errors among the diagnostics."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == "error"]

    def shown_diagnostics(self) -> tuple[Diagnostic, ...]:
        """What a person is told: of very many errors or warnings the first, and how many more there are."""
        told: list[Diagnostic] = []
        counts = Counter[str]()
        left = Counter(diagnostic.severity for diagnostic in self.diagnostics)
        for diagnostic in self.diagnostics:
            severity = diagnostic.severity
            counts[severity] += 1
            left[severity] -= 1
            if counts[severity] <= SPEC_FAULTS.most:
                told.append(diagnostic)
            elif counts[severity] == SPEC_FAULTS.most + 1:
                hint = f"mend those before first; shown are at most {SPEC_FAULTS} of a kind"
                more = f"and {left[severity]:,} more: {diagnostic.message}"
                told.append(replace(diagnostic, message=more, expected="", hint=hint))
        return tuple(told)

    def is_overridden(self, path: Path) -> bool:
        """Whether what stands at a path is from the command line, and no file's."""
        while path not in self.positions:
            path = path[:-1]
        return self.positions[path].value.file not in self.texts

    def report(self, findings: Iterable[Finding]) -> None:
        """Give findings their places and keep them, but for those that follow from a broken part."""
        known = dict.fromkeys(self.diagnostics)
        for finding in findings:
            if any(finding.path[:depth] in self.broken for depth in range(len(finding.path) + 1)):
                continue
            known[finding.at(place_of(finding, self.data, self.positions, self.texts))] = None
        self.diagnostics = sorted(known, key=lambda d: (d.place.file, d.place.line, d.place.column))


def place_of(
    finding: Finding, data: Mapping[str, Any], positions: KeyPositions, texts: Mapping[str, str]
) -> Place:
    """Where a finding stands, in the files that `data` was read from."""
    if finding.place is not None:
        return finding.place
    path = finding.path
    if finding.offset is not None and path in positions:
        value = positions[path].value
        source = texts.get(value.file, value.text)
        return place_within(value, source, str(value_at(data, path)), finding.offset, finding.word)
    if finding.word:
        # What is written in a list stands for a mapping, whose keys are not there to be pointed at.
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
    while path not in positions:  # not written: what it is missing from, or the short form it is part of
        path = path[:-1]
        at_key = isinstance(value_at(data, path), Mapping | list)
    spot = positions[path]
    return spot.key if at_key and spot.key is not None else spot.value


def is_tests_file(path: str | FilePath) -> bool:
    """Whether a file is called as the tests of a spec are: NAME.test.yaml."""
    return str(path).endswith(TESTS_SUFFIX)


def find_spec(name: str | FilePath) -> FilePath:
    """The file that a name on the command line means: a path, or the name of a shipped spec."""
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
    """Read a spec. Faults are in the result; only a file that is not there raises (UsageError)."""
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
    """Paths whose value the YAML reader refused."""
    places = {fault.place for fault in source.faults}
    return {path for path, spot in source.positions.items() if path and spot.value in places}


def _read(path: FilePath, chain: tuple[FilePath, ...]) -> tuple[YamlSource, tuple[FilePath, ...]]:
    try:
        source = parse_yaml(read_text(path, SPEC_BYTES), display_path(path))
    except UnicodeDecodeError:
        source = unreadable_source(Place(display_path(path), 1, 1, ""), "not valid YAML: not UTF-8 text")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        source = unreadable_source(Place(display_path(path), 1, 1, ""), error.strerror or "")
    folder = resolve_path(path).parent
    base_name = source.data.get("extends")
    if base_name is None:
        return source, (folder,)
    place = source.positions["extends",].value
    base = folder / base_name if isinstance(base_name, str) else None
    chain = (*chain, resolve_path(path))
    problem = None
    if base is None:
        problem = Diagnostic(
            "`extends` names one spec", place, "the file name of a spec, such as solver_judge.yaml"
        )
    elif resolve_path(base) in chain:
        loop = " -> ".join(step.name for step in (*chain[chain.index(resolve_path(base)) :], base))
        problem = Diagnostic(f"the specs extend each other: {loop}", place)
    elif len(chain) > SPEC_EXTENDS.most:
        problem = Diagnostic(f"more than {SPEC_EXTENDS} extend each other", place)
    elif not resolve_path(base).is_relative_to(folder):
        problem = Diagnostic(
            f"{base_name} lies outside the spec's folder",
            place,
            "a spec in the same folder or below it, or a shipped one",
        )
    elif not is_file(base):
        shipped = SPECS / FilePath(str(base_name)).name
        if is_file(shipped) and resolve_path(shipped) not in chain:
            base = shipped
        else:
            near = (entry for where in (folder, SPECS) for entry in where.glob("*.yaml"))
            names = [entry.name for entry in near if is_file(entry)]
            what = f"{base_name!r} is no file" if is_no_file(base) else f"there is no spec {base_name!r}"
            problem = Diagnostic(
                f"{what} to extend",
                place,
                "a file beside this one, or a shipped spec",
                did_you_mean(str(base_name), names, "{}"),
            )
    if problem is not None or base is None:
        source.faults.extend([problem] if problem else [])
        return _completed(source), (folder,)
    parent, folders = _read(base, chain)
    merged = merge(parent, source)
    return (
        _completed(merged) if parent.unreadable else merged,
        (folder, *(other for other in folders if other != folder)),
    )


def _completed(source: YamlSource) -> YamlSource:
    """With stand-ins for what a spec that cannot be extended would have given."""
    missing = {key: value for key, value in REQUIRED.items() if not source.data.get(key)}
    return replace(source, data={**source.data, **missing})
