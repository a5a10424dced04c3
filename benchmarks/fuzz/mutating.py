"""From honest values, hostile ones: structure changed in a place or two, templates and expressions grown.

Pure: a generator in, a value or a text out. Most of what it makes is small; now and then a part is large.
"""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

ATOMS: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, 0.0, -0.5, math.inf, -math.inf, math.nan),
    *("", " ", "a", "solver", "judge", "x" * 5_000, "\x1b[31m", "a\x00b", "\u202e", "../../etc", "/dev/zero"),
    *("{{ task.question }}", "{% for x in task.items %}{{ x }}{% endfor %}", "{{ solver[0] }}", "${x}"),
    *(
        "replay:/dev/zero",
        "local:..",
        "openai:x",
        "tinker:y",
        "1e999",
        "*",
        "&a",
        "!!int",
        "\ufeff",
        "\ud800",
    ),
    *("solver.action == 1", "2026-01-01T00:00:00Z", "9" * 400, "a:b:c", "İ", "%s%n", "<script>", "٣"),
    *([], {}, [[]], [None], {"a": 1}, {"": ""}, ["solver", "solver"], {"countdown": {}}, {"tag": "answer"}),
]
_KEYS: list[Any] = ["x", "", "count", "until", 7, "\x1b", "id", "name", "type", "\ud800", "__class__", "a.b"]
_PARTS = [
    *(
        "task.question",
        "task.items",
        "solver",
        "solver[0].action",
        "solver | length",
        "task",
        "1",
        "'a'",
        "1.5",
    ),
    *(
        "range(9)",
        "{'a': [1]}",
        "[1, 2]",
        "none",
        "task.nested.answer",
        "(1, 2)",
        "9 ** 9",
        "-1",
        "solver[-1]",
    ),
    *(
        "true",
        "''",
        "'٣'",
        "1e308",
        "['b', 'a']",
        "[[1, 'x'], [2, 'y']]",
        "'a b c'",
        "solver[0].response",
        "{}",
    ),
]
_RARE = ["loop", "x", "cycler(1)", "joiner()", "namespace()", "dict(a=1)", "self", "judge", "'%c'", "9" * 90]
_FILTERS = (
    "abs batch(2) capitalize default(1) dictsort first float groupby('a') indent(3) int items join(',') "
    "last length list lower map('upper') max min random reject replace('a','b') reverse round(2) select "
    "slice(2) sort string sum title tojson(2) trim truncate(3) unique upper urlencode wordcount xmlattr "
    "attr('x') pprint map(attribute='action') selectattr('action') sort(attribute='x') sum('x',1) center(9) "
    "batch(3,'x') striptags escape safe wordwrap(2) urlize filesizeformat forceescape format(1) int(base=99)"
).split()
_OPERATORS = "+ - * / // % ** ~ == != < > <= >= and or in is".split()
_TESTS = "defined divisibleby(0) eq(1) even filter in([1]) iterable mapping none number upper".split()
_PIECES = [
    "{{",
    "}}",
    "{%",
    "{#",
    "\x00",
    "\ud800",
    "{% raw %}",
    "\u202e",
    "{% include 'a' %}",
    "{% macro m() %}",
]


def expression(rng: random.Random, depth: int = 0) -> str:
    """An expression of the language of prompts; most hold together."""
    if depth > 4 or rng.random() < 0.3:
        return rng.choice(_PARTS if rng.random() < 0.97 else _RARE)
    inner = expression(rng, depth + 1)
    match rng.randrange(8):
        case 0 | 1:
            return f"({inner}) | {rng.choice(_FILTERS)}"
        case 2:
            return f"({inner}) {rng.choice(_OPERATORS)} {expression(rng, depth + 1)}"
        case 3:
            return f"({inner})[{expression(rng, depth + 1)}]"
        case 4:
            return f"{inner} if {expression(rng, depth + 1)} else {expression(rng, depth + 1)}"
        case 5:
            return f"({inner}).{rng.choice(['action', 'x', '__class__', 'format', 'items', 'join', 'mro'])}"
        case 6:
            return f"({inner}) is {rng.choice(['', 'not '])}{rng.choice(_TESTS)}"
        case _:
            return f"[{inner}, {expression(rng, depth + 1)}]"


