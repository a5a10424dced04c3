"""Tests that the JSON Schema accepts all valid specs, with all short forms, and rejects faults of form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import BaseModel

from rolegraph.engine import vocabulary
from rolegraph.engine.compile import check_file
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.models import Spec
from rolegraph.engine.spec.schema import json_schema
from rolegraph.engine.vocabulary.scheduled import SCHEDULED_KEYS
from tests.documents import PAGES, specs_in
from tests.spec.test_broken import CASES as BROKEN

ROOT = Path(__file__).parent.parent.parent
SHIPPED = sorted((ROOT / "specs").glob("*.yaml"))
MINE: dict[str, Any] = {
    "rolegraph": 2,
    "name": "mine",
    "roles": {"solver": {"prompt": "solver.j2"}},
}
OF_SHAPE = (
    "a_list bad_role_name count_zero empty missing_prompt missing_roles no_roles on_failure_word "
    "parser_option_type sampling_range unknown_dataset unknown_estimator unknown_key_role unknown_key_top "
    "unknown_parser unknown_parser_option unknown_reward wrong_type_count wrong_version"
).split()
"""Broken specs that the schema rejects: an unknown key or name, or a value of the wrong type."""

FAULTS_OF_FORM = (
    (Path(__file__).parent.parent / "data" / "faults_of_form.txt").read_text("utf-8").splitlines()
)
"""Overrides of `solver_judge` that the schema rejects: an unknown key or name, or a wrong value."""

ANY_CALL = str({"anyOf": [{"type": "string"}, {"type": "object"}]})


@cache
def validator() -> Draft7Validator:
    schema = json_schema()
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def faults(spec: object) -> list[str]:
    return [error.message for error in validator().iter_errors(spec)]  # pyright: ignore[reportUnknownMemberType]


def with_role(**keys: Any) -> dict[str, Any]:
    return {**MINE, "roles": {"solver": {**MINE["roles"]["solver"], **keys}}}


def with_fault(fault: str) -> Any:
    """Return the parsed `solver_judge` spec with an override applied."""
    path, _, value = fault.partition("=")
    spec = yaml.safe_load((ROOT / "specs" / "solver_judge.yaml").read_text("utf-8"))
    *around, last = path.split(".")
    inside = spec
    for key in around:
        inside = inside.setdefault(key, {})
    inside[last] = yaml.safe_load(value)
    return spec


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_takes_every_shipped_spec(path: Path) -> None:
    assert not faults(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize(("where", "text"), specs_in(*PAGES))
def test_the_schema_takes_every_spec_in_the_documents(where: str, text: str) -> None:
    assert not faults(yaml.safe_load(text)), where


@pytest.mark.parametrize("name", OF_SHAPE)
def test_a_spec_that_is_broken_in_shape_is_not(name: str) -> None:
    assert faults(yaml.safe_load(BROKEN[name][f"{name}.yaml"]))


@pytest.mark.parametrize("fault", FAULTS_OF_FORM)
def test_a_fault_of_form_is_refused_by_the_schema_as_by_the_loader(fault: str) -> None:
    assert faults(with_fault(fault))
    assert check_file("solver_judge", [fault]).plan is None


def test_there_are_faults_of_form_in_every_part_of_a_spec() -> None:
    assert len(FAULTS_OF_FORM) >= 50
    parts = {fault.partition("=")[0].partition(".")[0] for fault in FAULTS_OF_FORM}
    assert parts >= {*Spec.model_fields} - {"description"}


@pytest.mark.parametrize(
    "keys",
    [
        {"needs": "judge"},
        {"needs": ["judge", "critic"]},
        {"needs": {"judge": "each", "critic": "history", "pair": {"of": "judge", "chunks": 2}}},
        {"needs": {"judge": {"chunks": 2}, "critic": {"join": "branch", "round": "previous"}}},
        {"prompt": "Hi", "system": "system.j2"},
        {"model": "openai:gpt-5"},
        {"model": "local"},
        {"model": {"provider": "tinker", "name": "x", "concurrency": 3}},
        {"sampling": {"stop": "\n", "temperature": 1}},
        {"parser": "json"},
        {"parser": {"tag": "answer", "keep_tag": True}},
        {"parser": {"json": {"default": None}}},
        {"reward": {"length": None, "over": 3}},
        {"reward": {"length": {"over": 3}}},
        {"reward": {"sum": {"right": "math", "long": {"reward": {"length": {"over": 4}}, "weight": -1}}}},
        {"reward": None},
        {"estimator": {"grpo": {}}},
        {"signal": {"reverse_kl": {"teacher": "tinker:Qwen/Qwen3-8B"}}},
        {"signal": {"reverse_kl": {"teacher": "base"}}},
        {"signal": {"reverse_kl": {"teacher": {"provider": "local", "name": "mine"}}}},
        {"signal": {"reverse_kl": {"teacher": {"policy": "main", "prompt": "t.j2", "sees": "answer"}}}},
        {
            "signal": {
                "reverse_kl": {
                    "teacher": {
                        "by": "task.domain",
                        "of": {"math": "base", 1: {"base": "main"}},
                        "else": "mask",
                    }
                }
            }
        },
    ],
    ids=str,
)
def test_every_short_form_of_a_role_is_taken(keys: dict[str, Any]) -> None:
    assert not faults(with_role(**keys))


@pytest.mark.parametrize(
    "top",
    [
        {"data": {"train": "tasks.jsonl", "validation": {"file": "tasks.csv", "hidden": ["x"]}}},
        {"data": {"train": {"tasks.jsonl": {"hidden": ["x"]}}, "hidden": "x"}},
        {"data": {"train": {"tasks.parquet": None, "hidden": ["x"]}, "validation": {"countdown": True}}},
        {"data": {"train": {"countdown": {"count": 8}}, "validation": {"reasoning_gym": {"task": "x"}}}},
        {"loops": {"l": {"roles": "solver", "times": 2}}},
        {"loops": {"l": {"roles": ["solver"], "times": 2, "until": "solver.action == 1"}}},
        {"train": {"schedule": "linear"}},
        {"train": {"schedule": {"kind": "cosine", "warmup": 3}, "steps": None}},
        {"model": "tinker:x"},
        {"episode": {"metrics": {"right": "all(solver.right)"}}},
    ],
    ids=str,
)
def test_every_short_form_of_the_rest_is_taken(top: dict[str, Any]) -> None:
    assert not faults({**MINE, **top})


@pytest.mark.parametrize(
    "wrong",
    [
        with_role(needs={"judge": "ech"}),
        with_role(needs={"judge": {"join": {"chunk": 2}}}),
        with_role(model="gpt-5"),
        with_role(parser="choice"),
        with_role(parser={"tag": "x", "keep": True}),
        with_role(reward={"sum": {"right": "maths"}}),
        with_role(count=None),
        {**MINE, "loops": {"l": {"roles": ["solver"]}}},
        {**MINE, "roles": {"no-name": MINE["roles"]["solver"]}},
        {**MINE, "data": {"train": "tasks.txt"}},
        {**MINE, "train": {"schedule": "linea"}},
    ],
    ids=str,
)
def test_a_word_that_the_language_does_not_have_is_refused(wrong: dict[str, Any]) -> None:
    assert faults(wrong)


@pytest.mark.parametrize(
    "role",
    [
        {"run": "majority", "needs": "solver", "reward": "countdown"},
        {"run": {"majority": {"equal": "math"}}, "prompt": None, "when": "self.index == 1"},
        {"run": {"argmax": "solver", "by": "scorer.score"}, "timeout": 2},
        {"run": {"search": {"url": "http://127.0.0.1"}}},
        {"run": {"python": "{{ solver.action }}", "seconds": 2}, "count": 3, "on_failure": {"retry": 1}},
        {"run": {"text": "{{ solver.action }}"}, "parser": {"json": {"default": {}}}},
        {"run": None, "prompt": "solver.j2"},
    ],
    ids=str,
)
def test_a_role_may_run_a_tool_in_place_of_a_prompt(role: dict[str, Any]) -> None:
    assert not faults({**MINE, "roles": {"mine": role}})
    assert not faults({"extends": "solver_judge.yaml", "roles": {"mine": {**role, "memory": None}}})


@pytest.mark.parametrize(
    "role",
    [{"count": 2}, {"run": "majority", "prompt": "x.j2"}, {"run": "majority", "model": "local:x"}],
    ids=str,
)
def test_a_role_has_one_of_both_shapes(role: dict[str, Any]) -> None:
    assert faults({**MINE, "roles": {"mine": role}})


def test_a_spec_that_extends_another_says_only_what_differs_and_null_removes() -> None:
    assert not faults({"extends": "solver_judge.yaml", "roles": {"judge": None, "solver": {"count": 4}}})
    assert not faults({"extends": "solver_judge.yaml", "train": {"lora": {"rank": 4}, "steps": None}})
    assert faults({"extends": "solver_judge.yaml", "roles": {"solver": {"cont": 4}}})
    assert faults({"extends": "solver_judge.yaml", "roles": {"solver": {"count": 0}}})


def language() -> Iterator[type[BaseModel]]:
    """Yield the models of the spec's keys, without those of tests files and of the options of signals."""
    others = {f"rolegraph.engine.spec.{name}" for name in ("expectations", "teacher")}
    yield from (model for model in SpecModel.__subclasses__() if model.__module__ not in others)


