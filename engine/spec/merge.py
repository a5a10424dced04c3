"""`extends` and `key.path=value`: plain data in, merged data out, with the place of each part kept.

Mappings merge key by key and `null` removes a key. What names a vocabulary item or a template (a parser, a
reward, a prompt …) is one value, replaced whole: half of one parser mixed with another means nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import yaml

from engine.errors import did_you_mean
from engine.spec.diagnostics import Diagnostic, Path, Place
from engine.spec.models import ModelRef, PromptSource, kind_at
from engine.spec.yaml_source import Source, Spot, Spots, parse_yaml, paths_of
from engine.vocabulary import Call


def is_whole(path: Path) -> bool:
    """Whether the value at this path is replaced, not merged."""
    return kind_at(path) in (Call, PromptSource)


def merge(base: Source, child: Source) -> Source:
    """The child laid over the base."""
    spots: Spots = dict(base.spots)
    data = _merge(base.data, child.data, (), spots, child.spots)
    spots[()] = child.spots.get((), base.spots[()])
    return Source(data, spots, [*base.faults, *child.faults], {**base.texts, **child.texts})


def _merge(
    base: Mapping[str, Any], child: Mapping[str, Any], path: Path, spots: Spots, new: Spots
) -> dict[str, Any]:
    merged = dict(base)
    for key, value in child.items():
        here = (*path, key)
        old = merged.get(key)
        if isinstance(value, Mapping) and not is_whole(here):
            inner = cast("Mapping[str, Any]", old if isinstance(old, Mapping) else {})
            if not inner:
                _forget(spots, cast("object", old), here)
            spots[here] = new[here]
            merged[key] = _merge(inner, cast("Mapping[str, Any]", value), here, spots, new)
            continue
        _forget(spots, old, here)
        if value is None:
            merged.pop(key, None)
            continue
        spots.update({at: new[at] for at, _ in paths_of(value, here) if at in new})
        merged[key] = value
    return merged


def _forget(spots: Spots, value: object, path: Path) -> None:
    """Drop the places of the value at a path."""
    for at, _ in paths_of(value, path):
        spots.pop(at, None)


def override(source: Source, text: str, position: int) -> None:
    """Apply one `key.path=value` from the command line, in place. A bad one is added to `source.faults`."""
    file = "command line" if position == 0 else f"command line, override {position + 1}"
    dotted, equals, raw = text.partition("=")
    place = Place(file, 1, 1, text, len(dotted))
    value_place = Place(file, 1, len(dotted) + 2, text, max(1, len(raw)))
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        source.faults.append(
            Diagnostic("not an override", place, "key.path=value, such as roles.solver.count=4")
        )
        return
    parsed = parse_yaml(f"value: {raw}" if raw.strip() else "value: null", file)
    if parsed.faults:
        fault = parsed.faults[0]
        source.faults.append(Diagnostic(fault.message, value_place, fault.expected, "quote the value"))
        return
    roles = _mapping(source.data.get("roles"))
    if keys[0] == "roles" and len(keys) > 2 and keys[1] not in roles:
        named = replace(place, column=dotted.index(keys[1], len("roles.")) + 1, width=len(keys[1]))
        message, expected = f"no role {keys[1]!r}", f"one of {', '.join(roles)}"
        source.faults.append(Diagnostic(message, named, expected, did_you_mean(keys[1], roles)))
        return
    at: dict[str, Any] = source.data
    path: Path = ()
    for key in keys[:-1]:
        path = (*path, key)
        inner = _in_full(at.get(key), path)
        if inner is None:
            inner = dict[str, Any]()
        elif not isinstance(inner, dict):
            message = f"{'.'.join(map(str, path))} is not a mapping, so it has no {keys[len(path)]!r}"
            source.faults.append(Diagnostic(message, place))
            return
        at[key] = at = dict(cast("dict[str, Any]", inner))
        source.spots.setdefault(path, Spot(place, place))
    path = (*path, keys[-1])
    _forget(source.spots, at.get(keys[-1]), path)
    if parsed.data["value"] is None:
        at.pop(keys[-1], None)
        return
    at[keys[-1]] = parsed.data["value"]
    source.spots[path] = Spot(place, value_place)


def _in_full(value: object, path: Path) -> object:
    """The mapping that a value written in short stands for; any other value as it is."""
    kind = kind_at(path)
    if kind is None:
        return value
    if issubclass(kind, Call):
        return {value: None} if isinstance(value, str) else value
    return kind.in_full(value)


def choose_model(source: Source, model: str | None, base_url: str | None) -> None:
    """Apply the flags `--model` and `--base-url`, in place: they go before the spec and its overrides.

    Another model keeps how the spec asks one, and of the same provider the endpoint, but no checkpoint. An
    endpoint is that of the roles' own models of its provider, too, where they have none.
    """
    if model:
        before = _mapping(ModelRef.in_full(source.data.get("model")))
        override(source, f"model={model}", 0)
        same = before.get("provider", "local") == _provider(source.data.get("model"))
        for key, value in before.items():
            if key not in ("provider", "name", "checkpoint") and (same or key != "base_url"):
                override(source, f"model.{key}={json.dumps(value)}", 0)
    if not base_url:
        return
    word = f"base_url={json.dumps(base_url)}"
    override(source, f"model.{word}", 0)
    provider = _provider(source.data.get("model"))
    provider = "tinker" if provider == "local" else provider  # what is served already is reached as tinker is
    for name, role in _mapping(source.data.get("roles")).items():
        own = _mapping(role).get("model")
        if own and _provider(own) == provider and not _mapping(ModelRef.in_full(own)).get("base_url"):
            override(source, f"roles.{name}.model.{word}", 0)


def _provider(model: object) -> object:
    return _mapping(ModelRef.in_full(model)).get("provider", "local")


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def dump(data: Mapping[str, Any]) -> str:
    """Resolved data as YAML text again."""
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True)
