"""Types of the fields of a record file, and the pydantic schema that reads a JSON object into a NamedTuple.

Each record class (`Step`, `Trajectory`, `Episode`, `Failure`) declares its fields once; pydantic checks a
file's JSON against those declarations, so that an untrusted file fits the annotations or is refused. Unknown
keys are ignored in an object, and kept in a mapping such as `Step.metadata`, whose known keys are in
`engine/records/metadata.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Annotated, Any, Literal, cast, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    Strict,
)
from pydantic_core import CoreSchema, core_schema

from rolegraph.engine.records.plain import LARGEST

Figure = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
"""A finite number small enough for sums, means and charts."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A whole number that a float represents exactly."""


@dataclass(frozen=True, slots=True)
class NumberList:
    """Kinds and range of the numbers of a list, for the readers of files and for the check of an answer.

    As an annotation, it reads a list with a number out of range, which earlier versions could write, as an
    empty list: the numbers count as missing.
    """

    kinds: Collection[type]
    """Accepted Python types of a number; a subclass, such as bool, is not accepted."""
    low: float
    """Smallest number."""
    high: float
    """Largest number."""
    code: Literal["i", "d"]
    """Type of the numbers in an array: 32-bit integers or 64-bit floats."""

    def holds(self, values: Sequence[Any]) -> bool:
        """Return True if all values are finite numbers of these kinds in this range."""
        # By built-in functions, because an episode may have millions of numbers. Comparisons with NaN are
        # False: `min` finds one only in the first place, `sum` in any.
        kinds = {*map(type, values)}
        return not kinds or (
            kinds <= {*self.kinds}
            and self.low <= min(values)
            and max(values) <= self.high
            and not isnan(sum(values))
        )

    def packed(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return numbers that `holds` accepts as an array, which takes a tenth of a list's memory."""
        # An integer among floats, such as a log-probability of 0, stays an integer in files.
        kind = int if self.code == "i" else float
        return array(self.code, values) if {*map(type, values)} == {kind} else tuple(values)

    def _read(self, value: object) -> Sequence[Any]:
        values = cast("list[Any]", value)
        if not isinstance(value, list) or not {*map(type, values)} <= {*self.kinds}:
            raise ValueError(f"expected a list of {' or '.join(kind.__name__ for kind in self.kinds)} values")
        return self.packed(values) if self.holds(values) else ()

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)


TOKEN_IDS = NumberList((int,), 0, 2**31 - 1, "i")
"""Token ids; tokenizers and tensors have no larger ones."""
LOGPROBS = NumberList((int, float), -LARGEST, 1e-3, "d")
"""Log-probabilities. With logits of about 1,000, rounding to 32 bits gives a certain token up to 6e-5. Such a
value is kept: it changes a ratio of probabilities by less than a thousandth."""


def record_schema(record: Any, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the pydantic schema that parses a JSON object into `record`, a NamedTuple class.

    The class's `_fields_of`, if there is one, maps the object of a file to the record's fields; `metadata`
    keeps its name in files, `info`. A field with a default may be missing. Assign this function in the class
    body: `__get_pydantic_core_schema__ = classmethod(record_schema)`.
    """
    hints = get_type_hints(record, include_extras=True)
    fields = {
        name: core_schema.typed_dict_field(
            handler.generate_schema(hints[name]),
            required=name not in record._field_defaults,
            validation_alias="info" if name == "metadata" else None,
        )
        for name in record._fields
    }

    fields_of: Callable[[Any], Mapping[str, Any]] = getattr(record, "_fields_of", dict)

    def read(data: object) -> Mapping[str, Any]:
        if not isinstance(data, dict):
            raise ValueError("expected an object")
        return fields_of(cast("Mapping[str, Any]", data))

    def make(values: Mapping[str, Any]) -> object:
        return record(**values)

    record_fields = core_schema.typed_dict_schema(
        fields, extra_behavior="ignore", config=core_schema.CoreConfig(strict=True)
    )
    return core_schema.no_info_after_validator_function(
        make, core_schema.no_info_before_validator_function(read, record_fields)
    )


def list_of(item: object) -> GetPydanticSchema:
    """Return a pydantic schema that parses a sequence to a list of `item`, and stops at the first invalid
    member."""
    kind: Any = list
    return GetPydanticSchema(lambda _, handler: handler(Annotated[kind[item], FailFast(), Strict(False)]))


def shaped(shape: type[BaseModel]) -> GetPydanticSchema:
    """Return a pydantic schema that checks a mapping against a model, and keeps the mapping with all its
    keys."""

    def keep(value: object, check: Callable[[object], object]) -> object:
        check(value)
        return value

    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_wrap_validator_function(keep, handler(shape))
    )


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)


class _Function(_Shape):
    name: str
    arguments: str


class _ToolCall(_Shape):
    id: str | None = None
    function: _Function


class MessageShape(_Shape):
    """Keys of a chat message that Rolegraph reads."""

    role: str
    content: str | None = None
    tool_calls: Annotated[Sequence[_ToolCall], list_of(_ToolCall)] | None = None
