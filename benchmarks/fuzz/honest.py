"""Honest inputs of every kind, small and whole: what hostile ones are made from."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

from rolegraph.local.launcher import BASE_MODEL

ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "q", "n": 1, "nums": [3, 4], "target": 7},
    {"id": "b", "question": "r", "n": 2, "nums": [1, 2], "target": 3},
]
PASSAGES = [
    {"id": "1", "title": "Everest", "text": "Everest is 8,849 m high."},
    {"id": "2", "title": "K2", "text": "K2 is 8,611 m high."},
]
TESTS = {
    "answers": "x.answers.jsonl",
    "tasks": 2,
    "rollouts": 1,
    "seed": 0,
    "prompts": "same",
    "expect": {
        "figures": {"correct": 1, "judge_acc": {"at_least": 0.5, "at_most": 1}},
        "failures": {"solver": 0, "judge/timeout": 1},
        "tokens": {"prompts": 100, "answers": 100},
        "tasks": {"t": {"correct": True, "action": {"solver 2": "a"}, "reward": {"judge": {"equals": 1}}}},
    },
}


class Whole(list[Any]):
    """A list that is a file, where other lists are files of lines."""


STEP = {
    "prompt_ids": [1],
    "response_ids": [2, 3],
    "logprobs": [-0.5, -0.1],
    "chat_completions": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}],
    "thought": "",
    "action": {"a": [1]},
    "model_response": "a",
    "reward": 0.0,
    "done": True,
    "advantage": [0.5, 0.5],
    "weight_version": 1,
    "info": {"round": 1, "usage": {"prompt_tokens": 1}, "credit": 1.0, "group": {"round": 1}, "seconds": 0.1},
}
INFO = {"index": 1, "is_correct": True, "signals": {"a": 1.0}, "failure": {"name": "timeout", "message": "m"}}
EPISODE = {
    "id": "t:0",
    "task": {"id": "t", "question": "?"},
    "termination_reason": "env_done",
    "is_correct": True,
    "trajectories": [{"uid": "u", "name": "solver", "steps": [STEP], "reward": 1.0, "info": INFO}],
    "metrics": {"judge_acc": 1.0},
    "info": {"task_id": "t", "rollout": 0, "failures": [{"role": "solver", "index": 1, "name": "timeout"}]},
}
_SPEC = "rolegraph: 2\nname: x\nroles:\n  solver: {count: 2, prompt: '{{ task.question }}'}\n"
_ROLE = {"estimator": "grpo", "loss": "ppo", "trainable": True, "policies": ["main"]}
_INFO = {
    "name": "x",
    "hash": "1f",
    "version": "2",
    "command": "rolegraph run x",
    "started": "2026-01-01T00:00:00Z",
    "finished": "2026-01-01T01:00:00Z",
    "resumed": [{"time": "2026-01-01T00:30:00Z", "command": "--resume"}],
    "model": "m",
    "seed": 0,
    "roles": {"solver": _ROLE},
    "metrics": ["judge_acc"],
    "hidden": ["target"],
    "templates": {"solver": "{{ task.question }}"},
    "figures": {"episodes": 2, "correct": 0.5, "failures/solver/timeout": 1},
}
_ENTRY = {
    "offset": 0,
    "length": 9,
    "task": "t",
    "rollout": 0,
    "is_correct": True,
    "metrics": {"judge_acc": 1.0},
    "roles": {"solver": {"count": 1, "rewards": [1.0], "failures": {"timeout": 1}}},
}
_OTHER = {**EPISODE, "id": "t:1", "info": {"task_id": "t", "rollout": 1}}
RUN: dict[str, Any] = {
    "run.json": {**_INFO, "kind": "run", "limit": 1, "rollouts": 2},
    "spec.yaml": _SPEC,
    "episodes.jsonl": [EPISODE, _OTHER],
    "episodes.index": [_ENTRY],
}
_METRICS = {
    "step": 1,
    "judge_acc": 0.5,
    "episode/judge_acc": 0.5,
    "validation/judge_acc": 0.5,
    "reward/solver/mean": 0.5,
    "batch/solver/fractions/effective": 0.5,
    "kl/solver": 0.01,
    "failures/solver/timeout": 2,
    "time/step": 1.5,
    "tokens/response": 100,
}
SAVED = {"version": 1, "state": "tinker://a/weights/b", "sampler": "tinker://a/sampler_weights/b"}
TRAINING: dict[str, Any] = {
    "run.json": {**_INFO, "kind": "train", "steps": 2},
    "spec.yaml": _SPEC,
    "metrics.jsonl": [{**_METRICS, "step": 0}, _METRICS, {**_METRICS, "step": 2}],
    "checkpoints.jsonl": [
        {"step": 2, "policies": {"main": SAVED}, "best": True, "validation": {"judge_acc": 0.5}}
    ],
    "controls.json": Whole(
        [{"name": "base", "figure": "judge_acc", "mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}]
    ),
    "episodes/train-000001.jsonl": [EPISODE, _OTHER],
    "episodes/validation-000002.jsonl": [EPISODE],
}
OWN_SPEC = """\
rolegraph: 2
name: x
model: {provider: openai, name: tiny, base_url: $stranger/v1}
data: {train: tasks.jsonl, validation: tasks.jsonl}
roles:
  solver:
    count: 2
    prompt: "{{ task.question }}"
    parser: {tag: answer}
    reward: countdown
    estimator: grpo
