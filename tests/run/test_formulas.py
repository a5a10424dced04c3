"""Tests of rewards that are expressions, and of the tokens and calls that prompts and conditions read."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolegraph.engine.compile import Plan, check_file
from rolegraph.engine.errors import ModelError, SpecError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import Episode
from tests.edge import COUNTDOWN, ScriptedModel, episode, limited, run_one, write_spec
from tests.run.written import Roles, plan, said

GOOD: list[str] = []
"""Failures of an episode without any."""


class Counted(ScriptedModel):
    """Scripted model whose answers have a token for each character."""

    async def complete(self, request: Request) -> Completion:
        made = await super().complete(request)
        text, calls = HERMES.find(made.text)
        ids = tuple(range(len(made.text)))
        return made._replace(text=text, calls=calls, response_ids=ids, logprobs=(-1.0,) * len(ids))


class Used(ScriptedModel):
    """Scripted model that gives numbers of tokens in place of ids."""

    async def complete(self, request: Request) -> Completion:
        return (await super().complete(request))._replace(usage={"prompt_tokens": 9, "completion_tokens": 5})


def valued(folder: Path, reward: object, **more: Any) -> Plan:
    return plan(folder, {"solver": {"parser": "text", "reward": reward, **more}})


def outcome(done: Episode, role: str = "solver") -> tuple[float | None, bool, list[str]]:
    (trajectory,) = done[role]
    failures = [failure["name"] for failure in done.metadata.get("failures", ())]
    return trajectory.reward, trajectory.is_correct, failures


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("action == task.solution", (1.0, True, GOOD)),
        ("action != task.solution", (0.0, False, GOOD)),
        ("0.5", (0.5, False, GOOD)),
        ("-2 if action else 3", (-2.0, False, GOOD)),
        ("1 + 0", (1.0, False, GOOD)),
        (
            ("(action == task.solution) - 0.002 * tokens", "action == task.solution"),
            (0.99, True, GOOD),
        ),
        (("tokens + calls", "false"), (6.0, False, GOOD)),
        ("tokens", (5.0, False, GOOD)),
        ("task['target'] / 2", (3.5, False, GOOD)),
        ("exact_match(action, task.solution)", (1.0, True, GOOD)),
        ("math(action, task.target)", (1.0, True, GOOD)),
        ("f1(action, task.solution)", (1.0, True, GOOD)),
        ("0.5 * math(action, task.target)", (0.5, False, GOOD)),
        ("action == '3 + 4'", (1.0, False, GOOD)),
        ("self.index + self.count", (2.0, False, GOOD)),
        ("task.nums[9] or 2 > 1", (1.0, False, GOOD)),
        ("task.nums[9] + 1", (None, False, GOOD)),
        ("action", (None, False, ["reward_error"])),
        ("1 / 0", (None, False, ["reward_error"])),
        ("(action ~ '').score", (None, False, ["reward_error"])),
        ("1e308 * 10", (None, False, ["reward_error"])),
        (("1 + 0", "(action ~ '').score > 1"), (None, False, ["reward_error"])),
        (("1 + 0", "task.nums[9] > 1"), (1.0, False, GOOD)),
    ],
    ids=str,
)
def test_the_value_of_an_expression_is_the_reward(
    tmp_path: Path, reward: str | tuple[str, str], expected: tuple[float, bool, list[str]]
) -> None:
    """The answer, 3 + 4, has five tokens. A pair is a reward, and the role's `right`."""
    more = {} if isinstance(reward, str) else {"right": reward[1]}
    said = reward if isinstance(reward, str) else reward[0]
    done = run_one(valued(tmp_path, said, **more), Counted(lambda _: "3 + 4"))
    earned, right, failures = outcome(done)
    assert earned == pytest.approx(expected[0])
    assert (right, failures) == expected[1:]


