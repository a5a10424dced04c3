"""How long one input holds the event loop, and what memory it takes: the worst that is known, beside the
largest honest ones that the limits let through.

    python benchmarks/holding.py                 # or of one kind: render, parse

Everything that is rendered or read between two `await`s is here: prompts and conditions, answers under each
parser, the arguments of tools, the arguments' schemas. An honest input is one that somebody would write, as
large as `rolegraph limits` lets it be. Each is measured in a process of its own: the least of nine times, of
this process's work, and the memory that it came to take. Exit code 1 where a hostile input takes longer than
the longest honest one, or more than `MEMORY`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).parents[1]))

from metering import NINES, OPERATIONS

from rolegraph.engine.limits.answers import ANSWER_TEXT
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.prompts.checks import TemplateScope
from rolegraph.engine.prompts.templates import compile_template
from rolegraph.engine.vocabulary import ItemCall, ParseFailure, View, Views, parsers
from tests.attack import conditions, prompts

MEMORY = 200 << 20
"""Bytes that an input may take."""
SHORT = 0.005
"""Seconds that are not worth a second measurement."""
Work = Callable[[], object]


class Cost(NamedTuple):
    """What an input took."""

    kind: str
    name: str
    honest: bool
    seconds: float
    bytes: int


# what is rendered

AROUND = TemplateScope({"solver": 4096, "debater": 90})
ANSWER = "Let me see. 3 * (4 + 5) = 27, so the answer is <answer>3 * (4 + 5)</answer>. " * 3
PARAGRAPH = "The premise holds for even n only; take n = 3, and the second step fails. " * 15
ROWS = [
    {"id": f"sku-{n}", "name": f"Bolt M{n % 40}", "price": n * 0.37, "stock": n % 7, "tags": ["zinc", "hex"]}
    for n in range(10_000)
]
VARIABLES: Mapping[str, Any] = {
    "task": {"id": "1", "question": "q", "items": [1], "nested": {"answer": 3}, "rows": ROWS},
    "solver": Views([View(n, ANSWER, ANSWER) for n in range(1, 4097)]),
    "debater": Views([View(n, PARAGRAPH * 10, PARAGRAPH * 10, "", 1) for n in range(1, 91)]),
}
HONEST_PROMPTS = {
    "a judge of 4,096 answers": (
        "{% for one in solver %}\n{{ one.index }}: {{ one.action }}\n{% endfor %}Which is right?"
    ),
    "a debate of 30 in 3 rounds, trimmed": (
        "{% for one in debater %}\n## {{ one.index }}{% if loop.last %} (you){% endif %}\n"
        "{{ one.action | trim | truncate(11000) }}\n{% endfor %}Who is right?"
    ),
    "a table of 7,000 rows": (
        "{% for row in task.rows[:7000] %}\n| {{ loop.index }} | {{ row.id }} | {{ row.name }} | "
        "{{ row.price | round(2) }} | {% if row.stock > 0 %}{{ row.stock }}{% else %}none{% endif %} |\n"
        "{% endfor %}What is missing?"
    ),
    "9,500 rows as JSON": "{{ task.rows[:9500] | tojson }}",
    "6,000 rows, the dearest first": (
        "{% for row in task.rows[:6000] | sort(attribute='price', reverse=true) %}\n"
        "{{ row.name }}: {{ row.price }}\n{% endfor %}"
    ),
    "4,096 answers by how many gave each": (
        "{% for group in solver | groupby('action') %}\n{{ group.list | length }} × {{ group.grouper }}\n"
        "{% endfor %}"
    ),
}
HONEST_CONDITIONS = {
    "whether 4,096 answers differ": "solver | map(attribute='action') | unique | list | length > 1",
    "how many of 10,000 rows are sold out": "task.rows | selectattr('stock', 'eq', 0) | list | length > 100",
}


def rendering(source: str) -> Work | None:
    """None where the source is refused before it is rendered."""
    template, _ = compile_template(source.replace("NINES", NINES), AROUND)
    return None if template is None else lambda: template.render(VARIABLES)


def holding(source: str) -> Work | None:
    """As `rendering`, of a condition."""
    condition, _ = compile_template(source, replace(AROUND, is_condition=True))
    return None if condition is None else lambda: condition.holds(VARIABLES)


# what is read

MOST = ANSWER_TEXT.most
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "verdict": {"enum": ["right", "wrong"]},
    },
    "required": ["name", "score", "verdict"],
    "additionalProperties": False,
}
RECORDS = {"type": "array", "items": RECORD, "maxItems": 100_000}


def records(many: int) -> str:
    return json.dumps([{"name": f"step {n}", "score": n / many, "verdict": "right"} for n in range(many)])


WORDS = [f"word {n}" for n in range(200)]
PARSERS: Mapping[str, ItemCall] = {
    "text": ItemCall("text"),
    "tag": ItemCall("tag", "answer", has_value=True),
    "number": ItemCall("number"),
    "fractions": ItemCall("number", options={"fractions": True}),
    "json": ItemCall("json"),
    "one_of": ItemCall("one_of", WORDS, has_value=True),
    "regex": ItemCall("regex", r"score: (\d+)", has_value=True),
    "uuid": ItemCall("regex", r"[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}", has_value=True),
    "nested": ItemCall("regex", "((a{0,30}){0,30}b)", has_value=True),
    "nested, in groups": ItemCall("regex", "(" * 19 + "a" + "{0,3})" * 6 + ")" * 13 + "b", has_value=True),
    "all that is left": ItemCall("regex", "a(?:.*z)?", has_value=True),
    "all that is left, nested": ItemCall("regex", "a(?:(?:a|b){0,500}z)?", has_value=True),
    "each character": ItemCall("regex", ".", has_value=True),
}
PROSE = "Take n = 3, and the second step fails: 3/4 of it, or 1,250.5 in all. "
HONEST_ANSWERS = {
    "a proof in prose": (PROSE * (MOST // len(PROSE) + 1))[: MOST - 30] + " <answer>word 7: 12</answer>",
    "records as JSON": records(6_800),
}
HONEST_PARSERS = (("text", "tag", "number", "fractions", "one_of"), ("text", "number", "json"))
CHECKED = records(4_000)
"""As many as `schema_work` lets through."""
HOSTILE_ANSWERS = {
    "lines without end": "a" + "\n" * (MOST - 2) + "1",
    "brackets": "[" * MOST,
    "brackets, then digits": "[" * 64 + "1," * (MOST // 2 - 64),
    "fences": "```json\n" * (MOST // 8),
    "fences in pairs": "```json\n[1,\n```" * (MOST // 15),
    "empty lists": "[" + "[]," * (MOST // 3 - 2) + "[]]",
    "empty mappings": "[" + "{}," * (MOST // 3 - 2) + "{}]",
    "lists in vain": "[1," * (MOST // 3),
    "one digit": "9" * MOST,
    "digits and commas": "1," * (MOST // 2),
    "points": "." * MOST,
    "thousands": "111,111," * (MOST // 8),
    "signs": "-" * MOST,
    "opening tags": "<answer>" * (MOST // 8),
    "tags": "<answer>1</answer>" * (MOST // 18),
    "half tags": "<answer" * (MOST // 7),
    "words": "word 1 " * (MOST // 7),
    "beginnings of words": "word " * (MOST // 5),
    "matches": "score: 7 " * (MOST // 9),
    "wide": "𝄞" * MOST,
    **{f"{many:,} of one": "a" * many for many in (400, 2_000, 6_000, 50_000, 120_000, 250_000, MOST)},
    "one, then others": "a" * (MOST // 2) + "!" * (MOST // 2),
    "one in few": ("a" + "!" * 400) * (MOST // 401),
}  # fmt: skip
ITSELF = {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/$defs/a"}}]}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "records": RECORDS,
    "no more than a type": {"type": "array"},
    "items of a type": {"items": {"type": "integer"}},
    "unique items": {"uniqueItems": True},
    "items unique in themselves": {"items": {"uniqueItems": True}},
    "one of many": {"items": {"enum": [*range(500)]}},
    "any of many": {"items": {"anyOf": [{"const": n} for n in range(500)]}},
    "one of alternatives": {"items": {"oneOf": [{"type": "string", "minLength": n} for n in range(50)]}},
    "not": {"items": {"not": {"not": {"not": {"type": "null"}}}}},
    "contains": {"contains": {"contains": {"type": "null"}}, "minContains": 2, "maxContains": 3},
    "references": {"$ref": "#/$defs/a", "$defs": {"a": ITSELF}},
    "a reference in each": {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}}},
    "patterns": {"items": {"pattern": "(?:a|b)*c" * 90}},
    "a long pattern of each": {"items": {"type": "string", "pattern": "(x+x+)+y"}},
    "a nested pattern of each": {"items": {"type": "string", "pattern": "((x{0,30}){0,30}y)"}},
    "names": {"propertyNames": {"maxLength": 3}},
    "names that are needed": {"items": {"required": [f"k{n}" for n in range(2_000)]}},
    "multiples": {"items": {"multipleOf": 0.01}},
    "a thing and its opposite": {"items": {"allOf": [{"type": "integer"}] * 200}},
    "what follows from it": {"items": {"if": {"type": "null"}, "then": {}, "else": {"type": "null"}}},
    "depending": {"items": {"dependentRequired": {f"k{n}": ["a"] for n in range(500)}}},
    "places": {"prefixItems": [{"type": "null"}] * 5_000},
}  # fmt: skip
VALUES = {
    "integers": "[" + "1," * (MOST // 2 - 2) + "1]",
    "distinct integers": "[" + ",".join(map(str, range(60_000))) + "]",
    "floats": "[" + "0.1," * (MOST // 4 - 2) + "1]",
    "texts": "[" + '"",' * (MOST // 3 - 2) + '""]',
    "long texts": json.dumps(["x" * 19_000] * 20),
    "empty lists": HOSTILE_ANSWERS["empty lists"],
    "empty mappings": HOSTILE_ANSWERS["empty mappings"],
    "lists of lists": "[" + "[[],[]]," * (MOST // 8 - 2) + "[]]",
    "deep lists": "[" * 60 + "1," * 150_000 + "1" + "]" * 60,
    "names": json.dumps({f"{n:x}": 1 for n in range(35_000)}),
    "records": records(6_800),
    "wrong records": records(6_800).replace("right", "rigth"),
}


def reading(parser: ItemCall, answer: str) -> Work:
    parse = parsers.build(parser).parse
    upstream: Mapping[str, Views] = {"solver": VARIABLES["solver"]}
    return lambda: parse(answer, upstream)


def of_schema(schema: Mapping[str, Any]) -> ItemCall:
    return ItemCall("json", dict(schema), has_value=True)


# all of them


def inputs() -> Iterator[tuple[str, str, bool, Work | None]]:
    """Kind, name, whether it is honest, and what is done with it."""
    for name, source in HONEST_PROMPTS.items():
        yield "render", name, True, rendering(source)
    for name, source in HONEST_CONDITIONS.items():
        yield "render", name, True, holding(source)
    hostile = [*OPERATIONS.items(), *((case.name, case.source) for case in prompts.CASES)]
    for name, source in hostile:
        if source not in HONEST_PROMPTS.values():
            yield "render", name, False, rendering(source)
    for case in conditions.CASES:
        yield "render", case.name, False, holding(case.source)
    for (name, answer), read in zip(HONEST_ANSWERS.items(), HONEST_PARSERS, strict=True):
        for parser in read:
            yield "parse", f"{name}: {parser}", True, reading(PARSERS[parser], answer)
    yield "parse", "records as JSON: schema", True, reading(of_schema(RECORDS), CHECKED)
    for name, answer in HOSTILE_ANSWERS.items():
        for parser, call in PARSERS.items():
            yield "parse", f"{name}: {parser}", False, reading(call, answer)
    for name, schema in SCHEMAS.items():
        for value, answer in VALUES.items():
            yield "parse", f"{value}: schema, {name}", False, reading(of_schema(schema), answer)


def measured(work: Work, *, honest: bool) -> tuple[float, int]:
    """Seconds and bytes that it takes, of a process of its own."""
    out, into = os.pipe()
    if (child := os.fork()) == 0:
        Path("/proc/self/clear_refs").write_text("5")  # the most memory from here on
        before, times = _resident(), list[float]()
        while len(times) < 9 and (not times or times[0] > SHORT):
            began = process_time()
            with suppress(*(() if honest else (PromptError, ParseFailure))):
                work()
            times.append(process_time() - began)
        os.write(into, json.dumps([min(times), _resident() - before]).encode())
        os._exit(0)
    os.close(into)
    said = os.read(out, 1_000)
    os.close(out)
    os.waitpid(child, 0)
    seconds, taken = json.loads(said)
    return seconds, taken


def _resident() -> int:
    """The most that this process held so far, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) << 10


