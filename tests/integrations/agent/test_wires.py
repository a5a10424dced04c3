"""The three APIs of an agent's endpoint: programs with the providers' SDKs and their command lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.local.launcher import LocalService
from tests.training.edge import Training
from tests.trainings import STEP, metrics, train

PAGE = (Path(__file__).parents[3] / "docs" / "language" / "tools.md").read_text("utf-8")
BOTH = pytest.mark.parametrize("streamed", [False, True])
ANTHROPIC = os.environ.get("ANTHROPIC_PYTHON", sys.executable)
"""Interpreter with Anthropic's SDK."""
COMMON = """
import json, sys
prompt = sys.stdin.read()
schema = {"type": "object", "properties": {"what": {"type": "string"}}}
def result(arguments):  # numbers come back as JavaScript has them
    try:
        return json.dumps(json.loads(arguments, parse_int=float), sort_keys=True), f"about {arguments}"
    except ValueError as error:
        return arguments, str(error)
"""
CHAT = """
from openai import OpenAI
client, chat = OpenAI(max_retries=0), [{"role": "user", "content": prompt}]
tools = [{"type": "function", "function": {"name": "price", "description": "Price.", "parameters": schema}}]
while True:
    options = {"model": "any", "messages": chat, "tools": tools}
    text, calls = "", {}
    if STREAMED:
        for chunk in client.chat.completions.create(**options, stream=True):
            for delta in [choice.delta for choice in chunk.choices]:
                text += delta.content or ""
                calls |= {call.index: (call.id, call.function) for call in delta.tool_calls or []}
    else:
        message = client.chat.completions.create(**options).choices[0].message
        text = message.content
        calls = {call.id: (call.id, call.function) for call in message.tool_calls or []}
    entries = [(id, function.name, *result(function.arguments)) for id, function in calls.values()]
    written = [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments, _ in entries]
    chat.append({"role": "assistant", "content": text, **({"tool_calls": written} if written else {})})
    chat += [{"role": "tool", "tool_call_id": id, "content": found} for id, _, _, found in entries]
    if not entries:
        if not AGAIN: break
        chat.append({"role": "user", "content": AGAIN.pop()})
print(text)
"""
CLAUDE = """
from anthropic import Anthropic
client, chat = Anthropic(max_retries=0), [{"role": "user", "content": prompt}]
tools = [{"name": "price", "description": "Price.", "input_schema": schema},
    {"type": "web_search_20250305", "name": "web_search"}]
while True:
    options = {"model": "any", "messages": chat, "tools": tools, "max_tokens": 9, "system": "Be brief."}
    counted = client.messages.count_tokens(model="any", messages=chat).input_tokens
    assert counted > len(prompt) // 5, counted
    if STREAMED:
        with client.messages.stream(**options) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**options)
    assert message.usage.output_tokens > 0
    used = [block for block in message.content if block.type == "tool_use"]
    content, results = [], []
    for block in message.content:
        content.append(block.model_dump(exclude_none=True))
        if block.type == "tool_use":
            arguments, found = result(json.dumps(block.input))
            content[-1]["input"] = json.loads(arguments)
            results.append({"type": "tool_result", "tool_use_id": block.id,
                "content": [{"type": "text", "text": found, "cache_control": {"type": "ephemeral"}}]})
    if message.stop_reason != "tool_use":
        if not AGAIN: break
        results = AGAIN.pop()
    chat += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
print("".join(block.text for block in message.content if block.type == "text"))
"""
RESPONDING = """
from openai import OpenAI
client, items = OpenAI(max_retries=0), [{"role": "user", "content": prompt}]
price = {"type": "function", "name": "price", "description": "Price.", "parameters": schema, "strict": False}
tools = [price, {"type": "web_search"}]
while True:
    options = {"model": "any", "input": items, "tools": tools, "instructions": "Be brief.", "store": False}
    if STREAMED:
        with client.responses.stream(**options) as stream:
            response = stream.get_final_response()
    else:
        response = client.responses.create(**options)
    assert response.status in ("completed", "incomplete") and response.usage.output_tokens > 0
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls and not AGAIN:
        break
    for item in response.output:
        items.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
        if item.type == "function_call":
            items[-1]["arguments"], _ = result(item.arguments)
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": result(call.arguments)[1]}
        for call in calls]
    if not calls:
        items.append({"role": "user", "content": AGAIN.pop()})
print(response.output_text)
"""
PROGRAMS = {"chat completions": CHAT, "messages": CLAUDE, "responses": RESPONDING}
EACH = pytest.mark.parametrize(
    "wire", ["chat completions", pytest.param("messages", marks=pytest.mark.anthropic), "responses"]
)
ANSWERS = (
    "Wait. <tool_call>none</tool_call> "
    '<tool_call>{"name":"price", "arguments":{"what": "pears","n":12345678901234567890}}</tool_call>',
    '<tool_call>{"arguments":{}, "name":"price"}</tool_call><tool_call>{"name":"price","arguments":'
    '{"what":"ä","x":1.0}}</tool_call><tool_call>{"name":"price","arguments":"{pears"}</tool_call>',
)
"""Answers that no chat template writes in the same characters: of three calls and one that cannot be read,
with a number that JavaScript changes and arguments that are no JSON."""