def test_tokens_are_those_of_all_calls_of_the_turn_else_the_endpoints_number_else_an_error(
    tmp_path: Path,
) -> None:
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 4"}}</tool_call>'
    calls = valued(tmp_path, "tokens + 1000 * calls", tools=["calculator"], max_calls=3)
    done = run_one(calls, Counted(lambda request: call if request.id.call == 1 else "7"))
    assert outcome(done)[0] == 2001 + len(call)
    plain = valued(tmp_path, "tokens")
    assert outcome(run_one(plain, Used(lambda _: "7"))) == (5.0, False, GOOD)
    unknown = run_one(plain, ScriptedModel(lambda _: "7"))
    assert outcome(unknown) == (None, False, ["reward_error"])
    assert "neither token ids nor a number of tokens" in unknown.metadata["failures"][0]["message"]
    unread = valued(tmp_path, "calls")
    assert outcome(run_one(unread, ScriptedModel(lambda _: "7"))) == (1.0, False, GOOD)


def test_a_failed_turn_has_the_reward_of_failures(tmp_path: Path) -> None:
    def fail(request: Request) -> str:
        raise ModelError("down")

    failing = valued(tmp_path, "2 + 3", on_failure={"reward": -1})
    assert outcome(run_one(failing, ScriptedModel(fail))) == (-1.0, False, ["model_error"])


@pytest.mark.parametrize(
    ("terms", "reward", "right"),
    [
        ({"good": "exact_match(action, task.target)", "long": "-0.1 * tokens"}, 0.9, True),
        ({"good": "action == task.nums | first", "long": "2 + 3"}, 5.0, False),
        ({"long": "2 + 3"}, 5.0, False),
        ({"any": "action == '7'"}, 1.0, False),
        ({"long": {"reward": "1 + 1", "weight": -0.5}, "good": {"matches": "7"}}, 0.0, False),
    ],
    ids=str,
)
def test_as_a_term_a_number_says_nothing_of_right(
    tmp_path: Path, terms: object, reward: float, right: bool
) -> None:
    """The answer is 7, as the task's target."""
    done = run_one(valued(tmp_path, {"sum": terms}), Counted(lambda _: "7"))
    assert outcome(done) == (pytest.approx(reward), right, [])


def test_a_role_with_numbers_alone_can_never_be_right(tmp_path: Path) -> None:
    def judged(reward: object) -> bool:
        return "solver" in valued(tmp_path, reward).judged

    assert not judged({"sum": {"long": "0.1 * tokens", "short": "1 if calls else 2"}})
    assert judged({"sum": {"long": "0.1 * tokens", "good": "action == task.target"}})
    assert not judged("0.1 * tokens")
    assert not judged("action == '7'")
    assert judged("number(action) == task.target")


def test_what_an_expression_reads_becomes_a_label(tmp_path: Path) -> None:
    shown: Roles = {"solver": {"prompt": "{{ task.target }}", "reward": "action == task.target"}}
    with pytest.raises(SpecError, match=r"task\.target would leak the label"):
        plan(tmp_path, shown)
    with pytest.raises(SpecError, match=r"task\.target would leak the label"):
        right = {"reward": "1 + 1", "right": "action == task.target"}
        plan(tmp_path, {"solver": {**shown["solver"], **right}})
    with pytest.raises(SpecError, match=r"reads task\.price, which the train data does not have"):
        valued(tmp_path, "0.1 * task.price")


