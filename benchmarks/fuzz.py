"""Makes hostile input of every kind from honest input; looks for what ends in neither a result nor a fault.

    python benchmarks/fuzz.py --minutes 5 --seed 0

Each input is made from shipped specs, their templates and small files by mutating their structure, not their
bytes alone. It must end in a result, or in an error of the family with a place: a diagnostic with its line, a
file and line, a `prompt_error`, a parse failure. A find is anything else that is raised, a diagnostic without
a place, one that no terminal should be given, or more than `SECONDS`. Finds are written one a line, as the
corpus in `tests/attack` has them. The same seed makes the same inputs, in the same order.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import re
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from engine.compile import check_file
from engine.errors import DataError, RolegraphError, SpecError, UsageError
from engine.models.replay import Replay
from engine.prompts import PromptError
from engine.prompts.checks import Surroundings
from engine.prompts.templates import compile_condition, compile_template
from engine.records import read_episodes
from engine.records.episodes import EpisodeFile
from engine.shipped import PROMPTS, SPECS
from engine.vocabulary import Call, ParseFailure, View, Views, open_dataset, parsers

SECONDS = 10.0
"""No input is worth more; what takes longer is a find."""
MEMORY = 4 << 30
AROUND = Surroundings({"solver": 2}, ("solver", "judge"), None, frozenset({"answer"}))
VARIABLES = {
    "task": {"id": "1", "question": "q", "items": [1, "a"], "nested": {"answer": 3}},
    "solver": Views([View(1, "a"), View(2, "b")]),
}
ATOMS: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, 0.0, -0.5, math.inf, -math.inf, math.nan),
    *("", " ", "a", "solver", "judge", "x" * 5_000, "\x1b[31m", "a\x00b", "\u202e", "../../etc", "/dev/zero"),
    *(
        "{{ task.question }}",
        "{% for x in task.items %}{{ x }}{% endfor %}",
        "{{ solver[0] }}",
        "replay:/dev/zero",
    ),
    *(
        "local:..",
        "openai:x",
        "tinker:y",
        "1e999",
        "*",
        "&a",
        "!!int",
        "solver.action == 1",
        "${x}",
        "\ufeff",
    ),
    *([], {}, [[]], [None], {"a": 1}, {"": ""}, ["solver", "solver"], {"countdown": {}}, {"tag": "answer"}),
]
PARTS = [
    *(
        "task.question",
        "task.items",
        "solver",
        "solver[0].action",
        "solver | length",
        "task",
        "loop",
        "1",
        "'a'",
    ),
    *("range(9)", "{'a': [1]}", "[1, 2]", "none", "task.nested.answer", "x", "(1, 2)", "9 ** 9", "-1", "1.5"),
]
FILTERS = (
    "abs batch(2) capitalize default(1) dictsort first float groupby('a') indent(3) int items join(',') "
    "last length list lower map('upper') max min random reject replace('a','b') reverse round(2) select "
    "slice(2) sort string sum title tojson(2) trim truncate(3) unique upper urlencode wordcount xmlattr "
    "attr('x') pprint"
).split()
OPERATORS = "+ - * / // % ** ~ == != < > <= >= and or in is".split()


def expression(rng: random.Random, depth: int = 0) -> str:
    if depth > 5 or rng.random() < 0.3:
        return rng.choice(PARTS)
    inner = expression(rng, depth + 1)
    match rng.randrange(6):
        case 0:
            return f"({inner}) | {rng.choice(FILTERS)}"
        case 1:
            return f"({inner}) {rng.choice(OPERATORS)} {expression(rng, depth + 1)}"
        case 2:
            return f"({inner})[{expression(rng, depth + 1)}]"
        case 3:
            return f"{inner} if {expression(rng, depth + 1)} else {expression(rng, depth + 1)}"
        case 4:
            return f"({inner}).{rng.choice(['action', 'x', '__class__', 'format', 'items'])}"
        case _:
            return f"[{inner}, {expression(rng, depth + 1)}]"


def template(rng: random.Random, depth: int = 0) -> str:
    pieces: list[str] = []
    for _ in range(rng.randint(1, 4)):
        inner = template(rng, depth + 1) if depth < 4 else "x"
        pieces.append(
            rng.choice(
                [
                    "text",
                    f"{{{{ {expression(rng)} }}}}",
                    f"{{% for x in {expression(rng)} %}}{inner}{{% endfor %}}",
                    f"{{% if {expression(rng)} %}}{inner}{{% else %}}{inner}{{% endif %}}",
                    f"{{% set x = {expression(rng)} %}}",
                    f"{{% with x = {expression(rng)} %}}{inner}{{% endwith %}}",
                    rng.choice(["{{", "}}", "{%", "{#", "\x00", "\ud800", "{% raw %}", "\u202e"]),
                ]
            )
        )
    return "".join(pieces)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def mutated(rng: random.Random, value: Any) -> Any:
    """The value with a few of its parts replaced, removed, copied elsewhere, renamed or wrapped."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        spots = [path for path in places(value) if path]
        if not spots:
            return rng.choice(ATOMS)
        *way, key = rng.choice(spots)
        at = value
        for step in way:
            at = at[step]
        match rng.randrange(6):
            case 0:
                del at[key]
            case 1 if isinstance(at, dict):
                at[rng.choice(["x", "", "count", "until", 7, "\x1b", *at])] = at[key]
            case 2:
                at[key] = [at[key]] * rng.choice([1, 2, 40])
            case 3:
                at[key] = {rng.choice(["of", "a", "countdown"]): at[key]}
            case 4:
                source: Any = value
                for step in rng.choice(spots):
                    source = (
                        source[step]
                        if isinstance(source, dict | list) and step in [*_keys(source)]
                        else source
                    )
                at[key] = copy.deepcopy(source)
            case _:
                at[key] = rng.choice([*ATOMS, expression(rng), template(rng)])
    return value


