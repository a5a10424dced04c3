"""The expert that plays the shipped specs, and the turns, the tokenizer and the courses that come of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import cast

import pytest
from expert import EXPERTS, kind_of, steps
from measure import MOST_TOKENS
from played import DRILL, VARIANTS, Expert, Turn, episodes, loaded, tasks_of, turns
from tokenizer import CONTEXT, build_tokenizer
from transformers import PreTrainedTokenizerFast

import rolegraph as rg
from rolegraph import api
from rolegraph.engine.models import LimitedModel
from rolegraph.engine.prompts import ChatFormat, Tokenizer
from rolegraph.roles.countdown import split_of

pytest.importorskip("textarena")
pytest.importorskip("pydantic_monty")

PLAYED = [
    pytest.param(spec, variant, id=" ".join((spec, *VARIANTS.get(spec, ((),))[variant])))
    for spec in api.shipped_specs()
    for variant in range(len(VARIANTS.get(spec, ((),))))
]
BEST = {
    ("debate_judge", "con"): -1.0,  # loses what the other side wins
    ("proposer_solver_judge", "proposer"): 0.0,  # earns nothing where all solvers are right
    ("tool_and_reasoner", "coder"): 1.5,
    ("plan_path", "walker"): 1.5,
}
"""Reward of a role whose episode goes as well as can be, where it is not 1."""


def play(spec: str, variant: int, *, guess: float = 0.0) -> tuple[rg.Workflow, Expert, Sequence[rg.Episode]]:
    flow, expert = loaded(spec)[variant], Expert(spec, 0, guess)
    made = asyncio.run(episodes(flow, LimitedModel(expert, 8), tasks_of(flow, 3, 8)))
    return flow, expert, made


@pytest.mark.parametrize(("spec", "variant"), PLAYED)
def test_the_expert_plays_every_role_and_earns_all_there_is(spec: str, variant: int) -> None:
    flow, expert, made = play(spec, variant)
    assert not [episode.metadata for episode in made if "failures" in episode.metadata]
    asked = {role.name for role in flow.plan.roles if role.run is None}
    assert {turn.role for turn in expert.turns.values()} == asked
    earned = {
        (trajectory.name, trajectory.reward)
        for episode in made
        for trajectory in episode.trajectories
        if trajectory.reward is not None
    }
    endings = {episode.metadata.get("environment", {}).get("reason") for episode in made}
    match spec:
        case "tic_tac_toe":
            assert endings <= {"draw", "X has three in a row"}  # X has the better of every opening drawn here
        case "textarena":
            assert not any(episode.metadata["environment"]["invalid"] for episode in made)
        case _:
            earned = {(role, reward) for role, reward in earned if (spec, role) != ("plan_path", "planner")}
            assert {reward == BEST.get((spec, role), 1.0) for role, reward in earned} == {True}


@pytest.mark.parametrize(("spec", "variant"), PLAYED)
def test_a_guess_is_well_formed(spec: str, variant: int) -> None:
    _, expert, made = play(spec, variant, guess=1.0)
    assert expert.turns
    assert not [episode.metadata for episode in made if "failures" in episode.metadata]


SHARES = {"textarena": 3, DRILL: 2}
"""Shares with which a few turns are of all kinds."""


@pytest.fixture(scope="module")
def first() -> Sequence[Turn]:
    return [*islice(turns(5, guess=0.3, shares=SHARES), 1500)]


def test_turns_repeat_with_their_seed(first: Sequence[Turn]) -> None:
    again = islice(turns(5, guess=0.3, shares=SHARES), 300)
    assert [(turn.messages, turn.response) for turn in again] == [
        (turn.messages, turn.response) for turn in first[:300]
    ]


def test_there_are_turns_of_every_kind_and_none_shows_a_validation_task(first: Sequence[Turn]) -> None:
    assert {turn.kind for turn in first} == {expert.__name__ for expert in EXPERTS.values()}
    shown = "\n".join(
        text for turn in first for text in (*(m["content"] for m in turn.messages), turn.response)
    )
    tasks = set(re.findall(r"Use ([\d, ]+) exactly once each, .* to make (\d+)\.", shown))
    assert len(tasks) > 300
    assert {split_of([*map(int, nums.split(", "))], int(target)) for nums, target in tasks} == {"train"}


def test_shares_say_which_specs_are_played() -> None:
    only = dict.fromkeys((DRILL, *api.shipped_specs()), 0.0) | {"router": 3.0, "tic_tac_toe": 1.0}
    specs = [turn.spec for turn in islice(turns(1, shares=only), 200)]
    assert set(specs) == {"router", "tic_tac_toe"}
    assert 0.6 < specs.count("router") / len(specs) < 0.9


def test_an_agent_reads_what_its_calculator_gave(first: Sequence[Turn]) -> None:
    after = [turn for turn in first if turn.messages[-1]["role"] == "tool"]
    assert {function.name for turn in after for function in turn.tools} == {"calculator"}
    right = [turn for turn in after if f"{turn.messages[-1]['content']}, want" in turn.response]
    again = [turn for turn in right if "no\n" in turn.response and "<tool_call>" in turn.response]
    assert 0 < len(again) < len(right) <= len(after)


def test_a_prompt_that_no_template_writes_has_no_expert() -> None:
    with pytest.raises(LookupError, match="Sing"):
        kind_of([{"role": "user", "content": "Sing."}])


@pytest.mark.parametrize(
    ("expression", "worked"),
    [
        ("3*4+5", "3*4=12, 12+5=17"),
        ("12-(3-5)*2", "3-5=-2, -2*2=-4, 12--4=16"),
        ("5/3+1", "5/3"),
        ("4/(2-2)", "2-2=0, 4/0"),
        ("7-2=5", ""),
        ("7", ""),
    ],
)
def test_steps_are_worked_out_until_they_break(expression: str, worked: str) -> None:
    assert steps(expression) == worked


@pytest.fixture(scope="module")
def tokenizer(first: Sequence[Turn]) -> PreTrainedTokenizerFast:
    return build_tokenizer(first)


@pytest.mark.parametrize("text", ["<plan>RRDD</plan>", "1728 / 144 = 12\n", "naïve – 数", " \t\r\n\x00"])
def test_any_text_survives_a_new_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("text", ["7", "42", "199", "<plan>", "</tool_call>", "<|im_end|>", " expression"])
def test_numbers_tags_and_words_are_single_tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert len(tokenizer.tokenize(text)) == 1


def test_grids_are_cut_into_cells_and_plans_into_moves(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.tokenize(". # . G\n. . A .")) == 9
    assert tokenizer.tokenize("RRDD") == [*"RRDD"]


def test_every_turn_fits_the_context(tokenizer: PreTrainedTokenizerFast, first: Sequence[Turn]) -> None:
    chat = ChatFormat(cast("Tokenizer", tokenizer), "test")
    for turn in first:
        prompt, response = chat.prompt(turn.messages, turn.tools).ids, chat.turn(turn.response)
        assert len(prompt) + len(response) <= CONTEXT
        assert len(response) < MOST_TOKENS
        assert chat.answer(response, stop=(), thinking=False)[1] == turn.response


def test_a_course_goes_on_from_a_folder_and_saves_what_it_learnt(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("torch")
    import teach

    shares = dict.fromkeys((DRILL, *api.shipped_specs()), 0.0) | {"router": 1.0}
    small = teach.Course(tmp_path / "start", width=32, layers=1, shares=shares)
    teach.build_model(tokenizer, small).save_pretrained(small.out)
    tokenizer.save_pretrained(small.out)
    course = replace(small, out=tmp_path / "out", start=small.out, steps=120, batch=16)
    with caplog.at_level("INFO"):
        teach.teach(course)
    losses = [float(found) for found in re.findall(r"route ([\d.]+)", caplog.text)]
    assert losses[-1] < 5  # of 7 at the start, so far less at the end
    model, _ = teach.load(course.out)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (32, 1)


def test_a_course_ends_with_its_steps_or_its_minutes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import teach

    course = teach.Course(tmp_path, steps=100, minutes=2)
    assert course.progress(50, 30) == 0.5
    assert course.progress(10, 90) == 0.75