@pytest.mark.parametrize(
    ("expression", "message", "caret"),
    [
        ("task[action]", "this reads the task as a whole", "task["),
        (
            "acton == task.target",
            "'acton' does not exist here; there is task, action, response, thought, ok, tokens, calls, step,",
            "acton",
        ),
        ("judge.verdict", "a role has no 'verdict'", "verdict"),
        ("judge.reward", "the reward reads the reward of judge, which has none", ""),
        ("self.round", "self has no 'round' here", "round"),
        ("1 +", "not a valid expression", ""),
        ("len(task.target) > 1", "len(…) cannot be called in this expression", "len"),
        ("action ** 2 == 4", "'**' cannot be used in this expression", ""),
        ("action | lenght", "no filter 'lenght'", "lenght"),
        ("action == 1) or (1", "not a valid expression", ""),
    ],
)
@pytest.mark.parametrize(
    "form",
    ["{}", "{{sum: {{a: {}, b: countdown}}}}", "{{sum: {{a: {{reward: {}}}, b: countdown}}}}"],
)
def test_a_fault_is_shown_at_its_place_in_the_expression(
    tmp_path: Path, expression: str, message: str, caret: str, form: str
) -> None:
    quoted = f'"{expression}"'
    text = (
        "rolegraph: 2\nname: faulty\ndata: {train: countdown}\nroles:\n"
        '  solver:\n    prompt: "Hi"\n    estimator: grpo\n'
        f"    reward: {form.format(quoted)}\n"
        '  judge: {prompt: "Hi"}\n'
    )
    errors = [d for d in check_file(write_spec(tmp_path, text)).diagnostics if d.severity == "error"]
    (error,) = errors
    assert message in error.message
    line, column = str(error).split(":")[1:3]
    assert text.splitlines()[int(line) - 1][int(column) - 1 :].startswith(caret)


def test_prompts_and_conditions_read_the_tokens_and_calls_of_others(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"count": 2, "parser": "text"},
        "short": {
            "needs": {"solver": "each"},
            "when": "solver.tokens < 3",
            "prompt": "short {{ solver.tokens }}",
        },
        "all": {
            "needs": ["solver", "short"],
            "prompt": "{{ solver | map(attribute='tokens') | sum }} "
            "{{ solver | map(attribute='calls') | sum }} {% for one in short %}{{ one.index }}{% endfor %}",
        },
    }
    model = Counted(lambda request: "77" if request.id.node.index == 2 else said("seven"))
    done = run_one(plan(tmp_path, roles), model)
    assert [t.index for t in done["short"]] == [2]
    assert done["all"][0].steps[0].chat_completions[0]["content"] == f"{2 + len(said('seven'))} 2 2"


def test_tokens_of_a_skipped_turn_are_unknown(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"when": "false"},
        "reader": {"needs": ["solver"], "prompt": "{{ solver.tokens }} {{ solver.calls }}"},
    }
    done = run_one(plan(tmp_path, roles), Counted(lambda _: "7"))
    assert done["reader"][0].steps[0].chat_completions[0]["content"] == " "


def test_a_replay_and_another_process_compute_the_same(tmp_path: Path) -> None:
    priced = valued(tmp_path, {"sum": {"right": "countdown", "price": "-0.01 * tokens"}})
    first = run_one(priced, Counted(lambda _: "3 + 4"))
    again = pickle.loads(pickle.dumps(priced))
    replayed = asyncio.run(episode(again, limited(again, Replay.from_episodes([first]))))  # pyright: ignore[reportArgumentType]
    assert outcome(first) == outcome(replayed) == (pytest.approx(0.95), True, GOOD)
    assert (
        first["solver"][0].terms
        == replayed["solver"][0].terms
        == {"right": 1.0, "price": pytest.approx(-0.05)}
    )


PARTS = st.sampled_from(
    ["tokens", "calls", "self.round", "self.index", "task.target", "(action == '7')", "2", "0.5"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from("+-*"), PARTS), min_size=1, max_size=5),
    st.lists(st.sampled_from(["7", "12"]), min_size=6, max_size=6),
)
def test_random_expressions_have_the_value_that_python_gives_them(
    tmp_path: Path, parts: list[tuple[str, str]], answers: Sequence[str]
) -> None:
    text = "0" + "".join(f" {sign} {part}" for sign, part in parts)
    roles: Roles = {"solver": {"count": 2, "parser": "text", "reward": text, "credit": "turn"}}
    looped = plan(tmp_path, roles, {"turns": {"roles": ["solver"], "times": 3}})

    def answer(request: Request) -> str:
        return answers[2 * request.id.node.round + request.id.node.index - 3]

    done = run_one(looped, Counted(answer))
    for trajectory in done["solver"]:
        for step in trajectory.steps:
            said = answers[2 * step.round + trajectory.index - 3]
            names = {"tokens": len(said), "calls": 1, "action": said}
            own = type("Own", (), {"round": step.round, "index": trajectory.index})
            target = type("Task", (), {"target": COUNTDOWN["target"]})
            value = eval(text, {}, {**names, "self": own, "task": target})
            assert step.reward == pytest.approx(float(value))


