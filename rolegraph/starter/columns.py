"""Columns of a table of tasks: the label, its kind, and the inputs.

A column is chosen only if no other fits, and with a reason; otherwise an error names the columns and the
option that chooses one.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from rolegraph.engine.errors import UsageError, did_you_mean
from rolegraph.engine.vocabulary import EXAMPLES, Row, short_repr

Kind = Literal["class", "boolean", "rating", "number", "text", "long text", "fields"]
"""Kind of a label, which decides the parser, the reward and the wording of the prompts."""
LABEL_NAMES = (
    "label|labels|answer|target|class|category|output|response|completion|solution|expected|gold|y|"
    "sentiment|topic|intent|rating|stars|grade".split("|")
)
"""Usual names of the column with the label, in lower case."""
MOST_CLASSES = 20
"""Largest number of different labels that a prompt can list."""
ROWS_OF_A_CLASS = 4
"""Smallest average number of rows for each class; labels with fewer rows are texts."""
CLASS_TEXT, SHORT_TEXT = 40, 80
"""Largest numbers of characters of a class and of a short text."""
MOST_STARS = 10
"""Largest rating; labels with larger whole numbers are numbers."""
MOST_DIGITS = 20
"""Largest number of characters of a number; a longer label, such as a list of phone numbers, is a text."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_BOOLEANS = ({"true", "false"}, {"yes", "no"})
_TAKEN = {"id", EXAMPLES, *dir(dict)}
"""Names that a field of a task cannot have, or that templates read as something else."""


@dataclass(frozen=True, slots=True)
class Label:
    """Column that holds the right answer."""

    column: str
    why: str
    """Reason for the choice of the column, as the end of a sentence."""
    kind: Kind
    values: Sequence[Any]
    """Label of each row in the form for comparison; None for a row without a label.

    A class and a text are texts, a number is a number, an object is an object.
    """
    classes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of rows of each class, the commonest first; empty for a label of any other kind."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Label and inputs of a table, with their names as fields of a task."""

    label: Label
    inputs: Sequence[str]
    """Columns that the prompts show."""
    left_out: Mapping[str, str]
    """Columns that are neither label nor input, each with the reason."""
    fields: Mapping[str, str]
    """Field of a task by column: the column's name, changed if templates could not read it."""


def read_columns(rows: Sequence[Row], named: str | None, shown: str) -> Columns:
    """Choose the label and the inputs among the columns of a table.

    Args:
        rows: The rows, all with the same columns; `id` is ignored.
        named: Column of the label; None to choose it by names and values.
        shown: Name of the table in messages.

    Raises:
        UsageError: No column or several may be the label, the label has a single value, or no column is left
            as input.
    """
    columns = [column for column in rows[0] if column != "id"]
    column, reason = _label_column(rows, columns, named, shown)
    label = _label(column, reason, [row[column] for row in rows], shown)
    left_out = dict(_left_out(rows, columns, label))
    inputs = [name for name in columns if name != column and name not in left_out]
    if not inputs:
        columns_note = _listed(left_out) or "it has no other column"
        raise UsageError(f"{shown}: no column is left to ask about {column!r}: {columns_note}")
    return Columns(label, inputs, left_out, _fields([*inputs, column]))


def _label_column(
    rows: Sequence[Row], columns: Sequence[str], named: str | None, shown: str
) -> tuple[str, str]:
    """Return (column of the label, reason for the choice).

    Raises:
        UsageError: The named column does not exist, or no column or several may be the label.
    """
    if named is not None:
        if named not in columns:
            hint = did_you_mean(named, columns)
            raise UsageError(f"{shown} has no column {named!r}; {hint or _found(rows, columns)}")
        return named, "as --label says"
    usual_columns = [name for name in columns if name.strip().lower() in LABEL_NAMES]
    if len(usual_columns) == 1:
        return usual_columns[0], "by its name"
    if usual_columns:
        raise _undecided(f"{len(usual_columns)} columns have a label's name", rows, usual_columns, shown)
    if len(columns) == 2:
        return columns[1], "as the last of two columns"
    coded = [name for name in columns if _are_classes(_texts(row[name] for row in rows))]
    if len(coded) == 1:
        return coded[0], "as the only column with few values"
    problem = "no column has a label's name"
    raise _undecided(f"{problem}, and {len(coded) or 'none'} of them has few values", rows, columns, shown)


def _undecided(what: str, rows: Sequence[Row], columns: Sequence[str], shown: str) -> UsageError:
    return UsageError(f"{shown}: {what}; say which holds the answer, --label COLUMN; {_found(rows, columns)}")


