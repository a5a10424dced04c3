"""Cases of hostile files of tasks, and of passages that a tool searches.

The source of a case is `READER:SUFFIX:TEXT`. The text `sparse` means three gigabytes of NUL bytes, and a text
that starts with `b85 ` is a Parquet file in base 85.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.attack.cases import Case

GOOD = '{"id": "1", "text": "good", "question": "q"}\n'
LARGE = (
    "P(e~L6$BNCt>Od~;sQ(+0u=xf001bpFa4lIOH2T4001aJOH2S^0RZ^_InV+E01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU"
    "01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU"
    "01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#mU01#m#S^{Ae02LM$C@dAA9~BT41{DSz0000ewJ-f33t0dF0{{R3pdSGNpdSDg"
    "1Q{$f02l^yV`yb<VHE-Z6$~W;7zA`>cyuKIOdJ3J02ZJh85|iLCIB223>h^51`rt-1axJ1bQKI1pdS|Mt>Oe0)&nMv111P5EENP5"
    "02KlN6#x|w6#@V}7J!i7z)Beg872Ur9{>OV7V53y1QwtlCI}YR0{|!>aA9(Bb!BudV{mXSVRCYBcOZ6Ua&u{KZXhx?E-)@J85|q{"
    "005%^002-yQZW"
)
"""Parquet file of 2,000 rows, all with the same text of 5,000,000 characters."""
SMALL = (
    "P(e~L6$BNCwHOsTOceqZ01^NID77#BphOJ=0BisNC_oJZ0AT?D`2RW30wZb&VHE%s78NKg6`&s#5ETX$1{?qY04TLD{U8fj00093"
    "005vL0Rf;N02KroEHwZa26JO*Wo=;<0ss{ZB?1@(bY*ySB>+qu0000MpdT3=85|}692E>1H2?+>85jg~Wq5QI3>Kgt7Us1W7ODXz"
    "VkQVFEENP502KlN6#x|w6#@V}7J!hv{Q?;V872Ur9{>OV7Us1W7N8#{2o|aV04N}EVRCVGWppiLaBwYQa&m8XAa-SPb7^mGATl;C"
    "FfK6}92@`u0H6Q>08l|vF#"
)
"""Parquet file of 2,000 rows, all with the same text of 200,000 characters."""
BOTH: Sequence[tuple[str, str, str, str]] = [
    ("nothing", "jsonl", "", ""),
    ("three gigabytes in a line", "jsonl", "sparse", "1: the line has more than 10,000,000 characters (limit: row_text)"),
    ("three gigabytes in a line of CSV", "csv", "sparse", "limit: row_text"),
    ("a line that is too long", "jsonl", GOOD + '{"text": "' + "a" * 10_000_000 + '"}\n', "jsonl:2: the line has more than"),
    ("a field that is too long", "csv", "text,question\n" + '"' + 2 * ("a" * 6_000_000 + "\n") + '",q\n', "limit: row_text"),
    ("a line without end of a quote", "csv", 'text,question\n"' + "a\n" * 200_000, "not CSV: a quote is never closed"),
    ("not UTF-8", "jsonl", GOOD + '{"text": "\udcff"}\n', "jsonl is not UTF-8 text"),
    ("not UTF-8 in CSV", "csv", "text,question\n\udcff,q\n", "csv is not UTF-8 text"),
    ("half a character", "jsonl", GOOD + '{"text": "\\ud800"}\n', "jsonl:2: not JSON"),
    ("NUL bytes", "jsonl", GOOD + "\0\0\0\n", "jsonl:2: not JSON"),
    ("deep lists", "jsonl", GOOD + '{"text": "a", "x": ' + "[" * 100_000 + "\n", "jsonl:2: not JSON: recursion limit"),
    ("lists past the limit", "jsonl", GOOD + '{"text": "a", "x": ' + "[" * 70 + "]" * 70 + "}\n", "limit: json_depth"),
    ("a number without end", "jsonl", GOOD + '{"text": "a", "x": ' + "9" * 5_000 + "}\n", "jsonl:2: not JSON: number out of range"),
    ("a number beyond floats", "jsonl", GOOD + '{"text": "a", "x": 1e999}\n', "jsonl:2: not JSON: inf is not a number"),
    ("no number", "jsonl", GOOD + '{"text": NaN}\n', "jsonl:2: not JSON"),
    ("a list", "jsonl", GOOD + "[1]\n", "jsonl:2: not an object"),
    ("a number", "jsonl", GOOD + "7\n", "jsonl:2: not an object"),
    ("a million mappings", "jsonl", GOOD + '{"text": "a", "x": [' + "{}," * 1_000_001 + "{}]}\n", "jsonl:2: not JSON: it has more than 1,000,000 parts (limit: record_parts)"),
    ("half a line", "jsonl", GOOD + '{"text": "a', "jsonl:2: not JSON"),
    ("one id twice", "jsonl", GOOD + GOOD, "jsonl:2: the id '1' is also in line 1"),
    ("columns without names", "csv", "text,,\na,b,c\n", "csv:1: the header leaves a column without a name"),
    ("more fields than columns", "csv", "text,question\na,q\na,b,c,d\n", "csv:3: not as many fields"),
    ("gigabytes of Parquet", "parquet", f"b85 {LARGE}", "limit: parquet_memory"),
    ("gigabytes of small rows", "parquet", f"b85 {SMALL}", "limit: parquet_rows"),
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
