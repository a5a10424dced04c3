"""Write `docs/keys.md` from the models of the language, and `docs/reference.md` from the vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rolegraph.cli.list_ import WRITTEN_AT
from rolegraph.cli.main import run
from rolegraph.engine.spec import Credit, Spec
from rolegraph.engine.spec.base import SpecModel
from rolegraph.engine.spec.yaml_text import dump_yaml
from rolegraph.engine.vocabulary import ItemCall, Option, Registry, registry_of

PAGE = Path(__file__).with_suffix(".md")
KEYS = PAGE.with_name("keys.md")
EXAMPLES = yaml.safe_load(KEYS.with_suffix(".yaml").read_text("utf-8"))
"""`examples`, by model and key, and `wants`: what people want, the key, the page that explains it."""
HEAD = """\
# Every item: parsers, rewards, tools and others

Every item that a spec may name, as `rolegraph list KIND NAME` shows it: with what it may be given, each
option at its default. Where only a name stands, the item has no option. [Every key](keys.md) says where a
spec names them. This page is written by `python docs/reference.py`.
"""
KEYS_HEAD = """\
# Every key on one page

What you want, the key for it, and every key with an example, its default and its meaning.
[The language](language.md) says what the keys mean together, and [every item](reference.md) which parsers,
rewards, tools and others they may name. This page is written by `python docs/reference.py`.
"""
ALL_KEYS = """
## All keys

A mapping that may be left out has the defaults of its own table. Where the default is `null`, the last
column says what holds then.
"""
COLUMNS = ("| example | what may stand there | default | meaning |", "| --- | --- | --- | --- |")


def page() -> str:
    """Return the page of all items, in Markdown."""
    return "\n".join([HEAD, *map(_items, WRITTEN_AT)])


def keys() -> str:
    """Return the page of all keys, in Markdown."""
    wants = [f"| {want} | {_code(key)} | [more]({link}) |" for want, key, link in EXAMPLES["wants"]]
    head = (KEYS_HEAD, "## I want …\n", "| I want | key | |\n| --- | --- | --- |")
    return "\n".join([*head, *wants, ALL_KEYS, *map(_table, LINKED)])


def _example(model: str, key: str) -> str:
    """Write the example of a key in one line of YAML."""
    example = {key: EXAMPLES["examples"][model][key]}
    return dump_yaml(example, one_line=True)[1:-1]


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _models(model: type[SpecModel], seen: list[type[SpecModel]]) -> list[type[SpecModel]]:
    """A model and those in it, each once, in the order in which a reader comes to them."""
    seen.append(model)
    for field in model.model_fields.values():
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, SpecModel) and part not in seen:
                _models(part, seen)
    return seen


def _parts(annotation: Any) -> Iterator[Any]:
    """A type and those that it is made of, with what is noted at each."""
    yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


LINKED = _models(Spec, [])
"""The models that have a table of their own."""


def _table(model: type[SpecModel]) -> str:
    rows = [
        f"| {_code(_example(model.__name__, name))} | {_cell(_words(field))} | {_default(field)} "
        f"| {_cell(field.description or '')} |"
        for name, field in model.model_fields.items()
    ]
    short = f" In short: {Option('', model.SHORT).type}." if model.SHORT else ""
    head = f"### {model.__name__}\n\n{_cell(model.__doc__ or '')}{short}\n"
    return "\n".join([head, *COLUMNS, *rows, ""])


def _words(field: FieldInfo) -> str:
    """What may stand at a key; a model or a kind of item by a link to it."""
    for note in field.metadata:
        if isinstance(note, BeforeValidator) and note.json_schema_input_type is not PydanticUndefined:
            return _said(note.json_schema_input_type)
    return _said(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _said(hint: Any) -> str:
    inside = [part for part in get_args(hint) if part is not type(None)]
    for part in (hint, *inside):
        if isinstance(part, Registry):
            return _link(part.group.removeprefix("rolegraph."), PAGE.name)
    if isinstance(hint, type) and issubclass(hint, SpecModel):
        return _link(hint.__name__)
    if not any(isinstance(part, Registry) or part in LINKED for part in _parts(hint)):
        return Option("", hint).type.removesuffix(", or null")
    if get_origin(hint) is Annotated:
        return _said(inside[0])
    if get_origin(hint) is list:
        return f"a list of {_said(inside[0])}"
    if get_origin(hint) is Mapping:
        return f"names, each with {_said(inside[1])}"
    return ", or ".join(map(_said, inside))


def _default(field: FieldInfo) -> str:
    default = field.default
    if field.is_required():
        return "**required**"
    if isinstance(default, ItemCall):
        default = default.dump()
    if isinstance(default, list) and any(isinstance(one, BaseModel) for one in cast("list[object]", default)):
        return ""
    if isinstance(default, BaseModel | Credit) or default in ({}, []):
        return ""
    return f"`{json.dumps(default)}`"


def _items(kind: str) -> str:
    names = registry_of(f"rolegraph.{kind}").names()
    shown = [f"### {name}\n\n```\n{_listed(kind, name)}\n```\n" for name in names]
    return "\n".join([f"## {kind}\n", *shown])


def _listed(kind: str, name: str) -> str:
    """What `rolegraph list` says of an item."""
    said = StringIO()
    with redirect_stdout(said):
        run(("list", kind, name))
    return said.getvalue().rstrip()


def _link(name: str, page: str = "") -> str:
    return f"[{name}]({page}#{name.lower()})"


def _cell(text: str) -> str:
    """A text as a cell of a table, with YAML's word for nothing."""
    return re.sub(r"\bNone\b", "`null`", " ".join(text.split())).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    KEYS.write_text(keys(), encoding="utf-8")