def main() -> None:
    """Measure all, and hold the hostile ones against the honest."""
    costs = list[Cost]()
    kinds = {*sys.argv[1:]} or {"render", "parse"}
    for kind, name, honest, work in inputs():
        if work is not None and kind in kinds:
            costs.append(Cost(kind, name, honest, *measured(work, honest=honest)))
    for kind in dict.fromkeys(cost.kind for cost in costs):
        of_kind = [cost for cost in costs if cost.kind == kind]
        for honest in (True, False):
            some = sorted((cost for cost in of_kind if cost.honest is honest), key=_seconds, reverse=True)
            print(f"{kind}, {'honest' if honest else 'hostile'}: {len(some):,} inputs")
            for cost in some[:9]:
                print(f"  {cost.seconds:6.3f} s {cost.bytes / 2**20:6.0f} MB  {cost.name}")
            largest = max(some, key=_bytes)
            print(f"  {largest.seconds:6.3f} s {largest.bytes / 2**20:6.0f} MB  {largest.name} (most memory)")
    print(f"\n{'':10}{'honest':>10}{'hostile':>10}{'ratio':>8}")
    for kind in dict.fromkeys(cost.kind for cost in costs):
        honest, hostile = (
            max(cost.seconds for cost in costs if cost.kind == kind and cost.honest is which)
            for which in (True, False)
        )
        print(f"{kind:10}{honest:8.3f} s{hostile:8.3f} s{hostile / honest:8.2f}")
    longest, worst = (max(cost.seconds for cost in costs if cost.honest is which) for which in (True, False))
    memory = max(cost.bytes for cost in costs if not cost.honest)
    print(f"{'memory':10}{'':10}{memory / 2**20:7.0f} MB")
    sys.exit(worst > longest or memory > MEMORY)


def _seconds(cost: Cost) -> float:
    return cost.seconds


def _bytes(cost: Cost) -> int:
    return cost.bytes


if __name__ == "__main__":
    main()