def _keys(value: Any) -> list[Any]:
    return [*value] if isinstance(value, dict) else [*range(len(value))]


def scribbled(rng: random.Random, text: str) -> str:
    """The text with a piece cut, doubled or put in."""
    start = rng.randrange(len(text) + 1)
    end = min(len(text), start + rng.randrange(40))
    middle = rng.choice(["", text[start:end] * 2, rng.choice("[]{}:,&*!|>'\"%@`\t\n\x00\ud800"), "- " * 50])
    return text[:start] + middle + text[end:]


SPEC_DATA = [yaml.safe_load(path.read_text()) for path in sorted(SPECS.glob("*.yaml"))]
TEMPLATES = [path.read_text() for path in sorted(PROMPTS.glob("*.j2"))]


def dumped(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def spec(rng: random.Random) -> str:
    value = mutated(rng, rng.choice(SPEC_DATA))
    try:
        text = dumped(value)
    except (yaml.YAMLError, RecursionError):
        text = json.dumps(value, default=str)
    return scribbled(rng, text) if rng.random() < 0.2 else text


def override(rng: random.Random) -> str:
    data = rng.choice(SPEC_DATA)
    path = ".".join(map(str, rng.choice([*places(data)]))) or "name"
    value = rng.choice([*ATOMS, expression(rng)])
    text = f"{path}={json.dumps(value, default=str, ensure_ascii=False)}"
    return scribbled(rng, text) if rng.random() < 0.3 else text


STEP = {
    "prompt_ids": [1],
    "response_ids": [2],
    "logprobs": [-0.5],
    "chat_completions": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}],
    "thought": "",
    "action": {"a": [1]},
    "model_response": "a",
    "reward": 0.0,
    "done": True,
    "advantage": [0.5],
    "weight_version": 1,
    "info": {"round": 1, "usage": {"prompt_tokens": 1}, "credit": 1.0, "group": {"round": 1}},
}
INFO = {"index": 1, "is_correct": True, "signals": {"a": 1.0}, "failure": {"name": "timeout", "message": "m"}}
EPISODE = {
    "id": "t:0",
    "task": {"id": "t", "question": "?"},
    "termination_reason": "env_done",
    "is_correct": True,
    "trajectories": [{"uid": "u", "name": "s", "steps": [STEP], "reward": 1.0, "info": INFO}],
    "metrics": {"a": 1.0},
    "info": {"task_id": "t", "rollout": 0},
}


def episode(rng: random.Random) -> str:
    text = json.dumps(mutated(rng, EPISODE), default=str)
    return scribbled(rng, text).replace("\n", " ") if rng.random() < 0.2 else text


def rows(rng: random.Random) -> str:
    honest = [{"id": "a", "question": "q", "n": 1}, {"id": "b", "question": "r", "n": 2}]
    text = "".join(json.dumps(row, default=str) + "\n" for row in (honest[0], mutated(rng, honest[1])))
    return scribbled(rng, text)


PARSERS = [
    parsers.build(Call.parse(written))
    for written in (
        *("text", "number", "json", {"tag": "answer"}, {"tag": "answer", "which": "last"}),
        *(
            {"one_of": ["yes", "no", "not sure"]},
            {"regex": r"(\d+)\s*$"},
            {"json": None, "schema": {"type": "object"}},
        ),
    )
    if not (isinstance(written, dict) and "schema" in written)
]


def answer(rng: random.Random) -> str:
    parts = [
        "<answer>",
        "</answer>",
        "yes",
        "1,234.5",
        "[",
        "]",
        "{",
        "}",
        '"',
        "```json\n",
        "```",
        "\n",
        "\ud800",
        "9" * 400,
    ]
    return "".join(rng.choice(parts) * rng.choice([1, 1, 2, 500]) for _ in range(rng.randint(1, 30)))


# what becomes of it


