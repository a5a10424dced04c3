"""Strict reader of .csv and .tsv text: ambiguous text is an error with its line, never guessed.

Quotes follow RFC 4180. A quote after the start of an unquoted cell, as in `5" pipe`, is a character.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain

from rolegraph.engine.limits.records import ROW_TEXT
from rolegraph.engine.vocabulary import DataError, Row, short_repr

_QUOTED = r'"[^"\0]*+(?:""[^"\0]*+)*+"'
_REASONS = {
    "unexpected end of data": "a quote is never closed",
    "expected after": 'text follows a closing quote; within a quoted cell write a quote as two: "6"" pipe"',
}
"""Messages that replace errors of the csv module, by a part of the error's text."""


def read_delimited(lines: Iterable[str], name: str) -> Iterator[tuple[int, Row]]:
    """Yield each row, as texts by column, with the number of its first line; empty lines are skipped.

    Args:
        lines: Lines of the table with their line ends.
        name: Name of the file, for messages; for `.tsv`, the delimiter is a tab if the header has one.

    Raises:
        DataError: A quote is not closed or is beside other text; a row has more or fewer cells than the
            header; two columns share a name or one has none; there is a NUL; a row exceeds `row_text`.
    """
    records = _records(lines, name)
    empty: list[str] = []
    first_line, header = next(records, (1, empty))
    _check_header(header, f"{name}:{first_line}")
    for line, cells in records:
        if len(cells) != len(header):
            width = f"not as many fields as the header's {len(header)}: {len(cells)}"
            raise DataError(f"{name}:{line}: {width}; quote a cell that holds the delimiter")
        yield line, dict(zip(header, cells, strict=True))


def _check_header(header: Sequence[str], where: str) -> None:
    columns = Counter(column.strip() for column in header)
    if columns[""]:
        raise DataError(f"{where}: the header leaves a column without a name: {short_repr([*header])}")
    if repeated_columns := [column for column in columns if columns[column] > 1]:
        raise DataError(f"{where}: the header names a column twice: {short_repr(repeated_columns[0])}")


def _records(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, cells) of each record of a delimited file, header included."""
    source = iter(lines)
    first_line, header = next(((n, line) for n, line in enumerate(source, 1) if line.strip()), (1, ""))
    delimiter = _delimiter(header, name)
    record: list[str] = []
    """Lines of the current record."""

    size = 0

    def kept() -> Iterator[str]:
        nonlocal size
        for line in chain([header], source):
            record.append(line)
            size += len(line)
            if size > ROW_TEXT.most:
                raise DataError(ROW_TEXT.exceeded(f"{name}:{first_line}: the row has"))
            yield line

    csv.field_size_limit(ROW_TEXT.most)  # Python's own, for cells, is 131,072 and holds for the whole process
    reader = csv.reader(kept(), delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader, None)
            _check_record("".join(record), delimiter)
        except csv.Error as error:
            line = first_line + _lines_before_fault("".join(record), delimiter)
            raise DataError(f"{name}:{line}: not CSV: {_reason(error)}") from error
        if cells:
            yield first_line, cells
        if cells is None:
            return
        first_line += len(record)
        record.clear()
        size = 0


def _delimiter(header: str, name: str) -> str:
    """Return the delimiter of a header line: the first of comma, semicolon and tab that occurs outside of
    quotes.

    For a .tsv file, the tab is tried first.
    """
    order = "\t,;" if name.endswith(".tsv") else ",;\t"
    unquoted = re.sub(_QUOTED, "", header)
    return next((delimiter for delimiter in order if delimiter in unquoted), order[0])


def _check_record(text: str, delimiter: str) -> None:
    """Raise csv.Error for a record that the csv module reads differently from how it looks, such as `a,
    "b"`."""
    if "\0" in text:
        raise csv.Error("there is a NUL; is it a text file in UTF-8?")
    if '"' in text and not re.fullmatch(rf"{_cells(delimiter)}\s*", text):
        raise csv.Error("a space stands before an opening quote; take it out, or put it inside the quotes")


@cache
def _cells(delimiter: str) -> str:
    """Return a regular expression that matches a record's cells up to the first faulty one."""
    cell = rf'(?:{_QUOTED}|(?! *")[^{delimiter}\r\n\0]*+)'
    return rf"(?:{cell}(?:{delimiter}|$|(?=[\r\n])))*+"


def _lines_before_fault(text: str, delimiter: str) -> int:
    """Return the number of lines of a record that end before its first faulty cell."""
    good_match = re.match(_cells(delimiter), text)
    end = good_match.end() if good_match else 0
    return len(re.findall(r"\r\n|\r|\n", text[:end]))


def _reason(error: csv.Error) -> str:
    return next((reason for part, reason in _REASONS.items() if part in str(error)), str(error))
