"""What every model of the language is made of: mappings that may be written in short."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from rolegraph.engine.limits.specs import SPEC_COUNT, SPEC_NAME

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=SPEC_NAME.most)]

Count = Annotated[int, Field(ge=1, le=SPEC_COUNT.most), SPEC_COUNT]

ATOMIC = "atomic"
"""Marks a mapping that is one value: what is laid over it replaces it."""


class SpecModel(BaseModel):
    """A mapping of a spec, strict about types and about keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    SHORT: ClassVar[Any] = None
    """The type of what `expand_shorthand` takes in place of a mapping, for the JSON Schema."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """The mapping that a value written in short stands for; any other value as it is."""
        return value

    @model_validator(mode="before")
    @classmethod
    def _written(cls, value: object) -> object:
        return cls.expand_shorthand(value)


@cache
def field_lines(model: type[BaseModel]) -> Mapping[str, str]:
    """The line under each field of a model; read from the source when it is first asked for."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    lines: dict[str, str] = {}
    for field, text in pairwise(definition.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(line))):
                lines[name] = inspect.cleandoc(line)
            case _:
                pass
    return lines


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Strings = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
