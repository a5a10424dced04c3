"""Runner for the cases in `bombs`."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rolegraph.engine.compile import check_file, compile_file
from rolegraph.engine.errors import DataError
from rolegraph.engine.prompts import PromptError
from rolegraph.engine.records import RunFolder
from rolegraph.engine.records.episodes import EpisodeWriter, read_episodes
from rolegraph.engine.records.jsonl import json_line
from rolegraph.engine.vocabulary import (
    BadOptions,
    ItemCall,
    ParseFailure,
    Reward,
    RewardInputs,
    Score,
    parsers,
    rewards,
)
from tests.attack import records
from tests.attack.cases import Came
from tests.edge import episode, limited
from tests.run.test_calls import script

LEARNER: dict[str, Any] = {
    "prompt": "hi", "signal": {"imitation": {"demonstration": {}}},
}  # fmt: skip
TASK = {"id": "t", "question": "aaaa", "items": [1], "nested": {"answer": 3}}


def register() -> None:
    """Register rewards whose sum overflows, or that are infinite."""
    rewards.register("huge")(lambda: Reward(lambda task, action, seen: Score(1e308, True)))
    rewards.register("infinite")(lambda: Reward(lambda task, action, seen: Score(math.inf, True)))


def _compiled(roles: Mapping[str, Any], **rest: Any) -> Any:
    Path("x.yaml").write_text(yaml.safe_dump({"rolegraph": 2, "name": "x", "roles": roles, **rest}))
    return compile_file("x.yaml")


def _argument(source: str) -> Came:
    plan = _compiled({"learner": {"run": {"given": source}}})
    done = asyncio.run(episode(plan, limited(plan, script()), TASK))
    failure = done["learner"][0].failure
    return Came("text", "") if failure is None else Came("error", f"{failure.name.value}: {failure.message}")


def _demonstration(source: str) -> Came:
    signal = {"imitation": {"demonstration": source}}
    plan = _compiled({"learner": {**LEARNER, "signal": signal}})
    (learns,) = plan.signals.values()
    try:
        return Came("text", learns.demonstration.render({"task": TASK, "learner": ()})[:200])
    except PromptError as error:
        return Came("error", str(error))


def _parser(source: str) -> Came:
    name, value, options, answer = eval(source, {"json": json})
    try:
        parse = parsers.build(ItemCall(name, value, options, has_value=value is not None)).parse
        return Came("text", str(parse(answer, {}))[:200])
    except (BadOptions, ParseFailure) as error:
        return Came("error", str(error))


def _reward(source: str) -> Came:
    pattern, action = eval(source)
    try:
        reward = rewards.build(ItemCall("matches", pattern, has_value=True))
        return Came("text", str(reward.score({"id": "t"}, action, RewardInputs({}))))
    except ValueError as error:
        return Came("error", str(error))


def _line(path: str, value: Any) -> str:
    """Return a hostile line of JSON; a list of one repeated value is built as text, ten times faster."""
    if not isinstance(value, list):
        return records.line(path, value)
    numbers: list[Any] = value
    spelt = f"{json.dumps(numbers[0])}, " * len(numbers)
    return records.line(path, "HERE").replace('"HERE"', f"[{spelt[:-2]}]")


def _write(name: str, path: str | None, value: Any, times: int = 1) -> None:
    with Path(name).open("wb") as out:
        if name == "episodes.jsonl":
            out.write(json_line(records.honest()))
        if path is not None:
            line = _line(path, value).encode() + b"\n"
            for _ in range(times):
                out.write(line)
        elif value is not None:
            out.write(value.encode() + b"\n")
        else:
            os.truncate(out.fileno(), 2 << 30)


def _file(source: str) -> Came:
    if (child := os.fork()) == 0:  # write in a child: its memory must not count against the limit
        try:
            _write(*eval(source))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    file = Path(eval(source.split(",")[0] + "]")[0])
    folder = RunFolder(Path())
    readers: Mapping[str, Callable[[], object]] = {
        "episodes.jsonl": lambda: sum(1 for _ in read_episodes(file)),
        "run.json": folder.info,
        "controls.json": folder.controls,
        "metrics.jsonl": folder.metrics,
        "checkpoints.jsonl": folder.checkpoints,
    }
    try:
        return Came("valid", str(readers[file.name]()))
    except DataError as error:
        return Came("fault", str(error))
    finally:
        file.unlink()


def _run(source: str) -> Came:
    """Run three episodes, the second with a lower limit in its task, and return the outcome of the second."""
    plan = _compiled({"learner": {**yaml.safe_load(source)}})
    came: list[str] = []
    with EpisodeWriter(Path("episodes.jsonl")) as writer:
        for number, most in enumerate((9, 2, 9)):
            task = {"id": str(number), "question": "aaaaaaaaaaaa", "most": most}
            writer.append(asyncio.run(episode(plan, limited(plan, script("hi")), task)))
    for one in read_episodes(Path("episodes.jsonl")):
        failure = one["learner"][0].failure
        came.append(failure.name.value if failure else "done")
    for file in Path().glob("episodes*.jsonl"):
        file.unlink()
    if "truncate" in source:
        assert came == ["done", "prompt_error", "done"]
    return Came("error", came[1])


def _spec(_: str) -> Came:
    file = Path("large.yaml")
    file.write_bytes(b"")
    os.truncate(file, 400 << 20)
    fault = check_file(file).diagnostics[0]
    return Came("fault", str(fault))


_KINDS: Mapping[str, Callable[[str], Came]] = {
    "argument": _argument,
    "demonstration": _demonstration,
    "parser": _parser,
    "reward": _reward,
    "file": _file,
    "run": _run,
    "spec": _spec,
}


def burst(source: str) -> Came:
    """Run a case of `bombs` and return its outcome."""
    kind, _, what = source.partition(":")
    return _KINDS[kind](what)