def _found(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return a text that lists columns, each with the number of its values and an example value."""
    descriptions: list[str] = []
    for column in columns[:12]:
        values = [row[column] for row in rows if not _is_missing(row[column])]
        example = short_repr(values[0]) if values else "nothing"
        descriptions.append(f"{column!r} ({len({*_texts(values)})} values, such as {example})")
    return f"found {', '.join(descriptions)}{', …' if len(columns) > 12 else ''}"


def _label(column: str, why: str, raw: Sequence[Any], shown: str) -> Label:
    """Return the label of a column, with its kind.

    Raises:
        UsageError: The column has fewer than two values.
    """
    present_values = [value for value in raw if not _is_missing(value)]
    if len({*_texts(present_values)}) < 2:
        fault = f"has one value, {short_repr(present_values[0])}" if present_values else "is empty"
        raise UsageError(
            f"{shown}: the label {column!r} {fault}, so there is nothing to learn; --label COLUMN"
        )
    objects, texts = _objects(present_values), [*_texts(present_values)]
    lower_texts = [text.lower() for text in texts]
    kind: Kind
    if objects is not None:
        kind, values = "fields", objects
    elif {*lower_texts} in _BOOLEANS:
        kind, values = "boolean", lower_texts
    elif all(len(text) <= MOST_DIGITS and _NUMBER.fullmatch(text) for text in texts):
        values = [_number(text) for text in texts]
        kind = "class" if len({*values}) == 2 else "rating" if _are_ratings(values) else "number"
        values = texts if kind == "class" else values
    else:
        longest = max(map(len, texts))
        short: Kind = "text" if longest <= SHORT_TEXT and not any("\n" in it for it in texts) else "long text"
        kind, values = ("class" if _are_classes(texts) else short), texts
    row_values = iter(values)
    values_by_row = [None if _is_missing(value) else next(row_values) for value in raw]
    counts = Counter(str(it) for it in values) if kind in ("class", "boolean", "rating") else Counter[str]()
    return Label(column, why, kind, values_by_row, dict(counts.most_common()))


def _left_out(rows: Sequence[Row], columns: Sequence[str], label: Label) -> Iterator[tuple[str, str]]:
    """Yield (column, reason) for each column that no prompt shows."""
    labels = [None if value is None else _text(value) for value in label.values]
    for column in columns:
        if column == label.column:
            continue
        values = [_text(row[column]) for row in rows]
        distinct_count = len({*values})
        value_pairs = {pair for pair in zip(values, labels, strict=True) if pair[1] is not None}
        if distinct_count == 1:
            yield column, "it has one value"
        elif label.classes and distinct_count == len(value_pairs) == len(label.classes) < len(rows) // 2:
            yield column, f"it says the same as {label.column!r}"
        elif distinct_count == len(rows) and values in (_numbered(rows, 0), _numbered(rows, 1)):
            yield column, "it numbers the rows"


def _numbered(rows: Sequence[Row], start: int) -> list[str]:
    return [str(number) for number in range(start, start + len(rows))]


def _fields(columns: Sequence[str]) -> dict[str, str]:
    """Return a unique field name of letters, digits and _ for each column."""
    fields: dict[str, str] = {}
    for number, column in enumerate(columns, 1):
        ascii_name = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
        name = re.sub(r"\W+", "_", ascii_name).strip("_")[:40] or f"column_{number}"
        name = f"column_{name}" if name[0].isdigit() else name
        while name in _TAKEN or name in fields.values():
            name += "_"
        fields[column] = name
    return fields


def _is_missing(value: object) -> bool:
    not_finite = isinstance(value, float) and not math.isfinite(value)
    return value is None or not_finite or (isinstance(value, str) and not value.strip())


def _texts(values: Any) -> Iterator[str]:
    return (_text(value) for value in values)


def _text(value: object) -> str:
    """Return a value as text, as it would stand in a table's cell."""
    if isinstance(value, str):
        return value.strip()
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _are_classes(texts: Iterator[str] | Sequence[str]) -> bool:
    """Return True if the texts are classes: few different texts, each short, in one line and with several
    rows."""
    counts = Counter(text for text in texts if text)
    is_short = all(len(text) <= CLASS_TEXT and text.isprintable() for text in counts)
    case_differs = len({text.lower() for text in counts}) == len(counts)
    are_few = 2 <= len(counts) <= MOST_CLASSES and counts.total() >= ROWS_OF_A_CLASS * len(counts)
    return are_few and is_short and case_differs and all(any(it.isalnum() for it in text) for text in counts)


def _are_ratings(values: Sequence[int | float]) -> bool:
    are_whole = all(isinstance(value, int) and 0 <= value <= MOST_STARS for value in values)
    return are_whole and len(values) >= ROWS_OF_A_CLASS * len({*values})


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _objects(values: Sequence[object]) -> list[dict[str, Any]] | None:
    """Return the values as mappings if all are JSON objects or their text; else None."""
    objects: list[dict[str, Any]] = []
    for value in values:
        try:
            parsed: object = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            return None
        if not isinstance(parsed, dict) or not parsed:
            return None
        objects.append(cast("dict[str, Any]", parsed))
    return objects


def _listed(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{column!r} is left out because {reason}" for column, reason in reasons.items())
