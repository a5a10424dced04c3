"""Agent programs as roles: real programs with OpenAI's client, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

import rolegraph as rg
from rolegraph.engine.errors import SpecError
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import ENVIRONMENT
from tests.forks import ForkedCommand
from tests.models.edges import chat_answer, serving
from tests.trainings import STEP, metrics, train
from tests.waiting import soon

HEAD = """
import json, os, sys, time
from openai import OpenAI
client, chat = OpenAI(max_retries=0), [{"role": "user", "content": sys.stdin.read()}]
def ask(**options):
    answer = client.chat.completions.create(model="any", messages=chat, **options).choices[0].message
    chat.append(answer.model_dump(exclude_none=True))
    return answer
"""
TWICE = """
ask()
chat.append({"role": "user", "content": "Answer again."})
print(ask().content)
"""
WITH_A_TOOL = """
tool = {"type": "function", "function": {"name": "price", "description": "Price of a thing.", "parameters": {
    "type": "object", "properties": {"what": {"type": "string"}}}}}
answer = ask(tools=[tool])
for call in answer.tool_calls or []:
    result = str(len(json.loads(call.function.arguments)["what"]))
    chat.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(ask(tools=[tool]).content)
"""
STREAMED = """
events = client.chat.completions.create(
    model="any", messages=chat, stream=True, stream_options={"include_usage": True})
text, used = "", None
for event in events:
    text += "".join(choice.delta.content or "" for choice in event.choices)
    used = event.usage or used
print(f"{text} ({used.completion_tokens})")
"""
ANEW = """
ask()
chat[:] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Begin anew."}]
print(ask().content)
"""
Answer = Callable[[dict[str, Any]], Response]


def write(folder: Path, program: str, *, calls: int = 4, options: str = "", role: str = "") -> Path:
    """Write an agent program, and the spec of a role that runs the program."""
    (folder / "agent.py").write_text(HEAD + program)
    spec = folder / "agentic.yaml"
    spec.write_text(f"""rolegraph: 2
name: agentic
data: {{train: countdown, validation: countdown}}
roles:
  solver:
    prompt: "{{{{ task.question }}}}"
    tools: [{{agent: {json.dumps(command(folder))}{options}}}]
    max_calls: {calls}
    reward: {{length: {{over: 3}}}}
    estimator: grpo
{role}""")
    return spec


def command(folder: Path) -> list[str]:
    return [sys.executable, str(folder / "agent.py")]


def permission(folder: Path) -> str:
    return f"agent:{shlex.join(command(folder))}"


def play(spec: Path, answer: Answer) -> tuple[rg.Episode, list[dict[str, Any]]]:
    """Run one episode, and return it with the requests that reached the model."""
    return start(spec, answer, permission(spec.parent))


def start(spec: Path, answer: Answer, *allowed: str) -> tuple[rg.Episode, list[dict[str, Any]]]:
    flow = rg.load(spec, allow=allowed)

    async def one(base_url: str) -> rg.Episode:
        async with flow.open(model="openai:tiny", base_url=base_url) as run:
            (episode,) = [episode async for episode in run.stream("validation", limit=1, rollouts=1)]
            return episode

    with serving(answer) as endpoint:
        return asyncio.run(one(endpoint.base_url)), endpoint.bodies


def failure(episode: rg.Episode) -> Any:
    (found,) = episode.metadata["failures"]
    return found


def is_alive(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def counted(body: dict[str, Any]) -> Response:
    return chat_answer(
        f"answer to {len(body['messages'])}", usage={"prompt_tokens": 7, "completion_tokens": 5}
    )


def test_each_call_of_the_program_is_a_step_and_its_output_the_answer(tmp_path: Path) -> None:
    episode, bodies = play(write(tmp_path, TWICE), counted)
    (trajectory,) = episode.trajectories
    assert [step.model_response for step in trajectory.steps] == ["answer to 1", "answer to 3"]
    assert [step.metadata["call"] for step in trajectory.steps] == [1, 2]
    assert trajectory.steps[-1].action == "answer to 3"
    assert (trajectory.reward, episode.is_correct) == (1.0, True)
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[0]["messages"][0]["content"].startswith("Use ")


def test_the_spec_samples_whatever_the_program_asks_for(tmp_path: Path) -> None:
    spec = write(tmp_path, "print(ask(temperature=0.1, max_tokens=2, top_p=0.5).content)")
    spec.write_text(spec.read_text() + "sampling: {temperature: 0.7, max_tokens: 33}\n")
    _, (body,) = play(spec, counted)
    assert (body["temperature"], body["max_tokens"], body.get("top_p", 1.0)) == (0.7, 33, 1.0)


def test_functions_of_the_program_reach_the_model_and_their_results_too(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Response:
        if body["messages"][-1]["role"] == "tool":
            return chat_answer(f"it costs {body['messages'][-1]['content']}")
        function = {"name": "price", "arguments": '{"what": "pears"}'}
        return chat_answer(
            None, message={"tool_calls": [{"id": "c1", "type": "function", "function": function}]}
        )

    episode, bodies = play(write(tmp_path, WITH_A_TOOL), answer)
    assert episode["solver"][0].action == "it costs 5"
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["price"]
    assert bodies[1]["messages"][-1]["tool_call_id"] == "c1"


def test_each_call_of_a_run_has_an_id_of_its_own(tmp_path: Path) -> None:
    program = """
