"""Tests of roles that run a tool: results of their turns, and programs that try to escape."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.compile import Plan, check_file, check_source, compile_file
from rolegraph.engine.errors import ModelError, SpecError, UsageError
from rolegraph.engine.models import Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records import Episode, FailureName, Source
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.vocabulary import Function, Tool, tools
from tests.edge import (
    COUNTDOWN,
    RIGHT,
    WRONG,
    ScriptedModel,
    by_role,
    decided,
    episode,
    limited,
    run_one,
    write_spec,
)
from tests.models.edges import served

Roles = dict[str, dict[str, Any]]


def plan(folder: Path, roles: Roles, loops: dict[str, Any] | None = None, **more: Any) -> Plan:
    """Compile roles with inline prompts, none of them trained."""
    asked = {
        name: role if "run" in role else {**role, "prompt": role.get("prompt", "{{ task.question }}")}
        for name, role in roles.items()
    }
    spec = {"rolegraph": 2, "name": "tools", "data": {"train": "countdown"}, "roles": asked, **more}
    written = decided({**spec, "loops": loops or {}})
    path = write_spec(folder, yaml.safe_dump(written, sort_keys=False))
    return compile_file(path, allow=["python"])


def actions(episode: Episode, role: str) -> list[Any]:
    return [trajectory.action for trajectory in episode[role]]


VOTE: Roles = {"solver": {"count": 3}, "vote": {"needs": "solver", "run": "majority", "reward": "countdown"}}


def test_a_vote_is_a_turn_without_tokens_that_earns_and_decides(tmp_path: Path) -> None:
    voted = plan(tmp_path, VOTE, episode={"correct": "all(vote.right)"})
    answers = {"solver": [WRONG, RIGHT, f" {RIGHT} "]}
    done = run_one(voted, ScriptedModel(by_role(answers)))
    (vote,) = done["vote"]
    (step,) = vote.steps
    assert vote.action == step.model_response == RIGHT
    assert (vote.reward, step.reward, vote.is_correct, done.is_correct) == (1.0, 1.0, True, True)
    assert (step.prompt_ids, step.response_ids, step.logprobs, step.chat_completions) == ((), (), (), ())
    assert step.metadata["tool"] == "majority" and step.metadata["seconds"] >= 0
    groups = Membership().add([done]).groups()
    assert [group.key.role for group in groups] == ["solver"], "what asks no model is in no group"
    assert Episode.from_dict(done.to_dict())["vote"][0].action == RIGHT


def test_a_vote_asks_no_model_and_is_never_trained(tmp_path: Path) -> None:
    voted = plan(tmp_path, VOTE)
    model = ScriptedModel(lambda _: RIGHT)
    run_one(voted, model)
    assert {request.id.node.role for request in model.requests} == {"solver"}
    assert len(voted.endpoints) == 1
    assert [role.name for role in voted.asking] == ["solver"]
    assert not voted.trained
    assert run_one(pickle.loads(pickle.dumps(voted)), ScriptedModel(lambda _: RIGHT)).is_correct


def test_who_failed_does_not_vote(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        if request.id.node.index > 1:
            raise ModelError("down")
        return RIGHT

    assert actions(run_one(plan(tmp_path, VOTE), ScriptedModel(answer)), "vote") == [RIGHT]


def test_a_tool_is_run_again_in_a_replay(tmp_path: Path) -> None:
    voted = plan(tmp_path, VOTE)
    first = run_one(voted, ScriptedModel(by_role({"solver": [WRONG, RIGHT, RIGHT]})))
    again = asyncio.run(episode(voted, limited(voted, Replay.from_episodes([first]))))  # pyright: ignore[reportArgumentType]
    assert actions(again, "vote") == actions(first, "vote")


WRITTEN: Roles = {
    "solver": {"count": 2},
    "draft": {"needs": "solver", "run": {"text": "{% for one in solver %}{{ one.action }};{% endfor %}"}},
    "reader": {"needs": "draft", "prompt": "{{ draft.action }}"},
}


def test_a_tool_writes_a_text_from_what_others_said(tmp_path: Path) -> None:
    model = ScriptedModel(by_role({"solver": ["a {{ 1 }}", "b"], "reader": "yes"}))
    done = run_one(plan(tmp_path, WRITTEN), model)
    assert actions(done, "draft") == ["a {{ 1 }};b;"], "what a model wrote is data, no template"
    assert done["reader"][0].steps[0].chat_completions[0]["content"] == "a {{ 1 }};b;"


def test_a_text_sees_no_label_and_no_model_writes_with_it(tmp_path: Path) -> None:
    leaking = {**WRITTEN, "draft": {**WRITTEN["draft"], "run": {"text": "{{ task.solution }}"}}}
    with pytest.raises(SpecError, match=r"task\.solution would leak the label"):
        plan(tmp_path, leaking)
    with pytest.raises(SpecError, match="text writes down a role's inputs and cannot be called by a model"):
        plan(tmp_path, {"solver": {"tools": [{"text": "Hi"}], "max_calls": 2}})


PARSED: Roles = {
    "solver": {},
    "table": {
        "needs": "solver",
        "run": {"text": "{{ solver.action }}"},
        "parser": {"json": {}, "default": {"of": 0}},
    },
    "reader": {"needs": "table", "prompt": "{{ table.action.of }} {{ table.response }}"},
}


@pytest.mark.parametrize(
    ("answer", "action", "failures"),
    [('So: {"of": [7, 8]}', {"of": [7, 8]}, []), ("none", {"of": 0}, ["malformed_output"])],
)
def test_a_parser_reads_the_result_of_a_tool(
    tmp_path: Path, answer: str, action: object, failures: list[str]
) -> None:
    done = run_one(plan(tmp_path, PARSED), ScriptedModel(by_role({"solver": answer, "reader": "yes"})))
    assert actions(done, "table") == [action]
    assert [failure["name"] for failure in done.metadata.get("failures", ())] == failures
    shown = done["reader"][0].steps[0].chat_completions[0]["content"]
    assert shown == f"{action['of']} {answer}"  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(("value", "text"), [("6 / 4", "1.5"), ("6 / 3", "2"), ("1 / 0", "")])
def test_a_result_that_is_no_text_is_parsed_as_json_and_a_failed_tool_gives_the_default(
    tmp_path: Path, value: str, text: str
) -> None:
    parser = {"regex": "(.+)", "default": "none"}
    done = run_one(
        plan(tmp_path, {"sum": {"run": {"calculator": value}, "parser": parser}}), ScriptedModel(str)
    )
    assert actions(done, "sum") == [text or "none"]
    assert [failure["name"] for failure in done.metadata.get("failures", ())] == ["tool_error"] * (not text)


def test_a_failed_tool_rates_nobody(tmp_path: Path) -> None:
    rater = {"needs": "solver", "run": {"calculator": "1 / 0"}}
    for parser, reward in (({"parser": {"json": {}, "default": 5}}, None), ({}, None)):
        rated = {"solver": {"reward": "number(rater.action)"}, "rater": {**rater, **parser}}
        assert run_one(plan(tmp_path, rated), ScriptedModel(lambda _: "7"))["solver"][0].reward == reward


def test_a_tool_with_a_parser_is_the_same_in_a_replay_and_in_another_process(tmp_path: Path) -> None:
    parsed = plan(tmp_path, PARSED)
    first = run_one(parsed, ScriptedModel(by_role({"solver": '{"of": 1}', "reader": "yes"})))
    again = pickle.loads(pickle.dumps(parsed))
    replayed = asyncio.run(episode(again, limited(again, Replay.from_episodes([first]))))  # pyright: ignore[reportArgumentType]
    assert actions(replayed, "table") == actions(first, "table") == [{"of": 1}]


SCORED: Roles = {
    "solver": {"count": 3},
    "scorer": {"needs": {"solver": "each"}, "count": 2, "prompt": "{{ solver.action }}", "parser": "json"},
    "best": {"needs": ["solver", "scorer"], "run": {"argmax": "solver", "by": "scorer.score"}},
    "two": {"needs": ["solver", "scorer"], "run": {"top": "solver", "by": "scorer.score", "k": 2}},
}


def test_scores_are_paired_by_lineage_a_mean_of_several_and_the_unscored_come_last(tmp_path: Path) -> None:
    scores = ["nothing", "nothing", '{"score": 1}', '{"score": 3}', '{"score": 9}', '{"score": -8}']
    model = ScriptedModel(by_role({"solver": ["a", "b", "c"], "scorer": scores}))
    done = run_one(plan(tmp_path, SCORED), model)
    assert actions(done, "best") == ["b"]
    assert actions(done, "two") == [["b", "c"]]


def test_who_says_as_most_do_is_told_by_equal_and_chosen_by_argmax(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"count": 3},
        "result": {"needs": {"solver": "each"}, "prompt": "{{ solver.action }}"},
        "vote": {"needs": "result", "run": "majority"},
        "agrees": {"needs": {"result": "each", "vote": "all"}, "run": "equal"},
        "best": {"needs": ["solver", "agrees"], "run": {"argmax": "solver", "by": "agrees"}},
    }
    model = ScriptedModel(by_role({"solver": ["a", "b", "c"], "result": ["1", "2", "2"]}))
    assert actions(run_one(plan(tmp_path, roles), model), "best") == ["b"]


def test_pairs_are_those_of_a_branch_and_in_a_loop_of_a_round(tmp_path: Path) -> None:
    roles: Roles = {
        "draft": {"count": 2},
        "editor": {"needs": {"draft": "each"}, "count": 2, "prompt": "{{ draft.action }}"},
        "judge": {"needs": {"draft": "each"}, "prompt": "{{ draft.action }}", "parser": "number"},
        "best": {
            "needs": {"editor": "history", "judge": "history"},
            "run": {"argmax": "editor", "by": "judge"},
        },
    }

    def answer(request: Request) -> str:
        node = request.id.node
        return str(10 * node.round + node.index) if node.role == "judge" else f"{node.index}.{node.round}"

    loop = {"l": {"roles": ["draft", "editor", "judge"], "times": 2}}
    done = run_one(plan(tmp_path, roles, loop), ScriptedModel(answer))
    assert actions(done, "best") == ["3.2"], "of the second draft's editors, in the last round"


def test_a_loop_ends_where_all_agree(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"count": 2},
        "agreed": {"needs": "solver", "run": "equal"},
    }
    loop = {"l": {"roles": ["solver", "agreed"], "times": 5, "until": "agreed.action"}}

    def answer(request: Request) -> str:
        node = request.id.node
        return "same" if node.round == 3 else str(node.index)

    done = run_one(plan(tmp_path, roles, loop), ScriptedModel(answer))
    assert [step.action for step in done["agreed"][0].steps] == [False, False, True]
    assert [step.round for step in done["agreed"][0].steps] == [1, 2, 3]


def test_two_answers_are_the_same_by_a_reward(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    vote = {"needs": "solver", "run": {"majority": {"equal": "math"}}}
    mathematical = plan(tmp_path, {"solver": {"count": 3}, "vote": vote})
    model = ScriptedModel(by_role({"solver": ["7", "1/2", "0.5"]}))
    assert actions(run_one(mathematical, model), "vote") == ["1/2"]


# tools with a function


def computing(value: str, **role: Any) -> Roles:
    calc: dict[str, Any] = {"needs": {"solver": "each"}, "run": {"calculator": value}, **role}
    return {"solver": {"count": 2}, "calc": calc, "after": {"needs": "calc", "prompt": AFTER}}


AFTER = "{% for c in calc %}{{ c.action }};{% endfor %}"


def test_the_value_is_a_template_of_what_the_instance_sees(tmp_path: Path) -> None:
    made = plan(tmp_path, computing("{{ solver.action }} + {{ self.index }}"))
    done = run_one(made, ScriptedModel(by_role({"solver": ["10", "1.5"], "after": "x"})))
    assert actions(done, "calc") == [11, 3.5]
    assert done["after"][0].steps[0].chat_completions[0]["content"] == "11;3.5;"


def test_an_error_is_a_failure_with_its_message_in_the_record(tmp_path: Path) -> None:
    made = plan(tmp_path, computing("{{ solver.action }}", reward="countdown", on_failure={"retry": 2}))
    done = run_one(made, ScriptedModel(by_role({"solver": ["1/0", "3 + 4"], "after": "x"})))
    failed, fine = done["calc"]
    assert failed.failure is not None and failed.failure.name is FailureName.TOOL_ERROR
    assert failed.action == failed.failure.message == "division by zero"
    assert failed.steps[0].metadata["attempts"] == 3
    assert (failed.reward, fine.action) == (0.0, 7)
    assert done["after"][0].steps[0].chat_completions[0]["content"] == ";7;"
    assert [failure["role"] for failure in done.metadata["failures"]] == ["calc"]


@pytest.mark.parametrize("refusals", [[503, 429], [None, 500], [503] * 4, [400]], ids=str)
def test_a_service_that_refuses_for_a_while_is_asked_again_as_a_model_is(
    refusals: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolegraph.engine.models.limit.FIRST_WAIT", 0.0)
    left, asked = [*refusals], list[Any]()

    async def score(request: HttpRequest) -> Response:
        asked.append(await request.json())
        status = left.pop(0) if left else 200
        return JSONResponse(
            {"score": 1}, status or 200, {"content-length": "999"} if status is None else None
        )

    with served(Starlette(routes=[Route("/score", score, methods=["POST"])])) as url:
        roles: Roles = {"rater": {"run": {"http": "[1]", "url": f"{url}/score"}}}
        text = yaml.safe_dump({"rolegraph": 2, "name": "x", "data": {"train": "countdown"}, "roles": roles})
        made = compile_file(write_spec(tmp_path, text), allow=[url])
        (rater,) = run_one(made, ScriptedModel(lambda _: ""))["rater"]
    if len(refusals) == 2:
        assert (rater.failure, rater.action, len(asked)) == (None, {"score": 1}, 3)
    else:
        assert rater.failure is not None and rater.failure.name is FailureName.TOOL_ERROR
        assert f"answers {refusals[0]}" in rater.failure.message
        assert len(asked) == len(refusals)


def test_the_message_of_a_tool_that_failed_is_no_rating(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"reward": "number(calc.action)"},
        "calc": {"needs": ["solver"], "run": {"calculator": "{{ solver.action }}"}},
    }
    failed, fine = (
        run_one(plan(tmp_path, roles), ScriptedModel(lambda _, t=t: t)) for t in ("2 ** 9 x", "2")
    )
    assert failed["calc"][0].failure is not None
    assert (failed["solver"][0].reward, failed["solver"][0].masked) == (None, True)
    assert fine["solver"][0].reward == 2.0


def test_a_value_that_cannot_be_written_is_a_prompt_error_without_a_step(tmp_path: Path) -> None:
    made = plan(tmp_path, computing("{{ solver.action + 1 }}"))
    done = run_one(made, ScriptedModel(lambda _: "a"))
    assert {t.failure.name for t in done["calc"] if t.failure} == {FailureName.PROMPT_ERROR}
    assert not any(t.steps for t in done["calc"])


def test_a_skipped_one_and_one_of_a_skipped_parent_run_nothing(tmp_path: Path) -> None:
    made = plan(tmp_path, computing("{{ solver.action }}", when="solver.index == 2"))
    done = run_one(made, ScriptedModel(lambda _: "3"))
    assert [t.index for t in done["calc"]] == [2]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Register a tool that logs each open, call and close; return the log."""
    notes: list[str] = []

    async def call(arguments: Any) -> str:
        notes.append(f"asked {arguments['what']}")
        if arguments["what"] == "hang":
            await asyncio.sleep(1000)
        if arguments["what"] == "break":
            raise KeyError("inside")
        return "done"

    @asynccontextmanager
    async def open_(stays_shut: bool) -> AsyncGenerator[Sequence[Function], None]:
        if stays_shut:
            raise OSError("no such door")
        notes.append("opened")
        yield (Function("noting", "", {"properties": {"what": {}}}, call),)
        notes.append("closed")

    def noting(what: str | None = None, /, *, stays_shut: bool = False) -> Tool:
        """Notes."""
        return Tool(partial(open_, stays_shut), source=what)

    monkeypatch.setitem(tools._factories, "noting", noting)
    return notes