episode: {metrics: {judge_acc: all(solver.right)}}
train: {steps: 2, batch_size: 2}
"""
"""A spec of the user, whose address a stranger wrote."""
_OWN = {
    **_INFO,
    "hash": "$hash",
    "finished": None,
    "spec": "own/x.yaml",
    "model_flag": "openai:tiny",
    "base_url": "$url/v1",
    "imports": [],
    "allowed": [],
    "overrides": [],
}
_OWN_RUN = {**_OWN, "kind": "run", "split": "train", "limit": 2, "rollouts": 2}
_BEFORE = {
    **EPISODE,
    "id": "a:0",
    "task": ROWS[0],
    "info": {"task_id": "a", "rollout": 0},
}
RESUMED: dict[str, Any] = {"run.json": _OWN_RUN, "spec.yaml": OWN_SPEC, "episodes.jsonl": [_BEFORE]}
"""A run of that spec with one of its four episodes; names with $ stand for what the user's machine has."""
_UNNAMED = {**_OWN_RUN, "hash": "$plain", "model_flag": None, "base_url": None}
UNNAMED: dict[str, Any] = {**RESUMED, "run.json": _UNNAMED}
"""The same by a stranger, who leaves the address to the spec."""
_OWN_TRAINING = {
    **_OWN,
    "kind": "train",
    "hash": "$trained",
    "model_flag": "tinker:tiny",
}
RETRAINED: dict[str, Any] = {**TRAINING, "run.json": {**_OWN_TRAINING, "steps": 2}}
IMPORTING: dict[str, Any] = {**RESUMED, "run.json": {**_UNNAMED, "imports": ["$code"]}}
"""A run by a stranger, who asks for code to be imported."""
ASKING: dict[str, Any] = {**RETRAINED, "run.json": {**_OWN_TRAINING, "base_url": "$stranger", "steps": 2}}
"""A training by a stranger, who asks for the key."""
_SWEEP = {**_OWN_RUN, "overrides": ["seed=1,2"], "rollouts": 1}
_BASE_RUN = {**_OWN_RUN, "split": "validation", "rollouts": 1}
_MEAN = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 2}
EVALUATION = {
    "figures": {"judge_acc": {"base": _MEAN, "checkpoint": _MEAN, "difference": _MEAN}},
    "tasks": 2,
    "episodes": 2,
    "sides": {"base": {"asked": 2, "answered": 2, "failures": {"solver/timeout": 1}, "messages": {}}},
}
SWEPT: dict[str, Any] = {
    "sweep.json": _SWEEP,
    "seed=1/run.json": {**_OWN_RUN, "rollouts": 1, "seed": 1},
    "seed=1/spec.yaml": OWN_SPEC,
    "seed=1/episodes.jsonl": [_BEFORE],
}
EVALUATED: dict[str, Any] = {
    "sweep.json": {**_SWEEP, "kind": "eval", "checkpoint": "run/best"},
    "seed=1/evaluation.json": EVALUATION,
    "seed=1/base/run.json": {**_BASE_RUN, "seed": 1},
    "seed=1/base/episodes.jsonl": [_BEFORE],
    "seed=1/checkpoint/run.json": {**_BASE_RUN, "seed": 1, "checkpoint": "run/best"},
}
QUERY = {
    "role": "solver",
    "failure": "any",
    "correct": "yes",
    "low": "0",
    "high": "1",
    "task": "t",
    "text": "answer",
    "split": "train",
    "step": "1",
    "sort": "low",
    "from": "0",
}