def write_spec(folder: Path, words: Sequence[str]) -> Path:
    """Write the spec of a role that a command plays."""
    spec = folder / "agentic.yaml"
    spec.write_text(f"""rolegraph: 2
name: agentic
data: {{train: countdown, validation: countdown}}
roles:
  solver:
    prompt: "{{{{ task.question }}}}"
    tools: [{{agent: {json.dumps(words)}}}]
    max_calls: 8
    reward: {{length: {{over: 3}}}}
    estimator: grpo
""")
    return spec


def sdk_command(folder: Path, wire: str, *, streamed: bool, again: Sequence[str] = ()) -> list[str]:
    """Write a program of a wire, and return its command; skip without its SDK.

    Args:
        folder: The folder for the program.
        wire: The name of the wire.
        streamed: True for a program that asks for streams.
        again: Further messages of the user, each after an answer without calls.
    """
    python = ANTHROPIC if wire == "messages" else sys.executable
    if wire == "messages" and subprocess.run([python, "-c", "import anthropic"], check=False).returncode:
        pytest.skip("needs anthropic: pip install it, and name the interpreter in ANTHROPIC_PYTHON")
    program = folder / "agent.py"
    program.write_text(f"STREAMED, AGAIN = {streamed}, {[*again]}\n{COMMON}{PROGRAMS[wire]}")
    return [python, str(program)]


def permission(words: Sequence[str]) -> str:
    return f"agent:{shlex.join(words)}"


def assert_goes_on(steps: Sequence[rg.Step]) -> None:
    """Assert that each prompt begins with the tokens of the prompt and the answer before."""
    for before, after in pairwise(steps):
        tokens = [*before.prompt_ids, *before.response_ids]
        assert [*after.prompt_ids[: len(tokens)]] == tokens
    assert all(len(step.logprobs) == len(step.response_ids) > 0 for step in steps)


def trained(training: Training, words: Sequence[str], answers: Sequence[str]) -> list[Sequence[rg.Step]]:
    """Train for a step, and return the steps of each turn.

    The model gives one answer after the other, and then one whose length, and reward, follows from the seed.
    """

    def answer(prompt: str, seed: int) -> str:
        given = sum(answer in prompt for answer in answers)
        return [*answers, "The answer is 7." if seed % 2 else "7"][given]

    training.spec, training.allow = write_spec(training.folder.path.parent, words), (permission(words),)
    training.workflow.answers = answer
    training.run("train.batch_size=1", "train.validation={every: 0, tasks: 1, rollouts: 1}", steps=1)
    assert training.service.asked_for("forward_backward")
    episodes = training.episodes("train", 1)
    assert not [episode.metadata["failures"] for episode in episodes if "failures" in episode.metadata]
    return [episode["solver"][0].steps for episode in episodes]


