"""What each kind of input is made of: a text, from a generator of random numbers and nothing else.

Most are JSON of what a judge sets up: files of a folder, what a server replies, what a tool gives.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import honest
import train_requests
import yaml
from mutating import ATOMS, copied, expression, mutated, scribbled, scribbled_bytes, template
from odd import ODD_ATOMS

from rolegraph.engine.shipped import PROMPTS, SPECS

Make = Callable[[random.Random], str]
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ANY = [*ATOMS, *ODD_ATOMS, *ODD_ATOMS]


@cache
def spec_data() -> list[Any]:
    """Those that ship, but for one whose check starts a process."""
    files = [path for path in sorted(SPECS.glob("*.yaml")) if path.stem != "textarena"]
    return [yaml.safe_load(path.read_text()) for path in files]


@cache
def templates() -> list[str]:
    return [path.read_text() for path in sorted(PROMPTS.glob("*.j2"))]


def as_yaml(value: Any) -> str:
    try:
        return yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, RecursionError, UnicodeError):
        return json.dumps(value, default=str)


def as_json(value: Any) -> str:
    return json.dumps(value, default=str)


def now_and_then(rng: random.Random, share: float, text: str) -> str:
    return scribbled(rng, text) if rng.random() < share else text


# what is written: specs, prompts, tables


def spec(rng: random.Random) -> str:
    return now_and_then(rng, 0.2, as_yaml(mutated(rng, rng.choice(spec_data()))))


def spec_tests(rng: random.Random) -> str:
    return now_and_then(rng, 0.2, as_yaml(mutated(rng, honest.TESTS)))


def override(rng: random.Random) -> str:
    value, path = rng.choice(spec_data()), []
    while isinstance(value, dict | list) and value and rng.random() < 0.8:
        key = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
        path.append(str(key))
        value = value[key]
    new = mutated(rng, value) if rng.random() < 0.5 else rng.choice([*ATOMS, expression(rng)])
    return now_and_then(
        rng, 0.3, f"{'.'.join(path) or 'name'}={json.dumps(new, default=str, ensure_ascii=False)}"
    )


def prompt(rng: random.Random) -> str:
    return template(rng) if rng.random() < 0.9 else scribbled(rng, rng.choice(templates()))


def condition(rng: random.Random) -> str:
    return now_and_then(rng, 0.05, expression(rng))


def table(rng: random.Random, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A file of rows; the bytes of what is no text in hexadecimal."""
    suffix = rng.choice([".jsonl", ".jsonl", ".csv", ".parquet"])
    if suffix == ".parquet":
        return {"suffix": suffix, "hex": scribbled_bytes(rng, honest.parquet()).hex()}
    changed = [mutated(rng, row) if rng.random() < 0.6 else row for row in rows]
    if suffix == ".jsonl":
        text = "".join(as_json(row) + "\n" for row in changed)
    else:
        kept = [row for row in changed if isinstance(row, dict)] or rows
        cells = [[*map(str, kept[0])], *([str(value) for value in row.values()] for row in kept)]
        text = "".join(
            ",".join(f'"{cell}"' if rng.random() < 0.3 else cell for cell in row) + "\n" for row in cells
        )
    return {"suffix": suffix, "text": now_and_then(rng, 0.3, text)}


def rows(rng: random.Random) -> str:
    return as_json(table(rng, honest.ROWS))


def corpus(rng: random.Random) -> str:
    query = rng.choice(
        ["how high", mutated(rng, ["how high"]), expression(rng), "\ud800 \x00", 7, "a " * 20_000]
    )
    return as_json({**table(rng, honest.PASSAGES), "query": query})


# what is kept: episodes, folders of runs


def episode(rng: random.Random) -> str:
    text = as_json(mutated(rng, honest.EPISODE))
    return scribbled(rng, text).replace("\n", " ") if rng.random() < 0.2 else text


def folder(rng: random.Random, files: dict[str, Any], atoms: list[Any] = ATOMS) -> dict[str, str]:
    """The files of a folder, one or two of them changed; None for one that is missing."""
    written = {name: file_of(value) for name, value in files.items()}
    for name in rng.sample([*files], rng.choice([1, 1, 2])):
        value = files[name]
        if isinstance(value, str):
            written[name] = scribbled(rng, value)
        elif isinstance(value, list) and not isinstance(value, honest.Whole):
            lines = [mutated(rng, line, atoms) if rng.random() < 0.5 else line for line in value]
            written[name] = "".join(as_json(line) + "\n" for line in lines)
        else:
            written[name] = as_json(mutated(rng, value, atoms))
        if rng.random() < 0.1:
            written[name] = scribbled(rng, written[name])
    if rng.random() < 0.05:
        del written[rng.choice([*written])]
    return written


