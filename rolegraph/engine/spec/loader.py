"""Loading of a spec's file: a validated `Spec`, and every fault with its place.

Reads the file, the specs it extends and the overrides, merges them and validates the result (`validation`).
`engine/compile` checks names, edges and templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.limits.specs import SPEC_EXTENDS, SPEC_FAULTS
from rolegraph.engine.records.files import is_file, is_folder, is_no_file
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.spec.diagnostics import Diagnostic, Finding, Path, SourceLines
from rolegraph.engine.spec.files import names_in, resolve_path, shown_path
from rolegraph.engine.spec.merge import choose_model, merge, override, widen_overrides
from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.validation import REQUIRED, FittedPart, validate
from rolegraph.engine.spec.yaml_repairs import moved
from rolegraph.engine.spec.yaml_source import YamlSource, parse_yaml, read_yaml, unreadable_source, value_at
from rolegraph.engine.vocabulary import values_at, written_numbers

_TRIED_LINES = 4
"""Largest number of faulty lines for which other indentations are tried."""
_LONGEST_MOVED = 10_000
"""Number of characters of the longest text for which other indentations are tried: each try takes as long as
a load."""
TESTS_SUFFIX = ".test.yaml"
"""Suffix of the file that holds a spec's tests."""


@dataclass(slots=True)
class LoadedSpec:
    """The valid parts of a spec, with the diagnostics of the parts that were left out."""

    spec: Spec
    source: YamlSource
    """The spec as it was read, after `extends` and overrides."""
    folders: tuple[FilePath, ...]
    """Folders of templates and data: the spec's folder, then the folders of the specs that it extends."""
    diagnostics: list[Diagnostic]
    numbers: Mapping[Path, str] = field(default_factory=dict[Path, str])
    """Numbers that are expressions over the training step, by path; `spec` has 1 in their place."""
    broken: set[Path] = field(default_factory=set[Path])
    """Paths of faulty values that `spec` lacks; findings at or below such a path are consequences."""

    @property
    def data(self) -> dict[str, Any]:
        """Resolved mapping, after `extends` and overrides, as one file would hold it."""
        return self.source.data

    @property
    def faults(self) -> list[Diagnostic]:
        """Diagnostics of the spec that are errors, without warnings."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == "error"]

    def shown_diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return at most SPEC_FAULTS errors and as many warnings in file order, then a count of the
        others."""
        shown_diagnostics: list[Diagnostic] = []
        for severity in ("error", "warning"):
            diagnostics = [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == severity]
            shown_diagnostics += diagnostics[: SPEC_FAULTS.most]
            if remaining := diagnostics[SPEC_FAULTS.most :]:
                hint = f"fix the first ones and run again; at most {SPEC_FAULTS} are shown"
                message = f"and {len(remaining) - 1:,} more: {remaining[0].message}"
                shown_diagnostics.append(replace(remaining[0], message=message, expected="", hint=hint))
        return tuple(sorted(shown_diagnostics, key=by_place))

    def report(self, findings: Iterable[Finding]) -> None:
        """Add findings to the diagnostics, each with its place, except consequences of other faults.

        Consequences are findings at or below a broken part, warnings at a fault, and findings that were
        concluded from a fault.
        """
        findings = [f for f in findings if not self.broken.intersection(_prefixes(f.path))]
        causes = self.broken.union(
            *((f.path, *f.covers) for f in findings if f.severity == "error" and not f.rests_on)
        )
        prefixes = {prefix for path in causes for prefix in _prefixes(path)}
        diagnostics = dict.fromkeys(self.diagnostics)
        for finding in findings:
            root_paths = (*finding.rests_on, *((finding.path,) if finding.severity == "warning" else ()))
            if finding.looked_in and causes.intersection(_prefixes(finding.looked_in)):
                continue
            if not any(root in prefixes or causes.intersection(_prefixes(root)) for root in root_paths):
                diagnostics[self.source.diagnostic(finding)] = None
        self.diagnostics = sorted(diagnostics, key=by_place)


def _prefixes(path: Path) -> list[Path]:
    """Return a path and the paths of all mappings and lists around it, the top of the spec first."""
    return [path[:depth] for depth in range(len(path) + 1)]


def by_place(diagnostic: Diagnostic) -> tuple[str, int, int]:
    """Return the key that sorts diagnostics by file, line and column."""
    return diagnostic.place.file, diagnostic.place.line, diagnostic.place.column


def is_tests_file(path: str | FilePath) -> bool:
    """Return True for the name of a file of tests, NAME.test.yaml.

    Args:
        path: Path of a file, which need not exist.

    Returns:
        True where the name ends in `.test.yaml`.
    """
    return str(path).endswith(TESTS_SUFFIX)


_OF_DATA = "; for a spec of your own rows: rolegraph new NAME --data FILE"
_NO_SPECS = {
    ".j2": "; a template stands in the `prompt` of a role",
    **dict.fromkeys((".jsonl", ".csv", ".parquet"), _OF_DATA),
}
"""Endings of files that are no specs, with where such a file belongs."""


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
    if path.suffix in _NO_SPECS:
        raise UsageError(f"{name} is no spec, which is a .yaml file{_NO_SPECS[path.suffix]}")
    if is_file(path):
        return path
    shipped_file = SPECS / f"{path.name.removesuffix('.yaml')}.yaml"
    if path.parent == FilePath() and is_file(shipped_file):
        return shipped_file
    names = [spec.stem for spec in SPECS.glob("*.yaml")]
    near_names = [*names_in([path.parent], "*.yaml"), *names]
    hint = did_you_mean(path.name, near_names, "{}") or f"shipped specs: {', '.join(sorted(names))}"
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
        widen_overrides(source)
        choose_model(source, model, base_url)
    source.data.pop("extends", None)
    fitted, numbers = _validated(source.data)
    if fitted.findings and (misplaced_findings := _misplaced(source, shown_path(path), fitted.findings)):
        source, unreadable = misplaced_findings, True
        fitted, numbers = _validated(source.data)
    unread_paths = _unread(source) | _misspelt(source, fitted.findings)
    loaded_spec = LoadedSpec(fitted.value, source, folders, list(source.faults))
    loaded_spec.numbers = numbers
    if not unreadable:
        loaded_spec.report(finding for finding in fitted.findings if finding.path not in unread_paths)
    loaded_spec.broken = fitted.left_out | unread_paths
    return loaded_spec