def check_spec(text: str, *given: str) -> str:
    Path("x.yaml").write_bytes(text.encode(errors="surrogatepass"))
    compiled = check_file("x.yaml", given)
    for diagnostic in compiled.diagnostics:
        said = str(diagnostic)
        assert diagnostic.place.line >= 1 and diagnostic.place.column >= 1, f"no place: {said}"
        assert len(said) < 4_000, f"nobody reads it: {len(said)}"
        assert all(c.isprintable() or c == "\n" for c in said), f"not for a terminal: {said!r}"
    assert compiled.plan is not None or compiled.diagnostics, "refused without a word"
    return "fault" if compiled.plan is None else "result"


def check_override(given: str) -> str:
    return check_spec(dumped(SPEC_DATA[len(given) % len(SPEC_DATA)]), given)


def check_template(text: str) -> str:
    made, faults = compile_template(text, AROUND)
    if made is None:
        assert faults and 0 <= faults[0].at <= len(text), "no place"
        return "fault"
    try:
        made.render(VARIABLES)
    except PromptError:
        return "fault"
    return "result"


def check_condition(text: str) -> str:
    made, faults = compile_condition(text, AROUND)
    if made is None:
        assert faults and 0 <= faults[0].at <= len(text), "no place"
        return "fault"
    try:
        made.holds(VARIABLES)
    except PromptError:
        return "fault"
    return "result"


def check_records(read: Callable[[Path], object]) -> Callable[[str], str]:
    def check(line: str) -> str:
        path = Path("episodes.jsonl")
        path.write_bytes(f"{json.dumps(EPISODE)}\n{line}\n".encode(errors="surrogatepass"))
        try:
            read(path)
        except DataError as error:
            assert re.search(r"episodes\.jsonl:\d+: ", str(error)), f"no place: {error}"
            return "fault"
        return "result"

    return check


def check_rows(text: str) -> str:
    Path("t.jsonl").write_bytes(text.encode(errors="surrogatepass"))
    try:
        list(open_dataset(Call.parse("t.jsonl"), split="train", folder=Path()).rows(None))
    except DataError as error:
        assert "t.jsonl" in str(error), f"no place: {error}"
        return "fault"
    return "result"


def check_answer(text: str) -> str:
    came = "fault"
    for parser in PARSERS:
        try:
            json.dumps(parser.parse(text, {}), allow_nan=False)
            came = "result"
        except ParseFailure as error:
            assert str(error), "no reason"
    return came


KINDS: dict[str, tuple[Callable[[random.Random], str], Callable[[str], str]]] = {
    "spec": (spec, check_spec),
    "override": (override, check_override),
    "template": (
        lambda rng: template(rng) if rng.random() < 0.8 else scribbled(rng, rng.choice(TEMPLATES)),
        check_template,
    ),
    "expression": (expression, check_condition),
    "episodes": (episode, check_records(lambda path: ([*read_episodes(path)], EpisodeFile(path).entries()))),
    "replay": (episode, check_records(Replay.from_file)),
    "rows": (rows, check_rows),
    "answer": (answer, check_answer),
}
TURNS = [*("template", "expression", "episodes", "replay", "rows", "answer") * 8, "override", "spec", "spec"]
"""A spec costs as much as a hundred of the others."""


class Hang(BaseException):
    """An input took too long."""


def _stop(*_: object) -> None:
    raise Hang


def main() -> None:
    parser = argparse.ArgumentParser(description="hostile input of every kind")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--finds", type=Path, default=Path("finds.txt"), help="where finds are written")
    given = parser.parse_args()
    finds_file, end = given.finds.absolute(), time.monotonic() + 60 * given.minutes
    signal.signal(signal.SIGALRM, _stop)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    rng = random.Random(given.seed)
    counts: Counter[tuple[str, str]] = Counter()
    known: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        while time.monotonic() < end:
            kind = rng.choice(TURNS)
            make, check = KINDS[kind]
            text = make(random.Random(rng.getrandbits(64)))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                came, where = check(text), ""
            except (SpecError, UsageError, DataError) as error:
                came, where = "find", f"{type(error).__name__} {error}"[:200]
            except RolegraphError as error:
                came, where = "find", f"{type(error).__name__} {error}"[:200]
            except (Exception, Hang) as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                came, where = (
                    "find",
                    f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {error}"[:200],
                )
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            counts[kind, came] += 1
            if came == "find":
                known[f"{kind}: {where}"] += 1
                if known[f"{kind}: {where}"] == 1:
                    with finds_file.open("a") as file:
                        file.write(f"    Case({where!r}, {text!r}, 'fault', ''),  # {kind}\n")
    for kind in KINDS:
        row = {came: counts[kind, came] for came in ("result", "fault", "find")}
        print(f"{kind:12}", "  ".join(f"{came} {n:,}" for came, n in row.items()))
    print(
        f"{counts.total():,} inputs, {sum(known.values()):,} finds of {len(known):,} sorts, seed {given.seed}"
    )
    for find, times in known.most_common():
        print(f"  {times:,} x {find!r}")


if __name__ == "__main__":
    main()