def test_the_own_name_means_all_siblings(tmp_path: Path) -> None:
    roles: Roles = {"solver": {"count": 3, "parser": "text", "reward": "mean(solver.action == action)"}}
    done = run_one(plan(tmp_path, roles), Counted(lambda request: "76"[request.id.node.index // 3]))
    assert [t.reward for t in done["solver"]] == [pytest.approx(2 / 3)] * 2 + [pytest.approx(1 / 3)]
    with pytest.raises(SpecError, match="reads solver itself"):
        plan(tmp_path, {"solver": {**roles["solver"], "reward": "mean(solver.reward)"}})


def test_a_reward_that_is_unknown_masks_the_turn(tmp_path: Path) -> None:
    roles: Roles = {
        "judge": {"when": "task.target > 100", "reward": "countdown"},
        "solver": {"needs": ["judge"], "parser": "text", "reward": "judge.reward"},
        "kept": {"needs": ["judge"], "parser": "text", "reward": "judge.reward | default(0.25)"},
    }
    done = run_one(plan(tmp_path, roles), Counted(lambda _: "7"))
    assert [t.name for t in done.trajectories] == ["solver", "kept"]
    assert (done["solver"][0].reward, done["solver"][0].masked) == (None, True)
    assert (done["kept"][0].reward, done["kept"][0].masked) == (0.25, False)


def test_an_unreadable_answer_is_wrong_and_earns_what_failures_do(tmp_path: Path) -> None:
    unread: Roles = {
        "judge": {"parser": {"number": {}}, "reward": "countdown", "on_failure": {"reward": -1}},
        "team": {"needs": ["judge"], "parser": "text", "reward": "judge.reward"},
        "checker": {"needs": ["judge"], "parser": "text", "reward": "judge.right == false and judge.failed"},
        "side": {"parser": {"number": {}}, "reward": "2 + 3", "on_failure": {"then": "reward"}},
        "lost": {"parser": {"number": {}}, "reward": "2 + 3"},
        "own": {"parser": {"number": {}}, "reward": "1 if ok else -2", "on_failure": {"then": "reward"}},
    }
    done = run_one(plan(tmp_path, unread), Counted(lambda _: "no number"))
    earned = {t.name: t.reward for t in done.trajectories}
    assert earned == {"judge": -1.0, "team": -1.0, "checker": 1.0, "side": 5.0, "lost": 0.0, "own": -2.0}
    assert not any(t.is_correct for t in done.trajectories if t.name in ("judge", "side", "lost"))


def test_a_turn_without_an_answer_has_no_reward_to_compute(tmp_path: Path) -> None:
    def fail(request: Request) -> str:
        if request.id.node.role == "solver":
            raise ModelError("down")
        return "7"

    roles: Roles = {
        "judge": {"parser": "text", "reward": "countdown"},
        "solver": {"needs": ["judge"], "reward": "2 + judge.tokens", "on_failure": {"then": "reward"}},
    }
    done = run_one(plan(tmp_path, roles), Counted(fail))
    assert outcome(done) == (0.0, False, ["model_error"])


def test_right_without_a_reward_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="`right` has no effect"):
        unpaid = {"right": "tokens < 3", "reward": None, "estimator": None}
        plan(tmp_path, {"solver": unpaid, "judge": {"reward": "countdown"}})
    both: Roles = {"solver": {"reward": "2 + 3", "on_failure": {"then": "reward", "reward": -1}}}
    assert plan(tmp_path, both)