def file_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    lines = isinstance(value, list) and not isinstance(value, honest.Whole)
    return "".join(as_json(line) + "\n" for line in value) if lines else as_json(value)


def view(rng: random.Random) -> str:
    query = {name: value for name, value in honest.QUERY.items() if rng.random() < 0.2}
    if rng.random() < 0.5:
        query = mutated(rng, query or {"text": "answer"})
    files = honest.RUN if rng.random() < 0.6 else honest.TRAINING
    return as_json(
        {"files": folder(rng, files), "query": query if isinstance(query, dict) else {"text": query}}
    )


def report(rng: random.Random) -> str:
    return as_json({"files": folder(rng, honest.TRAINING)})


def compare(rng: random.Random) -> str:
    return as_json({"files": folder(rng, rng.choice([honest.RUN, honest.TRAINING]))})


CANARY = "zx9Canary7f3q"
"""Value of a hidden field."""


def leaving(rng: random.Random) -> str:
    """A spec and an episode of it, which quotes a hidden field where a role or a reward may have read it."""
    names, reads = "abcd", dict[str, list[str]]()
    for place, name in enumerate(names):
        reads[name] = rng.sample(names[:place], rng.randrange(place + 1)) if place else []
    shows = rng.choice(names)
    quoting = {shows}
    for name in names:  # in order: each role reads earlier ones alone
        quoting |= {name} if quoting.intersection(reads[name]) else set()
    roles = {
        name: {
            "prompt": "?",
            "needs": reads[name],
            **({"sees": ["gold"]} if name == shows else {}),
        }
        for name in names
    }
    trajectories = [_quoting(rng, name, name in quoting) for name in names]
    failures = [
        {"role": it["name"], "index": 1, **it["info"]["failure"]}
        for it in trajectories
        if "failure" in it["info"]
    ]
    episode = {
        "id": "t:0",
        "task": {"id": "t", "question": "?", "gold": CANARY},
        "is_correct": rng.random() < 0.5,
        "trajectories": trajectories,
        "info": {
            "failures": failures,
            **({"uncomputed_metrics": {"m": CANARY}} if rng.random() < 0.3 else {}),
        },
    }
    return as_json({"spec": {"rolegraph": 2, "name": "x", "roles": roles}, "episode": episode})


def _quoting(rng: random.Random, name: str, may_quote: bool) -> dict[str, Any]:
    """A trajectory of a role, whose texts quote the canary where the role may; its reward always may."""
    texts = [f"it is {CANARY}" if may_quote and rng.random() < 0.5 else "it is 7" for _ in range(5)]
    step = {
        "chat_completions": [
            {"role": "user", "content": texts[0]},
            {"role": "assistant", "content": texts[1]},
        ],
        "model_response": texts[1],
        "thought": texts[2],
        "action": [texts[3]],
    }
    info: dict[str, Any] = {"index": 1}
    if rng.random() < 0.4:
        failed = rng.choice(["malformed_output", "tool_error", "reward_error"])
        message = f"got {CANARY}" if failed == "reward_error" else texts[4]
        info["failure"] = {"name": failed, "message": message}
    return {"uid": name, "name": name, "steps": [step], "reward": rng.random(), "info": info}


_ELSEWHERE = [
    *("$stranger/v1", "$url/v1", "openai:big", "../other", "$outside", "own/x.yaml", "run", "seed=1"),
    *("$code", ["$code"]),
]

_LINKED = [
    *("log.txt", "episodes.jsonl", "episodes.index", "run.json", "spec.yaml", "data.jsonl", ".writer"),
    *("sweep.json", "sweep.svg", "seed=1", "weights", "adapter", "episodes"),
]
"""Names that commands write, and that a stranger makes links."""
_ASKED = ["base_url", "base_url", "model_flag", "spec", "checkpoint", "hash"]
"""Settings that ask for something of the user's machine."""