def test_each_key_has_its_line_and_each_short_form_its_type() -> None:
    definitions = json_schema()["$defs"]
    for model in language():
        if not model.model_fields:
            continue
        found = definitions[model.__name__]
        shape = found["anyOf"][-1] if "anyOf" in found else found
        for key, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{key} has no docstring"
            assert shape["properties"][key]["description"] == field.description
        short = "expand_shorthand" in vars(model) or bool(model.SHORT_KEYS)
        assert short == (vars(model).get("SHORT") is not None), (
            f"{model.__name__}.SHORT is for `expand_shorthand`"
        )


def test_every_item_that_a_spec_may_name_is_listed() -> None:
    definitions = json_schema()["$defs"]
    for kind in ("parsers", "rewards", "estimators", "signals", "metrics", "tools", "datasets"):
        registry = getattr(vocabulary, kind)
        forms = definitions[registry.group]["anyOf"]
        for name in registry.names():
            assert any(name in form.get("required", []) for form in forms), f"{kind}: {name}"


def test_every_call_in_the_models_says_whose_items_it_names() -> None:
    for name, shape in json_schema()["$defs"].items():
        for key, value in shape.get("properties", {}).items() if not name.startswith("rolegraph.") else ():
            assert ANY_CALL not in str(value), f"{name}.{key}: Annotated[CallField, vocabulary.rewards], say"


def scheduled(schema: Any, key: str = "") -> Iterator[str]:
    """Yield the keys that may hold an expression over the step; `key` is the one that holds `schema`."""
    if isinstance(schema, list):
        for part in cast("list[Any]", schema):
            yield from scheduled(part, key)
    elif isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema)
        if str(parts.get("description", "")).startswith("Expression over `step`"):
            yield key
        for name, part in parts.items():
            yield from scheduled(part, key if name == "anyOf" else name)


def test_the_keys_that_may_follow_the_step_are_those_that_are_marked() -> None:
    assert {*scheduled(json_schema())} == SCHEDULED_KEYS
