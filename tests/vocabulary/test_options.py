"""Options read from a factory: names, types, defaults and descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from rolegraph.engine import vocabulary
from rolegraph.engine.vocabulary import Parser, Registry
from rolegraph.engine.vocabulary.options import Option, options_of, value_option_of

KINDS = ("parsers", "rewards", "estimators", "signals", "metrics", "datasets", "environments")
BUILT_IN = [(kind, name) for kind in KINDS for name in getattr(vocabulary, kind).names()]


class Part(BaseModel):
    """A mapping with keys of its own."""

    what: str
    weight: float = 1.0


class Opaque:
    """A type that pydantic and JSON know nothing of."""


def item(
    name: str,
    /,
    *,
    which: Literal["first", "last"] = "first",
    sizes: Annotated[list[Annotated[int, Field(ge=1, le=10)]], Field(min_length=1)] = [2, 3],  # noqa: B006
    limit: Annotated[float, Field(gt=0)] | None = None,
    parts: dict[str, Part],
    anything: Any = ...,
    folder: str = "",
) -> Parser:
    """Do something: in a line.

    More text, note: this is no option's line.

    name: what it is called
    which: of several, the first
      or the last
    """
    return Parser(lambda text, upstream: (name, which, sizes, limit, parts, anything, folder, text, upstream))


def test_the_value_is_the_positional_parameter_and_the_others_are_options() -> None:
    assert value_option_of(item) == Option("name", str, required=True, line="what it is called")
    names = ["which", "sizes", "limit", "parts", "anything", "folder"]
    assert [option.name for option in options_of(item)] == names
    assert [option.name for option in options_of(item, context=["folder"])] == names[:-1]


def test_the_keys_of_what_is_inside_are_known_where_only_some_are_allowed() -> None:
    parts = Option("parts", dict[str, Part] | list[Part] | None)
    assert parts.keys_at(()) == []
    assert parts.keys_at(("x",)) == ["what", "weight"]
    assert Option("part", Part | None).keys_at(()) == ["what", "weight"]
    assert Option("opaque", Opaque).keys_at(("x",)) == []


def test_what_a_factory_gathers_is_no_option_that_can_be_listed() -> None:
    def gathers(name: str, /, *, which: str = "", **others: Any) -> Parser:
        """Takes anything."""
        return item(name, which="first", parts={}, anything=(which, others))

    assert [option.name for option in options_of(gathers)] == ["which"]


def test_types_are_in_words_and_defaults_in_yaml() -> None:
    assert {option.name: (option.type, option.written) for option in options_of(item)} == {
        "which": ("first or last", '"first"'),
        "sizes": ("a list of whole numbers from 1 to 10", "[2, 3]"),
        "limit": ("a number above 0, or null", "null"),
        "parts": ("a mapping of names to {what, weight}", "…"),
        "anything": ("anything", "…"),
        "folder": ("text", '""'),
    }


def test_a_line_is_the_docstring_s_and_may_go_on() -> None:
    lines = {option.name: option.line for option in options_of(item)}
    assert lines["which"] == "of several, the first or the last"
    assert lines["folder"] == ""


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "true or false"),
        (int, "a whole number"),
        (Annotated[int, Field(ge=1)], "a whole number of at least 1"),
        (Annotated[int, Field(ge=1, le=1_000_000)], "a whole number from 1 to 1,000,000"),
        (Annotated[float, Field(le=0.5)], "a number of at most 0.5"),
        (Literal["only"], "only"),
        (list[str], "a list of texts"),
        (list[Any], "a list"),
        (dict[str, Any], "a mapping"),
        (str | list[str], "text, or a list of texts"),
        (Part, "{what, weight}"),
        (Opaque, "anything"),
    ],
    ids=str,
)
def test_a_type_in_words(hint: Any, words: str) -> None:
    assert Option("x", hint).type == words


def test_what_the_engine_gives_is_no_option_of_a_dataset() -> None:
    assert [option.name for option in vocabulary.datasets.options("file")] == ["hidden"]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_every_value_and_option_of_the_built_in_vocabulary_has_its_line(kind: str, name: str) -> None:
    registry: Registry[Any] = getattr(vocabulary, kind)
    value = registry.value(name)
    for option in [*([value] if value else []), *registry.options(name)]:
        assert option.line, option.name
        assert option.line[0].islower() or not option.line[0].isalpha(), option.line
        assert not option.line.endswith("."), option.line
