"""Numbers of whole trainings on a scripted service: metrics, datums and advantages, pinned by digests.

A change of a digest is a change of what some user trains on. `python -m tests.training.test_pinned` writes
the digests anew; look at what changed before you commit them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.records import Task
from tests.edge import RIGHT, WRONG
from tests.models.edges import write_tokenizer
from tests.models.tinker_edge import tinker_service
from tests.training.credited import LOOP, ONE, Roles, write
from tests.training.edge import Training, Workflow, tasks

DIGESTS = Path(__file__).parents[1] / "data" / "pinned_steps.json"
DIGITS = 6
"""Significant digits of a pinned number; datums are float32."""

PAIR: Roles = {
    "a": {"count": 2, "prompt": "first {{ task.question }}"},
    "b": {"needs": ["a"], "prompt": "second {% for x in a %}{{ x.action }}{% endfor %}"},
}
CHAIN: Roles = {"a": {**ONE["a"], "count": 2}}
FAILING = {"on_failure": {"then": "mask"}}
KL = {"reverse_kl": {"teacher": "base", "coefficient": 0.5}}
GATED = {"reverse_kl": {"teacher": "base", "coefficient": 0.5, "center": True, "gate": "not right"}}
SHOWN = {"imitation": {"demonstration": "{% if self.reward < 1 %}{{ task.solution }}{% endif %}"}}
BY_FIELD = {
    "reverse_kl": {"teacher": {"by": "task.kind", "of": {"odd": "base"}, "else": "mask"}, "coefficient": 0.5}
}


def pair(a: Mapping[str, Any] = {}, b: Mapping[str, Any] = {}) -> Roles:
    return {"a": {**PAIR["a"], **a}, "b": {**PAIR["b"], **b}}


def chain(**keys: Any) -> Roles:
    return {"a": {**CHAIN["a"], **keys}}


Case = tuple[Roles, Mapping[str, Any], tuple[str, ...]]
"""Roles, loops and overrides."""
CASES: dict[str, Case] = {
    "grpo": (pair(), {}, ()),
    "masked failures": (pair(FAILING, FAILING), {}, ("train.rollouts=3",)),
    "two policies, weights": (
        pair({"policy": "one", "weight": 0.5}, {"policy": "two", "estimator": "reinforce", "weight": 2}),
        {},
        ("policies={one: {}, two: {}}",),
    ),
    "one policy, weights": (pair({"weight": 0.5}, {"estimator": "opo"}), {}, ("train.rollouts=3",)),
    "rloo and means of the batch": (
        pair({"estimator": "rloo"}, {"estimator": "reinforce_plus_plus_baseline"}),
        {},
        (),
    ),
    "prpo": (pair({"estimator": "prpo"}, {"estimator": {"grpo": {"std": False}}}), {}, ()),
    "turns with margins": (chain(credit="margin", group="turn"), LOOP, ()),
    "returns, masked": (chain(credit={"return": 0.9}, **FAILING), LOOP, ()),
    "trajectories of turns": (chain(), LOOP, ()),
    "by prompt": (chain(credit="turn", group="prompt"), LOOP, ("train.rollouts=4",)),
    "a list": (
        chain(group=["task", {"by": "turn", "credit": "turn", "weight": 0.25}, {"by": 0, "over": "batch"}]),
        LOOP,
        (),
    ),
    "a list beside a signal": (
        chain(group=[{"by": "turn", "credit": "margin"}, "task"], signal=KL),
        LOOP,
        (),
    ),
    "an episode over two roles": (
        pair({"group": "episode"}, {"group": "episode", "estimator": "reinforce"}),
        {},
        (),
    ),
    "episode and task": (pair({"group": ["episode", {"by": "task", "weight": 0.5}]}), {}, ()),
    "over the batch by a field": (
        pair({"group": {"by": "task.kind", "over": "batch"}}),
        {},
        ("train.batch_size=3",),
    ),
    "keys that cannot be computed": (
        pair({"count": 3, "group": {"by": "1 / (self.index - 2)"}}),
        {},
        (),
    ),
    "running means by a field": (
        pair({"estimator": {"ema": {"decay": 0.9, "by": "task.kind"}}}, {"estimator": "ema"}),
        {},
        ("train.batch_size=3",),
    ),
    "stages of imitation and best": (
        pair(),
        {},
        (
            "train.stages=[{imitation: {a: '<answer>{{ task.solution }}</answer>'}, steps: 1},"
            " {imitation: best, steps: 1}]",
        ),
    ),
    "a gated, centred teacher": (pair({"signal": GATED}), {}, ()),
    "a teacher alone": (pair({"signal": KL, "estimator": None}), {}, ()),
    "teachers by a field": (chain(signal=BY_FIELD, credit="turn", group="turn"), LOOP, ()),
    "demonstrations": (pair({"signal": SHOWN}), {}, ()),
    "demonstrations alone": (pair({"signal": SHOWN, "estimator": None}), {}, ()),
    "past selves": (
        pair({"policy": ["main", "past"]}),
        {},
        ("policies.past={of: main, every: 1, keep: 2}", "train.rollouts=4"),
    ),
    "refill": (pair(), {}, ("train.refill=2", "train.batch_size=2")),
    "staleness": (pair(), {}, ("train.staleness=1",)),
    "dpo": (pair({"loss": "dpo", "count": 4}), {}, ()),
    "dpo over the batch": (pair({"loss": "dpo", "group": {"by": 0, "over": "batch"}}), {}, ()),
    "a conversation": (chain(memory="chat", credit="turn", group="turn"), LOOP, ()),
    "a fork": (
        {
            "a": {"count": 1, "memory": "chat", "prompt": "first {{ task.question }}"},
            "b": {"needs": ["a"], "memory": {"fork": "a"}, "prompt": "and now?"},
        },
        {"l": {"roles": ["a", "b"], "times": 2}},
        (),
    ),
    "tools": (
        {
            "a": {
                "count": 2,
                "tools": ["calculator"],
                "max_calls": 3,
                "prompt": "use a tool: {{ task.question }}",
            }
        },
        {},
        (),
    ),
}


def rows(split: str, count: int) -> list[Task]:
    return [{**row, "kind": "odd" if n % 2 else "even"} for n, row in enumerate(tasks(split, count))]


def answer(prompt: str, seed: int) -> str:
    """Return an answer that follows from prompt and seed: right, wrong, long, without tags, or a call."""
    number = int.from_bytes(hashlib.blake2b(f"{seed} {prompt}".encode(), digest_size=4).digest())
    if "use a tool" in prompt and number % 3 == 0:
        return '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 4"}}\n</tool_call>'
    given = RIGHT if number % 5 < 2 else "no tags" if number % 5 == 4 else WRONG
    return f"{'so ' * (number % 7)}{given}"


def numbers(value: Any) -> Any:
    """Return a value with its floats rounded to `DIGITS`."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in cast("dict[str, Any]", value).items()}
    return [*map(numbers, cast("list[Any]", value))] if isinstance(value, list) else value