_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "tiny",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "<answer>1</answer>",
                "tool_calls": [_CALL],
                "reasoning": "r",
            },
            "finish_reason": "stop",
            "token_ids": [3, 4],
            "logprobs": {"content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]},
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2},
}
REFUSAL = {"error": {"message": "no", "type": "invalid_request_error", "param": "model", "code": "not_found"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
_RPC = {"jsonrpc": "2.0", "id": 0}
MCP: dict[str, Any] = {
    "initialize": [
        200,
        "application/json",
        {
            **_RPC,
            "result": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
        },
    ],
    "tools/list": [
        200,
        "application/json",
        {**_RPC, "result": {"tools": [{"name": "f", "description": "Does f.", "inputSchema": SCHEMA}]}},
    ],
    "tools/call": [
        200,
        "application/json",
        {
            **_RPC,
            "result": {
                "content": [
                    {"type": "text", "text": "done"},
                    {"type": "resource", "resource": {"uri": "file:///a", "text": "b"}},
                    {"type": "resource_link", "uri": "file:///a", "name": "a"},
                    {"type": "image", "data": "AA==", "mimeType": "image/png"},
                ],
                "structuredContent": {"a": 1},
                "isError": False,
            },
        },
    ],
}
TRANSITION = {
    "observations": {"0": "the board", "1": "the board"},
    "rewards": {"0": 0.5},
    "done": False,
    "info": {"reason": "r"},
}
MOVES = ["R", "RRDD", "right", "5", "1", "9", "0", "", "-1", "٣", "[1]", "UUUU", "x" * 5_000]

_SESSION, _MODEL = {"session_id": "$session"}, {"model_id": "$model"}
_PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
_PARAMS = {"max_tokens": 4, "seed": 1, "stop": ["a"], "temperature": 1.0, "top_k": -1, "top_p": 1.0}
_ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
_SAVE = {
    **_MODEL,
    "path": "saved",
    "seq_id": 1,
    "ttl_seconds": 60,
    "overwrite": True,
    "user_metadata": {"a": "b"},
}
_CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ],
    "max_tokens": 4,
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
    "stop": ["a"],
    "logprobs": True,
    "return_token_ids": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": SCHEMA}}
    ],
    "tool_choice": "auto",
}
_ASKED = [
    *_CHAT["messages"],
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "name": "f", "tool_call_id": "1", "content": "2"},
]
_V = "/api/v1"
_RUN = f"{_V}/training_runs/$model"
CALLS: list[tuple[str, str, Any]] = [
    ("POST", f"{_V}/create_session", {"user_metadata": {"process": "1"}}),
    ("POST", f"{_V}/session_heartbeat", _SESSION),
    ("POST", f"{_V}/sessions/$session/finish", {}),
    (
        "POST",
        f"{_V}/create_model",
        {
            **_SESSION,
            "model_seq_id": 1,
            "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1, "train_mlp": True},
        },
    ),
    ("POST", f"{_V}/get_info", _MODEL),
    ("POST", f"{_V}/unload_model", _MODEL),
    *[("POST", f"{_V}/forward_backward", None)] * 4,
    *[("POST", f"{_V}/optim_step", {**_MODEL, "seq_id": 2, "adam_params": _ADAM})] * 2,
    ("POST", f"{_V}/save_weights", _SAVE),
    ("POST", f"{_V}/save_weights_external", _SAVE),
    ("POST", f"{_V}/save_weights_for_sampler", {**_SAVE, "kind": "snapshot", "sampling_session_seq_id": 3}),
    ("POST", f"{_V}/load_weights", {**_MODEL, "path": "$weights", "optimizer": True, "seq_id": 3}),
    ("POST", f"{_V}/load_weights", {**_SESSION, "path": "$weights", "model_seq_id": 4}),
    ("POST", f"{_V}/weights_info", {"tinker_path": "$weights"}),
    ("POST", f"{_V}/retrieve_future", {"request_id": "$request"}),
    ("POST", f"{_V}/cancel_future", {"request_id": "$request"}),
    ("POST", f"{_V}/telemetry", {"events": [{"event": "a"}], "session_id": "$session"}),
    (
        "POST",
        f"{_V}/create_sampling_session",
        {**_SESSION, "sampling_session_seq_id": 5, "base_model": "tiny", "model_path": "$sampled"},
    ),
    *[
        (
            "POST",
            f"{_V}/asample",
            {
                "prompt": _PROMPT,
                "sampling_params": _PARAMS,
                "num_samples": 2,
                "sampling_session_id": "$sampler",
                "seq_id": 6,
                "prompt_logprobs": True,
                "topk_prompt_logprobs": 2,
                "prompt_logprobs_last_n": 1,
            },
        )
    ]
    * 3,
    ("GET", f"{_V}/samplers/$sampler", None),
    ("GET", f"{_V}/sessions?limit=10&offset=0", None),
    ("GET", f"{_V}/sessions/$session", None),
    ("GET", f"{_V}/training_runs?limit=1&offset=0", None),
    ("GET", _RUN, None),
    ("GET", f"{_V}/checkpoints?limit=3", None),
    ("GET", f"{_RUN}/checkpoints", None),
    ("DELETE", f"{_RUN}/checkpoints/weights/saved", None),
    ("PUT", f"{_RUN}/checkpoints/weights/saved/ttl", {"ttl_seconds": 60}),
    ("GET", f"{_RUN}/checkpoints/external_weights/saved/external_weights_urls", None),
    ("GET", f"{_V}/files/a/external_weights/b/c?expires=9&signature=0", None),
    *[("POST", "/v1/chat/completions", _CHAT)] * 2,
    *[
        (
            "POST",
            "/v1/chat/completions",
            {**_CHAT, "messages": _ASKED, "stream": False, "stream_options": None},
        )
    ]
    * 3,
    *[
        (
            "POST",
            "/v1/completions",
            {
                "model": "$sampled",
                "prompt": ["a", "b"],
                "max_tokens": 4,
                "n": 2,
                "logprobs": 0,
                "stream": False,
            },
        )
    ]
    * 2,
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/tiny", None),
]


