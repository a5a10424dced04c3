"""Hostile lines of an episode file, made from a valid line with a wrong value at one path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Put = tuple[str, object]
STEP = "trajectories.0.steps.0"
WRONG: list[Put] = [
    *((path, value) for path in ("id", "task", "trajectories", "is_correct") for value in (None, 7, [[1]])),
    *(("id", value) for value in ("t", "t:", "t:x", "t:-1", "t:" + "9" * 30, "", {})),
    *(("info", value) for value in (7, [], "x", {"rollout": "b"}, {"rollout": -1}, {"task_id": 3})),
    *(("metrics", value) for value in ([], {"a": "b"}, {"a": float("nan")}, {"a": 1e300}, {"a": None})),
    ("termination_reason", [1]),
    *((f"trajectories.0{rest}", value) for rest in ("", ".steps", ".name") for value in (None, 7, "x" * (rest != ".name") or [])),
    *(("trajectories.0.reward", value) for value in ("1", [], float("inf"), float("nan"), -1e300)),
    *(("trajectories.0.info", {"index": value}) for value in (0, -1, "1", [], None, 1.5)),
    *(("trajectories.0.info", {"failure": value}) for value in ("x", {"name": "x", "message": ""}, {"name": "timeout"})),
    *(("trajectories.0.info", {"signals": value}) for value in ([], {"a": "b"}, {"a": float("inf")})),
    ("trajectories.0.info", {"withheld_steps": [7]}),
    *((f"{STEP}.{key}", value) for key in ("prompt_ids", "response_ids", "logprobs") for value in (None, 7, "ab", ["a"], [None], {})),
    *((f"{STEP}.chat_completions", value) for value in (None, 7, ["a"], [{}], [{"role": 1}], [{"role": "user", "content": [1]}])),
    *((f"{STEP}.chat_completions", [{"role": "assistant", "tool_calls": value}]) for value in (7, [7], [{}], [{"function": {"name": "f"}}])),
    *((f"{STEP}.{key}", value) for key in ("thought", "model_response") for value in (7, [], {})),
    *((f"{STEP}.advantage", value) for value in ("a", ["a"], float("nan"), {})),
    *((f"{STEP}.weight_version", value) for value in ("a", 1.5, [])),
    *((f"{STEP}.info", {key: value}) for key in ("round", "usage", "masked", "tool", "started", "seconds") for value in ("x" * (key != "tool") or 3, [1])),
]


def honest() -> dict[str, Any]:
    step = {
        "prompt_ids": [1],
        "response_ids": [2],
        "logprobs": [-0.5],
        "chat_completions": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}],
        "thought": "",
        "action": "a",
        "model_response": "a",
        "reward": 0.0,
        "done": True,
        "advantage": None,
        "weight_version": None,
        "info": {},
    }
    one = {"uid": "u", "name": "solver", "task": None, "steps": [step], "reward": 1.0, "info": {"index": 1}}
    return {"id": "t:0", "task": {"id": "t"}, "is_correct": True, "trajectories": [one], "metrics": {}, "info": {}}


def line(path: str, value: object) -> str:
    """Return a valid episode as JSON, with the value at a dotted path replaced."""
    whole = at = honest()
    *way, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    for key in way:
        at = at[key]  # pyright: ignore
    at[last] = value  # pyright: ignore
    return json.dumps(whole)


NO_LINES = [
    '{"id": "t:0", "x": [' + "[]," * 1_600_000 + "[]]}",
    "[" * 100_000,
    '{"id": ' + "[" * 3_000 + "]" * 3_000 + "}",
    line("task", {"id": "t", "deep": 1}).replace("1}", "[" * 5_000 + "]" * 5_000 + "}", 1),
    "null", "7", "\"a\"", "{}", "[]", "{", "\x00", '{"id": NaN}', "9" * 5_000,
]  # fmt: skip


def write(folder: Path, hostile: str) -> Path:
    """Write an episode file whose second line is hostile."""
    path = folder / "episodes.jsonl"
    path.write_text(f"{json.dumps(honest())}\n{hostile}\n")
    return path