def noting(folder: Path, value: str, **more: Any) -> Plan:
    run = {"noting": value, **more.pop("options", {})}
    return plan(folder, {"a": {"count": 3, "run": run, **more}})


def test_a_tool_is_open_once_for_an_episode_and_closed_after_it(tmp_path: Path, opened: list[str]) -> None:
    run_one(noting(tmp_path, "{{ self.index }}"), ScriptedModel(str))
    assert opened == ["opened", "asked 1", "asked 2", "asked 3", "closed"]


def test_a_tool_is_closed_where_the_episode_is_cancelled(tmp_path: Path, opened: list[str]) -> None:
    made = noting(tmp_path, "hang")

    async def cancelled() -> None:
        task = asyncio.create_task(episode(made, []))
        async with asyncio.timeout(600):
            while len(opened) < 4:  # noqa: ASYNC110  # the call runs in a task of its own
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert opened[-1] == "closed"


@pytest.mark.parametrize(
    ("value", "more", "name", "message"),
    [
        ("hang", {"timeout": 0.05}, FailureName.TIMEOUT, "no result within 0.05 s"),
        ("break", {}, FailureName.TOOL_ERROR, "KeyError: 'inside'"),
        ("x", {"options": {"stays_shut": True}}, FailureName.TOOL_ERROR, "OSError: no such door"),
    ],
)
def test_whatever_goes_wrong_in_a_tool_is_its_turn_s_failure(
    tmp_path: Path, opened: list[str], value: str, more: dict[str, Any], name: FailureName, message: str
) -> None:
    done = run_one(noting(tmp_path, value, **more), ScriptedModel(str))
    failures = [t.failure for t in done["a"] if t.failure]
    assert [(failure.name, failure.message) for failure in failures] == [(name, message)] * 3