_ADDED = {
    "added_tokens.json": {"<|im_end|>": 675, "<more>": 680},
    "adapter_config.json": {
        "base_model_name_or_path": "rolegraph-base",
        "peft_type": "LORA",
        "r": 4,
        "target_modules": ["q_proj"],
    },
}


_WEIGHTS = "weights/a/sampler_weights/b"
WEIGHTS: dict[str, Any] = {
    f"{_WEIGHTS}/adapter_config.json": {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "$base",
        "r": 2,
        "lora_alpha": 32,
        "target_modules": ["lm_head", "model.layers.0.self_attn.q_proj"],
    },
    f"{_WEIGHTS}/meta.json": {
        "path": SAVED["sampler"],
        "shape": {"rank": 2, "train_attn": True, "train_mlp": True, "train_unembed": True, "seed": 1},
        "base_model": "tiny",
        "base_digest": "$digest",
        "created": "2026-01-01T00:00:00Z",
        "expires": None,
        "user_metadata": {"a": "b"},
        "listed": True,
    },
}
"""Trained weights of a training, but for the tensors."""


@cache
def model_file(name: str) -> str:
    """A file of the base model's folder, or one that a folder may have as well."""
    return json.dumps(_ADDED[name]) if name in _ADDED else (BASE_MODEL / name).read_text()


@cache
def parquet() -> bytes:
    """A table as parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{**ROWS[0], "text": "high"}, {**ROWS[1], "text": "low"}]), file)
    return file.getvalue()
