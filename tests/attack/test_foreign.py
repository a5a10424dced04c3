"""Tests that values and errors of third-party code leave an episode that can be written and read."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.limits.answers import ANSWER_CALLS
from rolegraph.engine.limits.tools import TOOL_TEXT
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.prompts.call_forms import HERMES
from rolegraph.engine.records import Episode
from rolegraph.engine.records.episodes import EpisodeWriter, read_episodes
from rolegraph.engine.vocabulary import (
    Environment,
    Function,
    Parser,
    Reward,
    Score,
    Tool,
    Transition,
    environments,
    metrics,
    parsers,
    rewards,
    role_metric,
    tools,
)
from tests.edge import ScriptedModel, run_one, write_spec

SPEC = """\
rolegraph: 2
name: foreign
roles:
  a: {prompt: hi, PARTS}
  b: {needs: a, prompt: "{{ a.action }}"}
episode: {correct: a.right, metrics: METRICS}
"""
GAME = """\
rolegraph: 2
name: foreign
roles:
  a: {prompt: "{{ self.observation }}", reward: env}
loops: {play: {roles: a, env: foreign, times: 2}}
"""
PARSED = SPEC.replace("PARTS", "parser: foreign").replace("METRICS", "{}")
RUN = SPEC.replace("prompt: hi, PARTS", "run: {foreign: hi}").replace("METRICS", "{}")
EARNED = SPEC.replace("PARTS", "reward: foreign").replace("METRICS", "{}")
MEASURED = SPEC.replace("PARTS", "parser: text").replace("METRICS", "{own: {foreign: a}}")
CALLED = SPEC.replace("PARTS", "tools: [foreign], max_calls: 2").replace("METRICS", "{}")
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def cycle() -> object:
    value: list[object] = []
    value.append(value)
    return value


def deep() -> object:
    value: list[object] = []
    for _ in range(5_000):
        value = [value]
    return value


def raises(error: BaseException) -> Callable[[], object]:
    def give() -> object:
        raise error

    return give


NO_VALUES: list[tuple[str, Callable[[], object], str]] = [
    ("an object", object, ""),
    ("a list in itself", cycle, ""),
    ("a deep list", deep, ""),
    ("no UTF-8", lambda: b"\xff", ""),
    ("a function", lambda: print, ""),
    ("a number of 5,000 digits", lambda: [10**5_000], ""),
    ("half a character", lambda: ["\ud800"], ""),
    ("no number", lambda: [math.nan], ""),
    ("a wide list", lambda: [[]] * TOOL_TEXT.most, "(limit: "),
    ("no words", raises(Silent()), "Silent"),
    ("terrible words", raises(ValueError("\ud800" + "x" * 9_000)), "ValueError: \\ud800x"),
    ("the end of a generator", raises(StopIteration()), "StopIteration"),
    ("a way out", raises(SystemExit(3)), "SystemExit: 3"),
]
PLAIN: list[tuple[str, Callable[[], object]]] = [
    ("a tuple", lambda: (1, (2,))),
    ("a set", lambda: {1}),
    ("keys that are numbers", lambda: {1: 2, None: 3}),
]
given: list[Callable[[], Any]] = []
"""Function behind every registered item, set by `played`."""


@asynccontextmanager
async def opened() -> AsyncGenerator[Sequence[Function], None]:
    async def call(arguments: Mapping[str, Any]) -> Any:
        return given[0]()

    yield [Function("f", "Does f.", {"type": "object"}, call)]


class World:
    async def reset(self, seed: int, players: int) -> Transition:
        return given[0]()

    async def step(self, actions: Mapping[int, Any]) -> Transition:
        return given[0]()

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def vocabulary(registries: None) -> Iterator[None]:
    tools.register("foreign")(lambda value=None, /: Tool(opened, source=value))
    parsers.register("foreign")(lambda: Parser(lambda text, upstream: given[0]()))
    rewards.register("foreign")(lambda: Reward(lambda task, action, seen: given[0]()))
    metrics.register("foreign")(lambda role, /: role_metric(lambda trajectories: given[0](), role))
    environments.register("foreign")(lambda: Environment(World))
    yield
    given.clear()


class Caller(ScriptedModel):
    async def complete(self, request: Request) -> Completion:
        text, calls = HERMES.find((await super().complete(request)).text)
        return Completion(text, calls=calls)


def played(folder: Path, text: str, give: Callable[[], object], said: Sequence[str] = ("hi",)) -> Episode:
    """Run an episode in which third-party code returns `give()`; write the episode and read it back."""
    given[:] = [give]
    answers = iter(said)
    model = Caller(lambda request: next(answers, said[-1]))
    episode = run_one(compile_file(write_spec(folder, text)), model)
    with EpisodeWriter(folder / "episodes.jsonl") as writer:
        writer.append(episode)
    (read,) = read_episodes(folder / "episodes.jsonl")
    return read


def shown(give: Callable[[], object]) -> Callable[[], Transition]:
    return lambda: Transition({0: "b"}, info={"x": give()})


@pytest.mark.parametrize("where", ["run", "parser", "world"])
@pytest.mark.parametrize(("give", "says"), [v[1:] for v in NO_VALUES], ids=[v[0] for v in NO_VALUES])
def test_what_is_no_value_fails_its_own_turn(
    tmp_path: Path, where: str, give: Callable[[], Any], says: str
) -> None:
    text = {"run": RUN, "parser": PARSED, "world": GAME}[where]
    done = played(tmp_path, text, shown(give) if where == "world" else give)
    failure = done.trajectories[0].failure
    assert failure is not None
    assert says in failure.message
    assert len(failure.message) < 1_000


@pytest.mark.parametrize("text", [RUN, PARSED], ids=["run", "parser"])
@pytest.mark.parametrize("give", [v[1] for v in PLAIN], ids=[v[0] for v in PLAIN])
def test_what_json_can_hold_is_made_plain(tmp_path: Path, text: str, give: Callable[[], Any]) -> None:
    assert played(tmp_path, text, give)["a"][0].failure is None


@pytest.mark.parametrize(("give", "says"), [v[1:] for v in NO_VALUES], ids=[v[0] for v in NO_VALUES])
def test_a_call_s_result_is_told_to_the_model_or_refused(
    tmp_path: Path, give: Callable[[], Any], says: str
) -> None:
    done = played(tmp_path, CALLED, give, [CALL, "done"])
    assert done["a"][0].failure is None
    (told,) = [m for m in done["a"][0].steps[-1].chat_completions if m["role"] == "tool"]
    assert len(told["content"]) <= TOOL_TEXT.most
    if "limit" in says or "Silent" in says:
        assert says in told["content"]


def test_of_thousands_of_calls_in_an_answer_only_so_many_are_made(tmp_path: Path) -> None:
    made: list[int] = []
    done = played(tmp_path, CALLED, lambda: made.append(1) or "x" * 10_000, [CALL * 1_000, "done"])
    told = [m["content"] for m in done["a"][0].steps[-1].chat_completions if m["role"] == "tool"]
    assert (len(made), len(told)) == (ANSWER_CALLS.most, 1_000)
    assert "(limit: answer_calls)" in told[-1]
    assert "(limit: tool_text)" in told[ANSWER_CALLS.most - 1]
    assert sum(len(text) for text in told[: ANSWER_CALLS.most]) < 1.1 * TOOL_TEXT.most


@pytest.mark.parametrize(
    ("score", "says"),
    [
        (Score("1", True), "the reward is str, which is no number"),  # pyright: ignore
        (Score(10**400, True), "the reward is int, which is no number"),
        (Score(1e308, True), "the reward is 1e+308"),
        (Score(math.nan, True), "the reward is nan"),
        (Score(object(), True), "the reward is object, which is no number"),  # pyright: ignore
        (Score(1.0, True, {"x": "a"}), "the reward's term 'x' is str, which is no number"),  # pyright: ignore
        (Score(1.0, True, {"x": math.inf}), "the reward's term 'x' is inf"),
        (Score(1.0, True, {"x": 10**400}), "the reward's term 'x' is int, which is no number"),
        (7, "the reward raised TypeError"),
    ],
)
def test_a_reward_that_is_no_number_is_a_reward_error(tmp_path: Path, score: Any, says: str) -> None:
    trajectory = played(tmp_path, EARNED, lambda: score)["a"][0]
    assert trajectory.failure is not None and trajectory.reward is None
    assert trajectory.failure.name == "reward_error"
    assert says in trajectory.failure.message


@pytest.mark.parametrize(
    ("score", "reward", "terms"),
    [
        (Score(True, True), 1.0, {}),
        (Score(1.0, "yes"), 1.0, {}),  # pyright: ignore
        (Score(1.0, None, {7: 1.0}), 1.0, {"7": 1.0}),  # pyright: ignore
        (Score(None, True), None, {}),
        (None, None, {}),
    ],
)
def test_a_reward_of_other_types_is_recorded_as_numbers_and_names(
    tmp_path: Path, score: Any, reward: float | None, terms: dict[str, float]
) -> None:
    trajectory = played(tmp_path, EARNED, lambda: score)["a"][0]
    assert trajectory.failure is None
    assert (type(trajectory.reward), trajectory.reward) == (type(reward), reward)
    assert trajectory.terms == terms


def test_a_reward_that_leaves_is_a_reward_error(tmp_path: Path) -> None:
    failure = played(tmp_path, EARNED, raises(SystemExit(3)))["a"][0].failure
    assert failure is not None
    assert failure.message == "the reward raised SystemExit: 3"


@pytest.mark.parametrize(
    "give",
    [
        lambda: math.nan,
        lambda: "a",
        lambda: 10**400,
        raises(Silent()),
        raises(KeyError("x")),
        raises(SystemExit(3)),
    ],
)
def test_a_figure_that_cannot_be_measured_is_left_out_and_noted(
    tmp_path: Path, give: Callable[[], Any]
) -> None:
    done = played(tmp_path, MEASURED, give)
    assert "own" not in done.metrics
    assert done.metadata["uncomputed_metrics"]["own"]


@pytest.mark.parametrize(
    "transition",
    [
        None,
        7,
        Transition({0: 7}),  # pyright: ignore
        Transition({"a": "b"}),  # pyright: ignore
        Transition({0: "b"}, {0: 1e308}),
        Transition({0: "b"}, {0: "1e999"}),  # pyright: ignore
        Transition({0: "b"}, {}, False, 7),  # pyright: ignore
        Transition({0: "b"}, {}, False, ["abc"]),  # pyright: ignore
    ],
)
def test_a_world_that_shows_no_transition_ends_its_own_episode(tmp_path: Path, transition: Any) -> None:
    failure = played(tmp_path, GAME, lambda: transition)["a"][0].failure
    assert failure is not None
    assert failure.name == "environment_error"
