"""`SpecModel`, the base of every mapping in the language, and the types that its fields share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from rolegraph.engine.limits.specs import SPEC_COUNT, SPEC_NAME

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=SPEC_NAME.most)]

Count = Annotated[int, Field(ge=1, le=SPEC_COUNT.most)]

ATOMIC = "atomic"
"""Annotation of a field whose value `extends` and overrides replace as a whole, rather than key by key."""


class SpecModel(BaseModel):
    """A mapping of a spec; unknown keys and values of another type are faults.

    The docstring under a field is its `description`: in the JSON Schema, in docs/keys.md, and in the
    message about a required key that is missing.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, defer_build=True, use_attribute_docstrings=True
    )

    SHORT: ClassVar[Any] = None
    """Type of the values that `expand_shorthand` turns into a mapping; None without a short form."""
    SHORT_KEYS: ClassVar[Mapping[type, str]] = {}
    """Key that a bare value stands for, as the short form, for each type of such values."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Return the mapping that a short form stands for, and any other value unchanged."""
        key = cls.SHORT_KEYS.get(type(value))
        return {key: value} if key else value

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: object) -> object:
        return cls.expand_shorthand(value)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Strings = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
"""A list of strings; a single string stands for a list of one."""
Texts = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
]
"""A list of strings, none of them empty; a single string stands for a list of one."""


S = TypeVar("S", bound=SpecModel)


def laid_over(base: S, over: S | None) -> S:
    """Return a copy of `base` in which keys that are set in `over` have the values of `over`."""
    written_fields = {} if over is None else {key: getattr(over, key) for key in over.model_fields_set}
    return base.model_copy(update=written_fields)
