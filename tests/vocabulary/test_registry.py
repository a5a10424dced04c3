"""The registry: how a spec calls an item, what is said of a wrong call, and how packages add their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rolegraph.engine import vocabulary
from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.vocabulary import BadOptions, CallField, Item, ItemCall, Registry, UnknownName


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the registry of these tests out of the hints of all others."""
    known = vocabulary.registry._REGISTRIES
    monkeypatch.setattr(vocabulary.registry, "_REGISTRIES", dict(known))


@dataclass(frozen=True, slots=True)
class Ware(Item):
    """Item of the registry of these tests."""

    options: Mapping[str, Any]


def shop() -> Registry[Ware]:
    registry = Registry(Ware, "rolegraph.tests", context=("folder",))

    @registry.register("plain")
    def plain() -> Ware:
        """Takes nothing."""
        return Ware({})

    @registry.register("tag")
    def tag(name: str, /, *, keep: bool = False) -> Ware:
        """Takes a value and an option.

        And says more below.
        """
        if name == "bad":
            raise ValueError("bad is no name")
        return Ware({"name": name, "keep": keep})

    @registry.register("tasks")
    def tasks(*, count: int = 1, folder: Path = Path()) -> Ware:
        """Takes options, and a folder from the engine."""
        return Ware({"count": count, "folder": folder})

    @registry.register("broke")
    def broke() -> Ware:
        """Lacks a library."""
        raise UsageError("install it")

    return registry


def build(yaml: object, **context: Any) -> Mapping[str, Any]:
    return shop().build(ItemCall.parse(yaml), **context).options


@pytest.mark.parametrize(
    ("yaml", "item"),
    [
        ("plain", {}),
        ({"plain": None}, {}),
        ({"plain": True}, {}),
        ({"plain": {}}, {}),
        ({"tag": "answer"}, {"name": "answer", "keep": False}),
        ({"tag": "answer", "keep": True}, {"name": "answer", "keep": True}),
        ("tasks", {"count": 1, "folder": Path()}),
        ({"tasks": {"count": 3}}, {"count": 3, "folder": Path()}),
        ({"tasks": None, "count": 3}, {"count": 3, "folder": Path()}),
    ],
    ids=str,
)
def test_an_item_is_called_by_name_with_a_value_or_with_options(
    yaml: object, item: Mapping[str, Any]
) -> None:
    assert build(yaml) == item


@pytest.mark.parametrize("yaml", ["", 3, None, [], {}, {1: 2}, True], ids=str)
def test_what_is_no_call_says_what_was_expected(yaml: object) -> None:
    with pytest.raises(ValueError, match=r"expected a name|option names must be text"):
        ItemCall.parse(yaml)


@given(
    st.text(min_size=1)
    | st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.integers()), min_size=1)
)
def test_a_call_is_written_as_it_was_read(yaml: object) -> None:
    assert ItemCall.parse(yaml).dump() == yaml


def test_a_call_is_a_field_of_a_model() -> None:
    class Role(BaseModel):
        parser: CallField

    role = Role.model_validate({"parser": {"tag": "answer", "keep": True}})
    assert role.parser == ItemCall("tag", "answer", {"keep": True}, has_value=True)
    assert role.model_dump() == {"parser": {"tag": "answer", "keep": True}}


@pytest.mark.parametrize(
    ("yaml", "where"),
    [
        ("tag", (0,)),
        ({"tag": None}, (0,)),
        ({"tag": ["a"]}, (0,)),
        ({"tag": "a", "kep": True}, ("kep",)),
        ({"tag": "a", "name": "b"}, ("name",)),
        ({"tag": "a", "keep": "perhaps"}, ("keep",)),
        ({"tag": "bad"}, ()),
        ({"plain": 3}, ()),
        ({"plain": {"x": 1}}, ("x",)),
        ({"tasks": {"count": "many"}}, ("count",)),
        ({"tasks": {1: 2}}, None),
    ],
    ids=str,
)
def test_wrong_options_are_named_with_their_place(yaml: object, where: tuple[object, ...] | None) -> None:
    with pytest.raises(BadOptions) as raised:
        build(yaml)
    assert raised.value.kind == "ware"
    if where is not None:
        assert raised.value.errors[0]["loc"][: len(where)] == where


def test_the_options_that_exist_are_named_but_not_the_value_s_own_name() -> None:
    with pytest.raises(BadOptions) as raised:
        build({"tag": "a", "kep": True})
    assert [option.name for option in raised.value.options] == ["keep"]


def test_what_the_engine_gives_is_not_the_spec_s_to_set() -> None:
    assert build({"tasks": {"count": 2}}, folder=Path("x"), other=1) == {"count": 2, "folder": Path("x")}
    with pytest.raises(BadOptions) as raised:
        build({"tasks": {"folder": "/etc"}}, folder=Path("x"))
    assert raised.value.errors[0]["msg"] == "unknown option"
    assert [option.name for option in raised.value.options] == ["count"]