tool = {"type": "function", "function": {"name": "price"}}
ids = []
for _ in range(2):
    calls = ask(tools=[tool]).tool_calls
    ids += [call.id for call in calls]
    chat += [{"role": "tool", "tool_call_id": call.id, "content": call.id} for call in calls]
print(len({*ids}), [message["content"] for message in chat if message["role"] == "tool"] == ids)
"""
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": "{}"}}
    episode, bodies = play(
        write(tmp_path, program), lambda _: chat_answer(None, message={"tool_calls": [call, call]})
    )
    assert episode["solver"][0].action == "4 True"
    results = [message["content"] for message in bodies[1]["messages"] if message["role"] == "tool"]
    assert len({*results}) == 2


@pytest.mark.parametrize(
    ("id", "arguments", "is_same"),
    [
        ("toolu_9", '{"what": "pears", "x": 1.0, "n": 12345678901234567890}', True),
        ("c1", '{"n":12345678901234567000,"x":1,"what":"pears"}', True),
        ("toolu_9", '{"n":12345678901234567000,"x":1,"what":"pears"}', True),
        ("c1", '{"what": "[shortened]"}', False),
        ("c1", '{"what": "pears", "x": true, "n": 12345678901234567890}', False),
    ],
)
def test_a_chat_goes_on_from_calls_with_equal_arguments(
    id: str, arguments: str, is_same: bool, tmp_path: Path
) -> None:
    program = f"""
ask(tools=[{{"type": "function", "function": {{"name": "price"}}}}])
chat[-1]["tool_calls"][0] |= {{"id": {id!r}, "function": {{"name": "price", "arguments": {arguments!r}}}}}
chat.append({{"role": "tool", "tool_call_id": {id!r}, "content": "3"}})
ask()
"""
    sampled = '{"what": "pears", "x": 1.0, "n": 12345678901234567890}'
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": sampled}}
    _, bodies = play(write(tmp_path, program), lambda _: chat_answer(None, message={"tool_calls": [call]}))
    (sent,) = bodies[1]["messages"][1]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == json.loads(sampled if is_same else arguments)
    assert sent["id"] == bodies[1]["messages"][2]["tool_call_id"] == ("c1" if is_same else id)


@pytest.mark.parametrize(("program", "action"), [(STREAMED, "answer to 1 (5)"), (ANEW, "answer to 2")])
def test_streams_and_new_chats(program: str, action: str, tmp_path: Path) -> None:
    episode, _ = play(write(tmp_path, program), counted)
    assert episode["solver"][0].action == action


@pytest.mark.parametrize(
    ("program", "calls", "options", "part"),
    [
        ("sys.exit('no licence')", 4, "", "no licence"),
        (TWICE, 1, "", "`max_calls`"),
        ("time.sleep(600)", 4, ", timeout: 0.5", "did not end"),
        ("ask()\nprint('x' * 500_000)", 4, "", "tool_text"),
        ("print('No model, no answer.')", 4, "", "never asked its model"),
    ],
)
def test_a_program_that_fails_fails_its_turn(
    program: str, calls: int, options: str, part: str, tmp_path: Path
) -> None:
    episode, _ = play(write(tmp_path, program, calls=calls, options=options), counted)
    assert failure(episode)["name"] == "tool_error"
    assert part in failure(episode)["message"]


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    spec = write(tmp_path, "")
    spec.write_text(spec.read_text().replace(json.dumps(command(tmp_path)), "[no-such-program]"))
    episode, _ = start(spec, counted, "agent:no-such-program")
    assert failure(episode)["name"] == "tool_error"


def test_an_error_of_the_model_ends_the_program_by_its_own_name(tmp_path: Path) -> None:
    def refuse(body: dict[str, Any]) -> Response:
        return Response('{"error": {"message": "no such model"}}', 404)

    episode, _ = play(write(tmp_path, "try: ask()\nexcept Exception: time.sleep(600)"), refuse)
    assert failure(episode)["name"] == "model_error"


def test_the_program_sees_allowed_variables_and_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "PGPASSWORD", "GITHUBTOKEN", "MY_SETTING", "ALLOWED_KEY"):
        monkeypatch.setenv(name, f"canary of {name}")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:canary@proxy.example:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    program = """