def resumed(rng: random.Random) -> str:
    """Make the folder of a run, training or sweep, and what a user does with it."""
    todo, files = rng.choice(
        [
            *[("run", honest.RESUMED)] * 4,
            *[("run", honest.UNNAMED), ("run", honest.IMPORTING)],
            *[("train", honest.ASKING), ("export", honest.ASKING)],
            *[("train", honest.RETRAINED), ("export", honest.RETRAINED)],
            *[("sweep", honest.SWEPT), ("sweep", honest.EVALUATED), ("eval", honest.EVALUATED)],
            ("newest", rng.choice([honest.RESUMED, honest.SWEPT, honest.RETRAINED])),
        ]
    )
    written = folder(rng, files, [*ATOMS, *_ELSEWHERE])
    if rng.random() < 0.3:
        name = "sweep.json" if "sweep.json" in files else "run.json"
        written[name] = as_json({**files[name], rng.choice(_ASKED): rng.choice(_ELSEWHERE)})
    links = [rng.choice(_LINKED)] if rng.random() < 0.2 else []
    return as_json({"do": todo, "files": written, "links": links})


# what is downloaded: folders of models

_SMALL = [atom for atom in ATOMS if not isinstance(atom, int) or abs(atom) < 10_000]
"""Atoms without large numbers: the weights of a model take what its config says."""
_CHATTING = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "added_tokens.json"]
_LOADING = [*_CHATTING[:2], "config.json", "config.json", "generation_config.json", "adapter_config.json"]


def model(rng: random.Random) -> str:
    """Make the changed files of a model's folder, an empty one for one that is missing."""
    chat = rng.random() < 0.7
    files: dict[str, str] = {}
    for name in rng.sample(_CHATTING if chat else _LOADING, rng.choice([1, 1, 2])):
        honest_text = honest.model_file(name)
        if name.endswith(".jinja"):
            text = scribbled(rng, honest_text)  # whoever names a model lets its template take what it takes
        else:
            atoms = _SMALL if name == "config.json" else ATOMS
            text = now_and_then(rng, 0.1, as_json(mutated(rng, json.loads(honest_text), atoms)))
        files[name] = text if rng.random() < 0.95 else ""
    weights = rng.getrandbits(32) if not chat and rng.random() < 0.2 else None
    return as_json({"chat": chat, "files": files, "weights": weights})


def weights(rng: random.Random) -> str:
    """Make the changed files of a training with its weights."""
    files = honest.WEIGHTS if rng.random() < 0.7 else {**honest.WEIGHTS, **honest.TRAINING}
    seed = rng.getrandbits(32) if rng.random() < 0.3 else None
    todo = rng.choice(["serve", "serve", "copy", "export", "merged"])
    return as_json({"do": todo, "files": folder(rng, files, [*ATOMS, *_ELSEWHERE]), "weights": seed})


# what others say: models and their servers, tools, worlds


def chat(rng: random.Random) -> str:
    """Texts of a chat's messages, with markers of its format among them."""
    markers = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>assistant\n", "<|im_", "end|>"]
    return as_json(
        [
            "".join(str(rng.choice([*markers, *ATOMS])) for _ in range(rng.randrange(1, 6)))
            .encode(errors="replace")
            .decode()
            for _ in range(rng.randrange(1, 6))
        ]
    )


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
    ]
    parts += [
        "9" * 400,
        "3 + 4",
        "(",
        ")",
        "*",
        "**",
        "/",
        "\\frac{1}{2}",
        "<think>",
        "</think>",
        ":",
        "e",
        "-",
        "٣",
    ]
    parts += ["<tool_call>", "</tool_call>", '{"name": "x", "arguments": ', "score: 7", "1", "2", "solver"]
    most = 300 if rng.random() < 0.1 else 2
    return "".join(rng.choice(parts) * rng.choice([1, 1, 1, most]) for _ in range(rng.randint(1, 25)))


def reply(rng: random.Random) -> str:
    """What an endpoint answers: a status, a type of content and a body."""
    body = as_json(mutated(rng, honest.COMPLETION if rng.random() < 0.9 else honest.REFUSAL))
    status = rng.choice([200] * 12 + [400, 401, 403, 404, 408, 429, 500, 204, 302])
    kind = rng.choice(["application/json"] * 8 + ["text/html", "", "application/json; charset=klingon"])
    return as_json([status, kind, now_and_then(rng, 0.2, body)])