# programs

SHELL: Roles = {
    "coder": {"count": 2},
    "shell": {
        "needs": {"coder": "each"},
        "run": {"python": "{{ coder.action }}", "seconds": 1, "memory": 16},
    },
}
FENCED = "```python\nfor n in range(3):\n    print(n)\n[n, n > 1]\n```"


def test_a_program_gives_what_it_prints_and_what_it_ends_with(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    done = run_one(plan(tmp_path, SHELL), ScriptedModel(by_role({"coder": [FENCED, "'a' + 'b'"]})))
    assert actions(done, "shell") == ["0\n1\n2\n[2, True]", "ab"]


ESCAPES = {
    "reads a file": ("open('SECRET').read()", "Error: "),
    "writes a file": ("from pathlib import Path\nPath('FOLDER', 'new').write_text('x')", "Error: "),
    "opens a socket": ("import socket\nsocket.create_connection(('127.0.0.1', PORT))", "Error: "),
    "starts a process": ("import subprocess\nsubprocess.run(['touch', 'FOLDER/new'])", "Error: "),
    "loops": ("while True: pass", "took longer than 1 s"),
    "takes memory": ("x = []\nwhile True: x.append('x' * 10**6)", "used more than 16 MB"),
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_program_that_wants_out_fails_and_the_others_go_on(tmp_path: Path, escape: str) -> None:
    pytest.importorskip("pydantic_monty")
    (tmp_path / "in").mkdir()
    secret = tmp_path / "in" / "secret"
    secret.write_text("kolkrabbi")
    code, said = ESCAPES[escape]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        filled = code.replace("SECRET", str(secret)).replace("FOLDER", str(secret.parent))
        filled = filled.replace("PORT", str(server.getsockname()[1]))
        done = run_one(plan(tmp_path, SHELL), ScriptedModel(by_role({"coder": [filled, "6 * 7"]})))
        with pytest.raises(BlockingIOError):
            server.accept()
    bad, fine = done["shell"]
    assert bad.failure is not None
    is_gap = "Monty" in bad.failure.message  # the program could not be run
    assert bad.failure.name is (FailureName.TOOL_ERROR if is_gap else FailureName.PROGRAM_ERROR)
    assert said in bad.action and "kolkrabbi" not in bad.action
    assert (fine.failure, fine.action) == (None, "42")
    assert [*secret.parent.iterdir()] == [secret]


# what has to be allowed


def test_what_was_not_allowed_does_not_run_and_says_where_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    plan(tmp_path, SHELL)
    path = tmp_path / "spec.yaml"
    found = check_file(path)
    (warning,) = found.diagnostics
    assert (warning.severity, warning.hint) == ("warning", "--allow python")
    assert warning.place.text.strip().startswith("python:")
    assert found.plan is not None
    with pytest.raises(UsageError, match="python"):
        run_one(found.plan, ScriptedModel(str), COUNTDOWN)
    with pytest.raises(SpecError, match=r"spec\.yaml:\d+:\d+: error: .*(.|\n)*--allow python"):
        check_source(Source.of(path), runs=True).valid()
    allowed = check_file(path, allow=["python"])
    assert not allowed.diagnostics
    assert allowed.valid().hash == found.plan.hash


def test_whoever_is_seen_says_whose_it_is(tmp_path: Path) -> None:
    roles: Roles = {
        "a": {},
        "b": {"count": 2},
        "never": {"when": "task.target == 0"},
        "sum": {"run": {"calculator": "1"}},
        "failed": {"parser": {"tag": "x"}},
        "last": {
            "needs": dict.fromkeys(("a", "never", "sum", "failed"), "all") | {"known": {"of": "b"}},
            "prompt": "{% for each in [a, never, sum, failed] %}{{ each.role }} {% endfor %}"
            "{{ known | map(attribute='role') | join(' ') }}",
        },
    }
    model = ScriptedModel(lambda request: request.messages[-1]["content"])
    assert actions(run_one(plan(tmp_path, roles), model), "last") == ["a  sum failed b b"], (
        "of a turn that was skipped nothing is known"
    )