open("mine.txt", "w").write("x")
ask()
seen = sorted(name for name, value in os.environ.items() if "canary" in value)
print(json.dumps({"here": os.listdir("."), "seen": seen, "proxy": os.environ.get("http_proxy")}))
"""
    spec = write(tmp_path, program)
    action = {"here": ["mine.txt"], "seen": [], "proxy": "http://proxy.example:3128"}
    assert json.loads(play(spec, counted)[0]["solver"][0].action) == action
    episode, _ = start(spec, counted, permission(tmp_path), "env:ALLOWED_KEY")
    assert json.loads(episode["solver"][0].action) == {**action, "seen": ["ALLOWED_KEY"]}


LEFT = """
import subprocess
ask()
one = subprocess.Popen(["sleep", "600"])  # holds the output
other = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(PIDS, "a").write(f"{os.getpid()} {one.pid} {other.pid} {os.getcwd()}\\n")
print("4", flush=True)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, processes of other groups stay")


@linux
def test_an_answer_counts_and_no_process_or_folder_stays(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    episode, _ = play(write(tmp_path, LEFT.replace("PIDS", repr(str(file)))), counted)
    assert (episode["solver"][0].action, episode.metadata.get("failures", [])) == ("4", [])
    *pids, folder = file.read_text().split()
    assert not any(map(is_alive, map(int, pids)))
    assert not Path(folder).exists()


@linux
def test_a_killed_command_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    spec = write(tmp_path, LEFT.replace("PIDS", repr(str(file))) + "time.sleep(600)")
    words = ("run", str(spec), "--allow", permission(tmp_path), "--limit", "1", "--out", "run")
    with serving(counted) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        started = ForkedCommand((*words, *where), cwd=tmp_path, env={**ENVIRONMENT, "OPENAI_API_KEY": "k"})
        assert soon(lambda: file.exists() and file.read_text().endswith("\n"))
        started.send_signal(signal.SIGKILL)
        started.wait()
    *pids, folder = file.read_text().split()
    assert soon(lambda: not any(map(is_alive, map(int, pids))) and not Path(folder).exists())


def test_the_endpoint_serves_this_run_alone(tmp_path: Path) -> None:
    program = """
import httpx
url = os.environ["OPENAI_BASE_URL"]
body = {"model": "any", "messages": chat}
ask()
print(httpx.post(f"{url}/chat/completions", json=body).status_code, httpx.get(f"{url}/models").status_code)
"""
    episode, bodies = play(write(tmp_path, program), counted)
    assert (episode["solver"][0].action, len(bodies)) == ("401 401", 1)


def test_the_folder_of_the_spec_is_written_for_its_place(tmp_path: Path) -> None:
    spec = write(tmp_path, "print(ask().content)")
    words = [sys.executable, "{folder}/agent.py"]
    spec.write_text(spec.read_text().replace(json.dumps(command(tmp_path)), json.dumps(words)))
    episode, _ = play(spec, counted)
    assert episode["solver"][0].action == "answer to 1"


def test_the_prompt_as_an_argument(tmp_path: Path) -> None:
    spec = write(tmp_path, "ask()\nprint(sys.argv[1][:4], chat[0]['content'] == '')")
    words = [*command(tmp_path), "{prompt}"]
    spec.write_text(spec.read_text().replace(json.dumps(command(tmp_path)), json.dumps(words)))
    episode, _ = start(spec, counted, f"agent:{shlex.join(words)}")
    assert episode["solver"][0].action == "Use  True"


def test_an_agent_program_runs_only_where_its_very_command_is_allowed(tmp_path: Path) -> None:
    spec = write(tmp_path, TWICE)
    for allowed in ([], ["python"], [f"agent:{sys.executable}"], [f"{permission(tmp_path)} --more"]):
        with pytest.raises(SpecError) as refused:
            rg.run(rg.load(spec, model="openai:tiny", allow=allowed), limit=1, out=tmp_path / "run")
        assert [fault.code for fault in refused.value.diagnostics] == ["permission"]


def test_an_interrupted_run_leaves_no_program_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    spec = write(tmp_path, program)
    words: Sequence[str] = ("run", str(spec), "--allow", permission(tmp_path), "--limit", "2", "--out", "run")
    with serving(counted) as endpoint:
        where = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        started = ForkedCommand((*words, *where), cwd=tmp_path, env={**ENVIRONMENT, "OPENAI_API_KEY": "k"})
        assert soon(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        started.send_signal(signal.SIGINT)
        started.wait()
    assert soon(lambda: not any(map(is_alive, map(int, pids.read_text().split()))))


def test_a_chat_goes_on_token_for_token_and_is_trained_on(service: LocalService, tmp_path: Path) -> None:
    spec = write(tmp_path, TWICE)
    allow = [permission(tmp_path)]
    train(tmp_path / "trained", str(spec), *STEP, service=service, allow=allow)
    file = tmp_path / "trained" / "episodes" / "train-000001.jsonl"
    episodes = [*rg.read_episodes(file)]
    assert len(episodes) == 4
    for episode in episodes:
        first, second = episode["solver"][0].steps
        before = [*first.prompt_ids, *first.response_ids]
        assert [*second.prompt_ids][: len(before)] == before
        assert all(len(step.logprobs) == len(step.response_ids) > 0 for step in (first, second))
    assert metrics(tmp_path / "trained")
