"""Cases of run folders with one hostile file, as input of `report`, `view` and `compare`.

The source of a case is JSON: the kind of run, the file, a dotted path in the file's first line of JSON or null
for the whole file, and the new content. The commands must report the fault or show the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.attack.cases import Case
from tests.attack.records import WRONG

DEEP = "[" * 5_000 + "]" * 5_000
TEXTS: Sequence[tuple[str, str]] = [
    ("nothing", ""),
    ("NUL", "\0\0\0"),
    ("not UTF-8", "\udcff\udcfe"),
    ("null", "null"),
    ("a number", "7"),
    ("a list", "[]"),
    ("a list of numbers", "[7]"),
    ("an empty object", "{}"),
    ("a cut line", '{"step": 1, "corr'),
    ("deep lists", DEEP),
    ("deep objects", '{"a":' * 5_000 + "1" + "}" * 5_000),
    ("a number without end", '{"step": ' + "9" * 5_000 + "}"),
    ("an escape", '{"\\u001b[31m": "\\u001b]0;x\\u0007", "step": 1}'),
    ("half a character", '{"\\ud800": "\\ud800", "step": 1}'),
    ("a bomb of YAML", "a: &a [1,1,1,1]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n" * 3),
]
FILES = {
    "run": ("run.json", "episodes.jsonl", "episodes.index", "spec.yaml"),
    "train": (
        "run.json",
        "metrics.jsonl",
        "checkpoints.jsonl",
        "controls.json",
        "spec.yaml",
        "episodes/train-000001.jsonl",
        "episodes/train-000001.index",
        "episodes/validation-000001.jsonl",
    ),
}
INFO: Sequence[tuple[str, object]] = [
    *((key, value) for key in ("kind", "name", "hash", "started", "finished", "seed") for value in (None, 7, [1], {})),
    *((key, value) for key in ("roles", "figures", "templates", "overrides", "metrics") for value in (None, 7, ["x"], {"x": 1})),
    ("name", "\x1b[31m</title><script>"),
    ("name", "x" * 100_000),
    ("started", "9999-99-99"),
    ("figures", {"correct": 1e308, "episodes": -1e308, "\x1b[31m": 1}),
    ("roles", {f"r{n}": {"estimator": "grpo", "loss": "ppo", "trainable": True} for n in range(3_000)}),
    ("hidden", ["question"]),
    ("spec", "/etc/passwd"),
    ("spec", "\0"),
]  # fmt: skip
METRICS: Sequence[tuple[str, object]] = [
    *(("correct", value) for value in (None, "x", [1], True, 1e308, -1e308, 10**400)),
    *(("step", value) for value in (None, "x", -1, 1.5, 1e300, 10**400)),
    ("\x1b[31m</svg><script>", 1.0),
    *((f"made/{n}", 1.0) for n in (1, 2)),
]
INDEX: Sequence[tuple[str, object]] = [
    *((key, value) for key in ("offset", "length") for value in (-1, 10**18, 1.5, "x", None)),
    *(("roles", value) for value in ({"solver": 7}, {"solver": {"rewards": ["x"]}}, {"\x1b[31m": {}})),
    ("task", "another"),
    ("rollout", 10**30),
]


def put(run: str, file: str, path: str, value: object) -> str:
    return json.dumps([run, file, path, value])


CASES = [
    *(
        Case(f"{name} in {file} of a {run}", json.dumps([run, file, None, text]), "told")
        for run, files in FILES.items()
        for file in files
        for name, text in TEXTS
    ),
    *(
        Case(f"{number}: {file} of a {run} with {path}", put(run, file, path, value), "told")
        for run, file, cases in (
            ("run", "run.json", INFO),
            ("train", "run.json", INFO),
            ("train", "metrics.jsonl", METRICS),
            ("run", "episodes.index", INDEX),
            ("run", "episodes.jsonl", WRONG[::4]),
        )
        for number, (path, value) in enumerate(cases)
    ),
]
