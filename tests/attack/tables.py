"""Hostile files: of passages that a tool searches, and of tasks.

A case's source is what reads it, the file's suffix and its text; `sparse` stands for three gigabytes of NUL.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.attack.cases import Case

GOOD = '{"id": "1", "text": "good", "question": "q"}\n'
BOTH: Sequence[tuple[str, str, str, str]] = [
    ("nothing", "jsonl", "", ""),
    ("three gigabytes in a line", "jsonl", "sparse", "1: the line has more than 10,000,000 characters (limit: row_text)"),
    ("three gigabytes in a line of CSV", "csv", "sparse", "limit: row_text"),
    ("a line that is too long", "jsonl", GOOD + '{"text": "' + "a" * 10_000_000 + '"}\n', "jsonl:2: the line has more than"),
    ("a field that is too long", "csv", "text,question\n" + "a" * 200_000 + ",q\n", "not CSV: field larger than field limit"),
    ("a line without end of a quote", "csv", 'text,question\n"' + "a\n" * 200_000, "not CSV: field larger than field limit"),
    ("not UTF-8", "jsonl", GOOD + '{"text": "\udcff"}\n', "jsonl is not UTF-8 text"),
    ("not UTF-8 in CSV", "csv", "text,question\n\udcff,q\n", "csv is not UTF-8 text"),
    ("half a character", "jsonl", GOOD + '{"text": "\\ud800"}\n', "jsonl:2: not JSON"),
    ("NUL bytes", "jsonl", GOOD + "\0\0\0\n", "jsonl:2: not JSON"),
    ("deep lists", "jsonl", GOOD + '{"text": "a", "x": ' + "[" * 100_000 + "\n", "jsonl:2: not JSON: recursion limit"),
    ("lists past the limit", "jsonl", GOOD + '{"text": "a", "x": ' + "[" * 70 + "]" * 70 + "}\n", "limit: json_depth"),
    ("a number without end", "jsonl", GOOD + '{"text": "a", "x": ' + "9" * 5_000 + "}\n", "jsonl:2: not JSON: number out of range"),
    ("a number beyond floats", "jsonl", GOOD + '{"text": "a", "x": 1e999}\n', "jsonl:2: not JSON: inf is no number"),
    ("no number", "jsonl", GOOD + '{"text": NaN}\n', "jsonl:2: not JSON"),
    ("a list", "jsonl", GOOD + "[1]\n", "jsonl:2: not an object"),
    ("a number", "jsonl", GOOD + "7\n", "jsonl:2: not an object"),
    ("a million mappings", "jsonl", GOOD + '{"text": "a", "x": [' + "{}," * 1_000_001 + "{}]}\n", "jsonl:2: not JSON: it has more than 1,000,000 parts (limit: record_parts)"),
    ("half a line", "jsonl", GOOD + '{"text": "a', "jsonl:2: not JSON"),
    ("one id twice", "jsonl", GOOD + GOOD, "jsonl:2: the id '1' is that of line 1 too"),
    ("columns without names", "csv", "text,,\na,b,c\n", "csv:1: the header names a column twice"),
    ("more fields than columns", "csv", "text,question\na,q\na,b,c,d\n", "csv:3: not as many fields"),
    ("what is no Parquet", "parquet", "PAR1" + "\0" * 100 + "PAR1", "cannot read"),
]  # fmt: skip
CORPUS: Sequence[tuple[str, str, str, str]] = [
    ("no text", "jsonl", GOOD + '{"id": "2"}\n', "jsonl:2: a passage needs a text"),
    ("a text that is a list", "jsonl", GOOD + '{"text": ["a"]}\n', "jsonl:2: a passage needs a text"),
    ("a title that is a mapping", "jsonl", GOOD + '{"text": "a", "title": {"b": 1}}\n', "jsonl:2: the title is no text"),
    ("no words", "jsonl", '{"text": "\\u0000 \\u001b[ ?"}\n', "no passage has a word"),
]  # fmt: skip
TASKS: Sequence[tuple[str, str, str, str]] = [
    ("a column missing", "jsonl", GOOD + '{"id": "2"}\n', "jsonl:2: no 'text', which the first row has"),
]

CASES = [
    *(
        Case(f"{name} in {reader}", f"{reader}:{suffix}:{text}", "fault", says)
        for reader, cases in (("passages", (*BOTH, *CORPUS)), ("tasks", (*BOTH, *TASKS)))
        for name, suffix, text, says in cases
    ),
]