def pinned(training: Training, case: Case, folder: Path) -> dict[str, Any]:
    """Run a training, and return its metrics, datums and advantages."""
    roles, loops, overrides = case
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows("train", 5))))
    data = {"train": {"file": "rows.jsonl", "hidden": ["solution"]}}
    training.spec = write(folder, roles, dict(loops), data=data)
    training.rows, training.workflow.answers = rows, answer
    training.keep_going = True
    training.run(*overrides, "train.validation={every: 0, tasks: 1, rollouts: 1}")
    # The policies of a step are updated at the same time.
    passes = sorted(training.service.asked_for("forward_backward"), key=lambda body: body["model_id"])
    steps = [episode for step in (1, 2, 3) for episode in training.episodes("train", step)]
    return {
        "metrics": training.figures(),
        "datums": [
            {"loss": body["loss_fn"], "data": [list(datum) for datum in body["data"]]} for body in passes
        ],
        "advantages": [
            [t.uid, [[t.reward, *step.advantages] for step in t.steps]] for e in steps for t in e.trajectories
        ],
    }


def digests(found: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: hashlib.blake2b(json.dumps(numbers(part), sort_keys=True).encode(), digest_size=8).hexdigest()
        for name, part in found.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_a_training_are_pinned(case: str, training: Training, tmp_path: Path) -> None:
    found = pinned(training, CASES[case], tmp_path)
    assert np.any([any(values[1:]) for _, steps in found["advantages"] for values in steps])
    assert digests(found) == json.loads(DIGESTS.read_text())[case]


def write_digests(out: Path, *, exact: bool) -> None:
    """Write the digests of all cases; or with `exact` all numbers, for a comparison of two checkouts."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        tokenizer = write_tokenizer(Path(name))
        for number, (case, parts) in enumerate(CASES.items()):
            workflow, folder = Workflow(load_tokenizer(tokenizer)), Path(name, str(number))
            folder.mkdir()
            with tinker_service(workflow, context=4096) as workflow.service:
                numbers = pinned(Training(workflow, tokenizer, folder / "run"), parts, folder)
            found[case] = numbers if exact else digests(numbers)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write_digests(Path(sys.argv[1]) if sys.argv[1:] else DIGESTS, exact=bool(sys.argv[1:]))