def test_an_unknown_name_brings_the_nearest() -> None:
    with pytest.raises(UnknownName) as raised:
        build("tagg")
    assert raised.value.hint == "did you mean 'tag'?"
    assert raised.value.names == ["broke", "plain", "tag", "tasks"]
    assert did_you_mean("something else", ["tag"]) == ""
    assert (
        did_you_mean("gpro", ["grpo", "prpo"])
        == did_you_mean("gpro", ["prpo", "grpo"])
        == ("did you mean 'grpo'?")
    ), "two letters changed places"


def test_a_user_s_error_from_an_item_stays_one() -> None:
    with pytest.raises(UsageError, match="install it"):
        build("broke")


def test_a_name_is_taken_once() -> None:
    registry = shop()
    with pytest.raises(ValueError, match="registered already"):
        registry.register("tag")(dict)


def test_an_item_s_summary_is_its_docstring_s_first_line() -> None:
    assert shop().summary("tag") == "Takes a value and an option."


# packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder on the path with an installed distribution, `shouting`, as pip leaves it."""
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rolegraph.parsers]\n"
        "shout = shouting:shout\n"
        "tag = shouting:shout\n"
        "gone = shouting:gone\n"
        "broken = shouting_broken:anything\n"
        "constant = shouting:CONSTANT\n"
    )
    (tmp_path / "shouting.py").write_text(
        "from rolegraph.engine.vocabulary import Parser\n"
        "CONSTANT = 3\n"
        "def shout(mark: str = '!', /) -> Parser:\n"
        '    """The answer in capitals."""\n'
        "    return Parser(lambda response, upstream: response.upper() + mark)\n"
    )
    (tmp_path / "shouting_broken.py").write_text("raise RuntimeError('no such device')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shouting", raising=False)
    # So that the next test does not know the package's parsers.
    monkeypatch.setattr(vocabulary.parsers, "_factories", dict(vocabulary.parsers._factories))
    return tmp_path


def test_an_installed_package_s_parser_is_found_by_name(installed: Path) -> None:
    assert "shout" in vocabulary.parsers.names()
    assert vocabulary.parsers.summary("shout") == "The answer in capitals."
    assert vocabulary.parsers.build(ItemCall("shout")).parse("yes", {}) == "YES!"
    assert vocabulary.parsers.build(ItemCall.parse({"shout": "?"})).parse("yes", {}) == "YES?"


def test_a_package_cannot_take_a_built_in_name(installed: Path) -> None:
    assert vocabulary.parsers.build(ItemCall.parse({"tag": "a"})).parse("<a>yes</a>", {}) == "yes"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "parser 'gone' of shouting cannot be loaded: AttributeError"),
        ("broken", "parser 'broken' of shouting cannot be loaded: RuntimeError: no such device"),
        ("constant", "parser 'constant' of shouting is no function: shouting:CONSTANT"),
    ],
)
def test_a_package_that_does_not_work_is_named(installed: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        vocabulary.parsers.build(ItemCall(name))


def test_a_spec_uses_a_package_s_parser_with_nothing_but_its_name(installed: Path) -> None:
    spec = installed / "spec.yaml"
    spec.write_text("rolegraph: 2\nname: loud\nroles:\n  caller: {prompt: Say yes, parser: {shout: '?'}}\n")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from rolegraph.cli import main; main()"
    command = [sys.executable, "-c", code, str(installed), "validate", str(spec), "--model", "tinker:own"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# the built-in vocabulary


def test_the_vocabulary_loads_without_anything_heavy() -> None:
    code = """
import sys
import rolegraph.engine.vocabulary, rolegraph.roles.datasets, rolegraph.roles.environments
import rolegraph.roles.estimators, rolegraph.roles.parsers
import rolegraph.roles.rewards, rolegraph.roles.signals
heavy = "torch transformers datasets pyarrow math_verify sympy jsonschema numpy openai tinker networkx jinja2"
heavy += " textarena"
print(*sorted(set(heavy.split()) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_there_is_everything_that_the_language_names() -> None:
    parsers = {"boxed", "choice", "fence", "json", "number", "one_of", "regex", "tag", "tags", "text"}
    assert parsers <= set(vocabulary.parsers.names())
    assert {"countdown", "exact_match", "f1", "json_field", "math", "sum"} <= set(vocabulary.rewards.names())
    assert {"grpo", "prpo", "reinforce", "reinforce_plus_plus_baseline", "rloo"} <= set(
        vocabulary.estimators.names()
    )
    assert {"countdown", "file", "huggingface"} <= set(vocabulary.datasets.names())
    assert {"grid", "textarena", "tic_tac_toe"} <= set(vocabulary.environments.names())