@BOTH
@EACH
def test_turns_with_tools_keep_every_token(
    training: Training, wire: str, streamed: bool, tmp_path: Path
) -> None:
    turns = trained(training, sdk_command(tmp_path, wire, streamed=streamed), ANSWERS)
    assert len(turns) == 2
    for steps in turns:
        assert_goes_on(steps)
        assert len(steps) == 3
        *_, first, second, a, b, c, last = steps[-1].chat_completions
        assert "7" in last["content"] and len(second["tool_calls"]) == 3
        assert [message["role"] for message in (first, a, b, c)] == ["tool"] * 4
        assert "12345678901234567890" in first["content"]


@EACH
def test_a_program_of_each_wire_is_trained_on_the_local_service(
    service: LocalService, wire: str, tmp_path: Path
) -> None:
    words = sdk_command(tmp_path, wire, streamed=True, again=["Answer again."])
    spec, out = write_spec(tmp_path, words), tmp_path / "trained"
    train(out, str(spec), *STEP, service=service, allow=[permission(words)])
    episodes = [*rg.read_episodes(out / "episodes" / "train-000001.jsonl")]
    assert len(episodes) == 4
    for episode in episodes:
        steps = episode["solver"][0].steps
        assert len(steps) >= 2
        assert_goes_on(steps)
    assert metrics(out)


def test_claude_code_takes_two_turns_with_tools(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = re.findall(r"- agent: >-\n(.*?)\n +timeout", PAGE, re.DOTALL)[0]
    answers = (
        'Wait. <tool_call>{"name":"Bash","arguments":{"command":"echo 3 >a.txt","timeout":5e3}}</tool_call>',
        '<tool_call>{"name":"Read","arguments":{"file_path":"a.txt"}}</tool_call>'
        '<tool_call>{"name":"Bash","arguments":{"command":"ls",  "description":"ä"}}</tool_call>',
    )
    for steps in played(training, "claude", shlex.split(command), answers, tmp_path, monkeypatch):
        assert [message["role"] for message in steps[-1].chat_completions][-6:] == [
            *("assistant", "tool"),
            *("assistant", "tool", "tool"),
            "assistant",
        ]
        assert "a.txt" in steps[-1].chat_completions[-2]["content"]


def test_codex_takes_two_turns_with_tools(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codex.sh").write_text(re.findall(r"```sh\n(export CODEX_HOME.*?)```", PAGE, re.DOTALL)[0])
    answers = (
        'Wait. <tool_call>{"name":"exec_command","arguments":{"cmd":"echo 3.0 >a.txt"}}</tool_call>',
        '<tool_call>{"name":"exec_command","arguments":{"cmd":"ls"}}</tool_call>'
        '<tool_call>{"name":"exec_command","arguments":{"cmd":"pwd",  "max_output_tokens":100}}</tool_call>',
    )
    words = ["sh", str(tmp_path / "codex.sh")]
    for steps in played(training, "codex", words, answers, tmp_path, monkeypatch):
        assert "a.txt" in steps[-1].chat_completions[-3]["content"]
        assert "rolegraph-agent-" in steps[-1].chat_completions[-2]["content"]


def played(
    training: Training,
    program: str,
    words: Sequence[str],
    answers: Sequence[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Sequence[rg.Step]]:
    """Train for a step on a coding agent, as `trained` does, and assert that its tokens go on and that it
    writes nothing into the home folder; skip where the program is not on the PATH."""
    if shutil.which(program) is None:
        pytest.skip(f"needs {program} on the PATH")
    home = folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    turns = trained(training, words, answers)
    for steps in turns:
        assert len(steps) == 3
        assert_goes_on(steps)
    assert not [*home.iterdir()]
    return turns