def template(rng: random.Random, depth: int = 0) -> str:
    """A template, of a few pieces and some of them inside one another."""

    def inner() -> str:
        return template(rng, depth + 1) if depth < 3 else "x"

    pieces: list[str] = []
    for _ in range(rng.randint(1, 3 if depth else 4)):
        match rng.randrange(8):
            case 0 | 1 | 2:
                pieces.append(f"{{{{ {expression(rng)} }}}}")
            case 3:
                pieces.append(f"{{% for x in {expression(rng)} %}}{inner()}{{% endfor %}}")
            case 4:
                pieces.append(f"{{% if {expression(rng)} %}}{inner()}{{% else %}}{inner()}{{% endif %}}")
            case 5:
                pieces.append(f"{{% set x = {expression(rng)} %}}")
            case 6:
                pieces.append(f"{{% with x = {expression(rng)} %}}{inner()}{{% endwith %}}")
            case _:
                pieces.append("text" if rng.random() < 0.9 else rng.choice(_PIECES))
    return "".join(pieces)


def copied(value: Any) -> Any:
    """A copy that shares nothing."""
    return pickle.loads(pickle.dumps(value))


def mutated(rng: random.Random, value: Any, atoms: list[Any] = ATOMS) -> Any:
    """The value with a few of its parts replaced, removed, copied elsewhere, renamed or wrapped."""
    value = copied(value)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if not (isinstance(value, dict | list) and value):
            return rng.choice(atoms)
        at, key = _spot(rng, value)
        match rng.randrange(9):
            case 0:
                del at[key]
            case 1 if isinstance(at, dict):
                at[rng.choice([*_KEYS, *at])] = at[key]
            case 2:
                at[key] = [at[key]] * rng.choice([1, 2, 40])
            case 3:
                at[key] = {rng.choice(["of", "a", "countdown", "$"]): at[key]}
            case 4:
                other, there = _spot(rng, value)
                at[key] = copied(other[there])
            case 5:
                at[key] = rng.choice([expression, template])(rng)
            case 6 if isinstance(at[key], str):
                at[key] = scribbled(rng, at[key])
            case _:
                at[key] = copied(rng.choice(atoms))
    return value


def _spot(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """Some part of a value: what holds it, and under which key; deep ones as likely as others."""
    at = value
    while True:
        key = rng.choice([*at] if isinstance(at, dict) else range(len(at)))
        inner = at[key]
        if not (isinstance(inner, dict | list) and inner) or rng.random() < 0.2:
            return at, key
        at = inner


def scribbled(rng: random.Random, text: str) -> str:
    """The text with a piece cut, doubled or put in."""
    start = rng.randrange(len(text) + 1)
    end = min(len(text), start + rng.randrange(40))
    middle = rng.choice(
        ["", text[start:end] * 2, rng.choice("[]{}:,&*!|>'\"%@`\t\n\x00\ud800\x1b"), "- " * 50]
    )
    return text[:start] + middle + text[end:]


def scribbled_bytes(rng: random.Random, data: bytes) -> bytes:
    """The bytes with some of them cut, doubled, put in or turned over."""
    whole = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(whole) + 1)
        match rng.randrange(4):
            case 0:
                del whole[start : start + rng.randrange(1, 20)]
            case 1:
                whole[start:start] = whole[start : start + rng.randrange(1, 20)]
            case 2:
                whole[start:start] = rng.randbytes(rng.randrange(1, 9))
            case _ if start < len(whole):
                whole[start] ^= 1 << rng.randrange(8)
            case _:
                pass
    return bytes(whole)
