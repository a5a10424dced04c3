"""Merging of `extends`, overrides and the flags for models, with the position of each value.

Mappings merge key by key, and `null` removes a key. Values for which `is_atomic` holds, such as a parser or a
prompt, are replaced as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, cast

from rolegraph.engine.json_values import walk_paths
from rolegraph.engine.limits.specs import SPEC_DEPTH
from rolegraph.engine.spec.diagnostics import Diagnostic, Path, Place
from rolegraph.engine.spec.files import has_surrogate
from rolegraph.engine.spec.models import is_atomic, type_at
from rolegraph.engine.spec.sources import ModelRef, api_of
from rolegraph.engine.spec.validation import name_not_found
from rolegraph.engine.spec.yaml_source import (
    KeyPosition,
    KeyPositions,
    YamlSource,
    parse_yaml,
    value_at,
)
from rolegraph.engine.vocabulary import ItemCall

_refused = partial(Diagnostic, code="override")


def merge(base: YamlSource, child: YamlSource) -> YamlSource:
    """Return the child merged over the base, which is the spec that it extends."""
    positions: KeyPositions = dict(base.positions)
    data = _merge(base.data, child.data, (), positions, child.positions)
    positions[()] = child.positions.get((), base.positions[()])
    return YamlSource(data, positions, [*base.faults, *child.faults], {**base.texts, **child.texts})


def _merge(
    base: Mapping[str, Any], child: Mapping[str, Any], path: Path, positions: KeyPositions, new: KeyPositions
) -> dict[str, Any]:
    merged_data = dict(base)
    for key, value in child.items():
        here = (*path, key)
        old_value = merged_data.get(key)
        if isinstance(value, Mapping) and not is_atomic(here):
            inner_base = cast("Mapping[str, Any]", old_value if isinstance(old_value, Mapping) else {})
            if not inner_base:
                _forget(positions, cast("object", old_value), here)
            positions[here] = new[here]
            merged_data[key] = _merge(inner_base, cast("Mapping[str, Any]", value), here, positions, new)
            continue
        _forget(positions, old_value, here)
        if value is None:
            merged_data.pop(key, None)
            continue
        positions.update({subpath: new[subpath] for subpath, _ in walk_paths(value, here) if subpath in new})
        merged_data[key] = value
    return merged_data


def _forget(positions: KeyPositions, value: object, path: Path) -> None:
    """Delete the recorded file positions of a value and of everything in it."""
    for subpath, _ in walk_paths(value, path):
        positions.pop(subpath, None)


def override(source: YamlSource, text: str, position: int) -> None:
    """Set the value of one override `key.path=value` in `source`, or add a fault to `source.faults`.

    `position` counts the command line's overrides from 0.
    """
    file = "command line" if position == 0 else f"command line, override {position + 1}"
    dotted, equals, raw_value = text.partition("=")
    place = Place(file, 1, 1, text, len(dotted))
    value_place = Place(file, 1, len(dotted) + 2, text, max(1, len(raw_value)))
    keys = dotted.strip().split(".")
    roles = _mapping(source.data.get("roles"))
    fault: Diagnostic | None = None
    if not equals or not all(keys):
        fault = _refused("not an override", place, "key.path=value, such as roles.solver.count=4")
        if not equals and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", dotted):
            fault = replace(fault, hint=f"write {dotted}=…, without a space")
    elif len(keys) > SPEC_DEPTH.most:
        fault = _refused(SPEC_DEPTH.exceeded("the keys are inside one another in"), place)
    elif has_surrogate(text):
        fault = _refused("the override contains an unpaired surrogate", place, "Unicode text")
    elif (parsed := parse_yaml(f"value: {raw_value}" if raw_value.strip() else "value: null", file)).faults:
        fault = replace(parsed.faults[0], place=value_place, hint="quote the value", severity="error")
    elif keys[0] == "roles" and len(keys) > 2 and keys[1] not in roles:
        name_place = replace(place, column=dotted.index(keys[1], len("roles.")) + 1, width=len(keys[1]))
        fault = name_not_found("role", keys[1], roles).at(name_place)
    else:
        _put(source, tuple(keys), parsed.data["value"], KeyPosition(place, value_place))
    source.faults += [fault] if fault else []


def widen_overrides(source: YamlSource) -> None:
    """Remove a setting from roles and policies if the command line sets it for the whole spec.

    An override of `sampling.KEY` removes KEY from every policy and role, one of `train.lora.KEY` from every
    policy, except values that the command line sets itself.
    """

    for general_key, layers in ((("sampling",), ("policies", "roles")), (("train", "lora"), ("policies",))):
        for key, layer in product((str(p[-1]) for p in source.overridden(general_key)), layers):
            for name in _mapping(source.data.get(layer)):
                path = (layer, name, general_key[-1], key)
                if value_at(source.data, path) is not None and not source.is_overridden(path):
                    _put(source, path, None, source.positions[()])


def _put(source: YamlSource, path: tuple[str, ...], value: object, spot: KeyPosition) -> None:
    """Set the value at a path in place, and expand short forms on the way; None removes the key.

    Messages about the value point at `spot`, a line of a file or an override.
    """
    mapping: dict[str, Any] = source.data
    for depth, key in enumerate(path[:-1], 1):
        inner_mapping = _expand_at(mapping.get(key), path[:depth])
        if inner_mapping is not None and not isinstance(inner_mapping, dict):
            message = f"{'.'.join(path[:depth])} is not a mapping, so it has no {path[depth]!r}"
            source.faults.append(_refused(message, spot.key or spot.value))
            return
        mapping[key] = mapping = dict(cast("dict[str, Any]", inner_mapping or {}))
        source.positions.setdefault(path[:depth], KeyPosition(spot.key, spot.key or spot.value))
    _forget(source.positions, mapping.get(path[-1]), path)
    if value is None:
        mapping.pop(path[-1], None)
        return
    mapping[path[-1]] = value
    source.positions[path] = spot


def _expand_at(value: object, path: Path) -> object:
    """Return the mapping of a short form, such as `parser: number`; other values are returned unchanged."""
    kind = type_at(path)
    if kind is None:
        return value
    if issubclass(kind, ItemCall):
        return {value: None} if isinstance(value, str) else value
    return kind.expand_shorthand(value)


def choose_model(source: YamlSource, model: str | None, base_url: str | None) -> None:
    """Set the model and the endpoint of the flags `--model` and `--base-url` in `source`; they replace those
    of overrides.

    Another model keeps `checkpoint`, `concurrency`, `replay_any` and `escape_markers`, and if the provider is
    the same, also `base_url`, `body` and `bf16`. The endpoint also applies to models of roles and policies
    that have the same provider and no endpoint.
    """
    if model:
        _replace_model(source, model)
    if not base_url:
        return
    flag_position = _flag("--base-url", base_url)
    _put(source, ("model", "base_url"), base_url, flag_position)
    provider = api_of(_provider(source.data.get("model")))
    for key in ("roles", "policies"):
        for name, settings in _mapping(source.data.get(key)).items():
            reference = _mapping(settings).get("model")
            if reference and _provider(reference) == provider and not _full_model(reference).get("base_url"):
                _put(source, (key, name, "model", "base_url"), base_url, flag_position)


def _replace_model(source: YamlSource, model: str) -> None:
    old_model = source.data.get("model")
    replaced_keys = {"provider", "name"}
    replaced_keys |= {"base_url", "body", "bf16"} if _provider(old_model) != _provider(model) else set()
    kept = {key: value for key, value in _full_model(old_model).items() if key not in replaced_keys}
    spots = source.positions.items()
    positions = {path: spot for path, spot in spots if path[1:] and path[0] == "model" and path[1] in kept}
    _put(source, ("model",), {**_full_model(model), **kept} if kept else model, _flag("--model", model))
    source.positions |= positions


def _flag(name: str, value: str) -> KeyPosition:
    """Return the KeyPosition of a flag such as `--model`, so that messages point at its value."""
    return KeyPosition(None, Place("command line", 1, len(name) + 2, f"{name} {value}", max(1, len(value))))


def _provider(model: object) -> str:
    return str(_full_model(model).get("provider", ModelRef.model_fields["provider"].default))


def _full_model(model: object) -> Mapping[str, Any]:
    return _mapping(ModelRef.expand_shorthand(model))


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