def key(rng: random.Random) -> str:
    """A key as its variable holds it, and the status with which an endpoint echoes it."""
    parts = ["/", "+", "=", "%", '"', "'", "\\", "&", "<", "a b", "Zz09"] + ["\n", "\r", "\x01", "é"] * (
        rng.random() < 0.3
    )
    ends = ["", "", "\n", "\r\n", " ", "\t", "\f"]
    value = "sk-planted" + "".join(rng.choice(parts) for _ in range(rng.randint(0, 6))) + "planted"
    return as_json([rng.choice(ends) + value + rng.choice(ends), rng.choice([200, 400, 401, 403, 500])])


def calls(rng: random.Random) -> list[str]:
    """What a model says turn by turn, calls of tools among it."""
    said: list[str] = []
    for _ in range(rng.randint(1, 3)):
        call = {"name": "f", "arguments": {"a": 1}}
        written = as_json(mutated(rng, call) if rng.random() < 0.5 else call)
        said.append(
            now_and_then(rng, 0.2, f"<tool_call>{written}</tool_call>") * rng.choice([1, 1, 1, 2, 30])
        )
    return [*said, "<answer>3 + 4</answer>"]


def tool(rng: random.Random) -> str:
    result = rng.choice([mutated(rng, {"result": [1, "a"]}, _ANY), rng.choice(_ANY)])
    schema = mutated(rng, honest.SCHEMA, _ANY) if rng.random() < 0.3 else honest.SCHEMA
    name = rng.choice(["f"] * 9 + ["", "\ud800", "x" * 999, 7])
    about = {"name": name, "description": rng.choice(["Does f.", rng.choice(_ANY)]), "parameters": schema}
    return as_json({"said": calls(rng), "result": result, "function": about})


def vocabulary(rng: random.Random) -> str:
    """What a parser, a reward and a metric of somebody's own give."""
    own = {"parsed": "a", "earned": {"reward": 1.0, "is_correct": True, "terms": {"x": 1.0}}, "measured": 0.5}
    key = rng.choice([*own])
    changed = rng.choice(_ANY) if rng.random() < 0.5 else mutated(rng, {"": own[key]}, _ANY)
    return as_json({**own, key: changed.get("", changed) if isinstance(changed, dict) else changed})


def mcp(rng: random.Random) -> str:
    """Replies of an MCP server, by what it is asked."""
    replies = copied(honest.MCP)
    for method in rng.sample([*replies], rng.choice([1, 1, 2])):
        status, kind, body = replies[method]
        if rng.random() < 0.8:
            body = mutated(rng, body)
        if rng.random() < 0.2:
            status, kind = (
                rng.choice([200, 202, 404, 500]),
                rng.choice(["text/html", "text/event-stream", ""]),
            )
        replies[method] = [status, kind, now_and_then(rng, 0.2, as_json(body))]
    return as_json({"said": calls(rng), "replies": replies})


def observation(rng: random.Random) -> str:
    """The transitions of an environment, and what the players say."""
    said = [
        answer(rng)[:2_000] if rng.random() < 0.3 else f"<answer>{m}</answer>"
        for m in rng.sample(honest.MOVES, 4)
    ]
    game = rng.choice(["hostile", "hostile", "grid", "tic_tac_toe"])
    shown = [mutated(rng, honest.TRANSITION, _ANY) for _ in range(3)] if game == "hostile" else []
    return as_json(
        {"game": game, "said": said, "transitions": shown, "seed": rng.choice([0, 1, -1, 2**70, "x"])}
    )


def body(rng: random.Random) -> str:
    """A call to the local service."""
    method, path, sent = rng.choice(honest.CALLS)
    if path == "/api/v1/forward_backward":
        return as_json([method, path, "application/x-protobuf", _training(rng).hex()])
    kind = rng.choice(["application/json"] * 15 + ["", "text/plain"])
    if rng.random() < 0.1:
        path = scribbled(rng, path)
    text = "" if sent is None else as_json(mutated(rng, sent) if rng.random() < 0.9 else sent)
    return as_json([rng.choice([method] * 15 + ["PUT", "DELETE"]), path, kind, now_and_then(rng, 0.1, text)])


def _training(rng: random.Random) -> bytes:
    data = train_requests.forward_backward(rng)
    return scribbled_bytes(rng, data) if rng.random() < 0.3 else data
