"""Differences between resolved specs by key, and between templates by line.

A default that only one spec spells out is no difference. A value that `extends` replaces as a whole (a
parser, a reward, a prompt) is compared as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rolegraph.engine.records.plain import text_difference
from rolegraph.engine.spec import Path
from rolegraph.engine.spec.models import is_atomic
from rolegraph.engine.spec.validation import validate
from rolegraph.engine.spec.yaml_source import value_at
from rolegraph.engine.spec.yaml_text import dump_yaml

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """Key of the specs or settings with its different values, one for each side."""

    key: str
    values: Sequence[str]
    """Value of each side, as YAML in one line."""


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """Template that differs from the first side's, with its diff."""

    name: str
    diffs: Sequence[str]
    """Unified diff of each other side against the first side; empty where both are the same."""


def spec_differences(specs: Sequence[Mapping[str, Any]]) -> list[KeyDifference]:
    """Return the keys in which resolved specs differ, in the order of the language."""
    return [*_differences(specs, [_meant(spec) for spec in specs], ())]


def setting_differences(settings: Sequence[Mapping[str, str]]) -> list[KeyDifference]:
    """Return the settings that differ between runs, or that some run lacks; sides without any settings are
    ignored."""
    names = dict.fromkeys(name for settings_ in settings for name in settings_)
    rows = [KeyDifference(name, [settings_.get(name, ABSENT) for settings_ in settings]) for name in names]
    sides = [index for index, settings_ in enumerate(settings) if settings_]
    return [row for row in rows if len({row.values[index] for index in sides}) > 1]


def template_differences(
    names: Sequence[str], templates: Sequence[Mapping[str, str]]
) -> list[TemplateChange]:
    """Return the templates that differ from those of the first side; `names` are the sides' names."""
    changes: list[TemplateChange] = []
    for template in dict.fromkeys(name for texts in templates for name in texts):
        first_text, *other_texts = [texts.get(template, "") for texts in templates]
        diffs = [
            text_difference(first_text, other, names[0], name)
            for name, other in zip(names[1:], other_texts, strict=True)
        ]
        if any(diffs):
            changes.append(TemplateChange(template, diffs))
    return changes


def _meant(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a resolved spec with all defaults filled in, so that specs of equal meaning compare equal.

    A spec with faults is returned unchanged.
    """
    validated_spec = validate(spec)
    return spec if validated_spec.findings else validated_spec.value.model_dump(mode="json")


def _differences(
    written: Sequence[Mapping[str, Any]], meant: Sequence[Mapping[str, Any]], parent: Path
) -> Iterator[KeyDifference]:
    for key in dict.fromkeys(key for side in meant for key in side):
        path, values = (*parent, key), [side.get(key) for side in meant]
        if all(value == values[0] for value in values):
            continue
        if all(isinstance(value, dict) for value in values) and not is_atomic(path):
            yield from _differences(written, cast("list[dict[str, Any]]", values), path)
        elif numbered_items := _numbered(values):
            yield from _differences(written, numbered_items, path)
        else:
            entries = [value_at(spec, path) for spec in written]
            pairs = zip(entries, values, strict=True)
            shown_values = [value if entry is None else entry for entry, value in pairs]
            cells = [ABSENT if value is None else dump_yaml(value, one_line=True) for value in shown_values]
            yield KeyDifference(".".join(map(str, path)), cells)


def _numbered(values: Sequence[Any]) -> list[dict[Any, Any]]:
    """Return lists of as many mappings each, such as the stages of trainings, as mappings by place; an empty
    list for other values."""
    lists = [cast("list[Any]", list_) for list_ in values if isinstance(list_, list)]
    are_alike = len(lists) == len(values) and len({*map(len, lists)}) == 1
    are_mappings = all(isinstance(item, dict) for list_ in lists for item in list_)
    return [dict(enumerate(list_)) for list_ in lists] if are_alike and are_mappings else []