def _validated(data: dict[str, Any]) -> tuple[FittedPart[Spec], dict[Path, str]]:
    """Return (valid part of a spec's data, texts of its numbers that are expressions over the step, by
    path)."""
    numbers = dict(written_numbers(data))
    return validate(values_at(data, dict.fromkeys(numbers, 1.0)) if numbers else data), numbers


def _misplaced(source: YamlSource, file: str, findings: Iterable[Finding]) -> YamlSource | None:
    """Return a source with the fault of one line whose indentation puts its key into another mapping; None
    without such a line.

    The fault is certain if the whole spec has a valid form once a faulty line, or a line beside it, is
    indented as another line is. All other faults are then consequences and are left out, as for a text that
    is no YAML.
    """
    if all(f.code == "wrong-value" and _is_scalar(value_at(source.data, f.path)) for f in findings):
        return None  # each value has its key
    text = source.texts.get(file, "")
    lines = SourceLines(file, text)
    fault_places = [fault.place for fault in (*source.errors, *map(source.diagnostic, findings))]
    faulty_lines = sorted({place.line - 1 for place in fault_places if place.file == file})[:_TRIED_LINES]
    indices = dict.fromkeys(line + offset for line in faulty_lines for offset in (0, -1, 1))
    for index in indices if len(text) <= _LONGEST_MOVED else ():
        if 0 <= index < len(lines.lines) and re.match(r" *[\w-]+:(?: |$)", lines.lines[index]):
            for mistake, changed_text in moved(text, index):
                if _is_valid_form(changed_text, file):
                    place = lines.place(mistake.position, mistake.width)
                    return unreadable_source(place, mistake.message, "", mistake.hint)
    return None


def _is_scalar(value: object) -> bool:
    return value is not None and not isinstance(value, dict | list)


def _is_valid_form(text: str, file: str) -> bool:
    """Return True if a text parses as a spec with valid keys and values."""
    source = parse_yaml(text, file)
    data = _with_required(source).data if "extends" in source.data else source.data
    fitted, _ = _validated({key: value for key, value in data.items() if key != "extends"})
    return not source.errors and not fitted.findings


def _misspelt(source: YamlSource, findings: Iterable[Finding]) -> set[Path]:
    """Return the paths of required keys that are missing only because the file misspells them.

    Only the misspelling is reported.
    """
    paths = {path for finding in findings for path in finding.covers}
    return {path for path in paths if value_at(source.data, path) is None}


def _unread(source: YamlSource) -> set[Path]:
    """Return the paths of values in which the YAML reader found a fault."""
    fault_places = {fault.place for fault in source.errors}
    return {path for path, position in source.positions.items() if path and position.value in fault_places}


def _read(path: FilePath, chain: tuple[FilePath, ...]) -> tuple[YamlSource, tuple[FilePath, ...]]:
    """Read a spec and the specs that it extends; return them merged, and the folders of all, its own first.

    `chain` holds the specs that extend this one, which it may not extend itself.
    """
    source = read_yaml(path)
    folder = resolve_path(path).parent
    if source.data.get("extends") is None:
        return source, (folder,)
    base = _base_of(source, folder, (*chain, resolve_path(path)))
    if base is None:
        return _with_required(source), (folder,)
    parent, folders = _read(base, (*chain, resolve_path(path)))
    if any(fault.code == "version" for fault in parent.faults):
        return parent, folders
    merged_source = merge(parent, source)
    inherited_folders = tuple(other for other in folders if other != folder)
    return _with_required(merged_source) if parent.unreadable else merged_source, (folder, *inherited_folders)


def _base_of(source: YamlSource, folder: FilePath, chain: tuple[FilePath, ...]) -> FilePath | None:
    """Return the file that the spec's `extends` names; if it cannot be used, add a fault to `source` and
    return None."""
    name = source.data["extends"]

    def refuse(message: str, expected: str = "", hint: str = "") -> None:
        source.faults.append(source.diagnostic(Finding(("extends",), message, expected, hint)))

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
    shipped_file = SPECS / FilePath(name).name
    if is_file(shipped_file) and resolve_path(shipped_file) not in chain:
        return shipped_file
    problem = f"{name!r} is not a file" if is_no_file(base) else f"there is no spec {name!r}"
    hint = did_you_mean(name, names_in([folder, SPECS], "*.yaml"), "{}")
    return refuse(f"{problem} to extend", "a file beside this one, or a shipped spec", hint)


def _with_required(source: YamlSource) -> YamlSource:
    """Return the source with placeholders for missing required keys, which an unreadable spec that it extends
    may give."""
    missing_keys = {key: value for key, value in REQUIRED.items() if not source.data.get(key)}
    return replace(source, data={**source.data, **missing_keys})
