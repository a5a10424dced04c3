"""Teachers of a signal, as a spec writes them: the models that score tokens, and the prompts before the
tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal, Self, Union, cast

from pydantic import BeforeValidator, Field, model_validator

from rolegraph.engine.spec.base import SpecModel, Strings
from rolegraph.engine.spec.sources import ModelRef

OWN = ""
"""Name that stands for the role's own policy."""


class Teacher(SpecModel):
    """A model that scores the tokens of a role's answers, after the role's prompt or one of its own."""

    SHORT = Union[Literal["base"], ModelRef.SHORT]  # noqa: UP007

    policy: str | None = None
    """Policy in training whose weights of the current step teach."""
    base: str | None = None
    """Policy in training whose starting weights teach."""
    model: ModelRef | None = None
    """Model that teaches with its weights unchanged."""
    prompt: str | None = None
    """Template of the user message that the teacher sees in place of the role's; None keeps the role's."""
    system: str | None = None
    """Template of the system message that the teacher sees in place of the role's; None keeps the role's."""
    sees: Strings = []
    """Hidden fields of the task that `prompt` and `system` of the teacher may read."""

    @classmethod
    def expand_shorthand(cls, value: object) -> object:
        """Expand `base`, which means the start of the role's own policy, and the name of a model."""
        if value == "base":
            return {"base": OWN}
        if isinstance(value, Mapping) and "provider" in value:
            return {"model": cast("object", value)}
        return {"model": value} if isinstance(value, str) else cast("object", value)

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if sum(source is not None for source in (self.policy, self.base, self.model)) != 1:
            raise ValueError("one of policy, base and model")
        if self.sees and not (self.prompt or self.system):
            raise ValueError("a prompt beside sees, which names the hidden fields that the prompt reads")
        return self


def _as_keys(value: object) -> object:
    """Return a mapping with its keys as texts, since keys in YAML may be numbers."""
    if not isinstance(value, Mapping):
        return value
    pairs = cast("Mapping[object, object]", value).items()
    return {key if isinstance(key, str) else json.dumps(key, default=str): item for key, item in pairs}


_Written = Union[Teacher, ModelRef]  # noqa: UP007


class TeacherChoice(SpecModel):
    """Several teachers, one of which is picked by a visible field of the task."""

    by: str
    """Expression over the visible fields of the task."""
    of: Annotated[
        Mapping[str, Teacher],
        BeforeValidator(_as_keys, json_schema_input_type=Mapping[str, _Written]),
        Field(min_length=1),
    ]
    """Teacher for each value of the expression."""
    otherwise: Annotated[
        Union[Literal["mask"], Teacher],  # noqa: UP007
        BeforeValidator(lambda written: written, json_schema_input_type=Union[Literal["mask"], _Written]),  # noqa: UP007
        Field(alias="else"),
    ] = "mask"
    """Teacher for any other value; `mask` gives the turn no signal."""

    @classmethod
    def is_meant(cls, value: object) -> bool:
        """Return True if a value is a mapping that chooses among teachers."""
        return isinstance(value, Mapping) and ("by" in value or "of" in value)
