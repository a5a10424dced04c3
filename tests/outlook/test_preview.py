"""Tests that a preview shows the prompts of a run, calls no model, and reads no hidden field."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import Episode
from rolegraph.engine.shipped import SPECS
from rolegraph.engine.vocabulary import ToolCall
from rolegraph.outlook.preview import MOST, RolePrompts, made_up, preview_task
from tests.edge import (
    COUNTDOWN,
    RIGHT,
    WRONG,
    ScriptedModel,
    by_role,
    episode,
    run_one,
    solver_judge,
    write_spec,
)

SHIPPED = sorted(path.stem for path in SPECS.glob("*.yaml") if path.stem != "textarena")


class Calling(ScriptedModel):
    """Scripted model that answers with whole completions."""

    def __init__(self, says: Callable[[Request], Completion]) -> None:
        super().__init__(lambda _: "")
        self.says = says

    async def complete(self, request: Request) -> Completion:
        return self.says(request)


def asked(plan: Plan, recorded: Episode | None = None) -> dict[str, RolePrompts]:
    found = asyncio.run(preview_task(plan, COUNTDOWN, recorded))
    return {of.role.name: of for of in found.roles}


def said(of: RolePrompts) -> Sequence[str]:
    """Return the last message of each of a role's prompts."""
    return [prompt.messages[-1]["content"] for prompt in of.asked]


def spec(folder: Path, roles: str, more: str = "") -> Plan:
    return compile_file(
        write_spec(folder, f"rolegraph: 2\nname: own\ndata: {{train: countdown}}\nroles:\n{roles}{more}")
    )


def test_on_the_answers_of_a_run_its_prompts_are_the_run_s(tmp_path: Path) -> None:
    plan = compile_file("debate", ["roles.debater.count=2"])
    model = ScriptedModel(lambda request: (RIGHT, WRONG)[request.id.node.index - 1])
    episode = run_one(plan, model)
    ran = {str(request.messages) for request in model.requests}
    shown = {str(prompt.messages) for prompt in asked(plan, episode)["debater"].asked}
    assert shown == ran


def test_an_answer_that_is_not_on_record_is_made_up() -> None:
    episode = run_one(solver_judge(), ScriptedModel(by_role({"solver": [RIGHT, WRONG], "judge": "1"})))
    short = episode._replace(trajectories=[t for t in episode.trajectories if t.node.index == 1])
    (judge,) = said(asked(solver_judge(), short)["judge"])
    assert f"1: {RIGHT}" in judge
    assert "2: <answer>[solver 2]</answer>" in judge


def test_prompts_that_differ_by_who_answered_alone_are_one_and_say_whose_they_are() -> None:
    found = asked(compile_file("solver_verifier_loop"))
    assert [found["solver"].who(prompt) for prompt in found["solver"].asked] == [
        "solver 1–2, round 1",
        "solver 1–2, rounds 2–3",
    ]
    assert "found incorrect: <answer>[solver 1, round 1]</answer>" in said(found["solver"])[1]
    assert found["solver"].facts["loop"] == 'refine, at most 3 rounds, until verifier.action == "correct"'


def test_the_rounds_of_an_inner_loop_start_at_1_in_each_outer_round(tmp_path: Path) -> None:
    plan = spec(
        tmp_path,
        "  one: {needs: {one: previous}, parser: text, "
        'prompt: "{{ self.outer }}.{{ self.round }}{% if one %} {{ one.action }}{% endif %}"}\n'
        "  two: {needs: one, prompt: Two.}\n",
        "loops: {inner: {roles: [one], times: 2}, outer: {roles: [inner, two], times: 4}}\n",
    )
    found = asked(plan)
    shown = {found["one"].who(prompt): str(prompt.messages[-1]["content"]) for prompt in found["one"].asked}
    for place, text in shown.items():
        outer, number = text.split(" ")[0].split(".")
        assert place == f"one, round {number} of outer round {outer}"
    assert "one, round 2 of outer round 3" in shown, "the rounds that are kept are counted in each loop"
    assert shown["one, round 2 of outer round 2"].endswith(" [one, round 1 of outer round 2]")
    assert [found["two"].who(prompt) for prompt in found["two"].asked] == ["two, rounds 1–4"]


def test_edges_are_told_as_they_are_written(tmp_path: Path) -> None:
    silent = "prompt: Say."
    plan = spec(
        tmp_path,
        f"  one: {{count: 4, {silent}}}\n"
        f"  two: {{needs: {{one: each, all_ones: {{of: one, join: all}}}}, {silent}}}\n"
        f"  three: {{needs: {{one: history, two: {{chunks: 2}}}}, {silent}}}\n"
        f"  four: {{needs: {{one: history}}, {silent}}}\n",
        "loops: {l: {roles: [one, two, three], times: 2}}\n",
    )
    assert {name: of.facts.get("needs") for name, of in asked(plan).items()} == {
        "one": None,
        "two": "one (each), all_ones (of one)",
        "three": "one (all rounds before), two (chunks of 2)",
        "four": "one (all rounds before)",
    }


def test_a_made_up_object_has_what_its_schema_requires(tmp_path: Path) -> None:
    schema = "{required: [price, say], properties: {price: {type: number}, list: {type: array, minItems: 2}}}"
    plan = spec(
        tmp_path,
        f"  buyer: {{prompt: Bid., parser: {{json: {schema}}}}}\n"
        '  clerk: {needs: buyer, prompt: "{{ buyer.action | tojson }}"}\n',
    )
    found = asked(plan)
    assert not found["buyer"].problems
    assert json.loads(said(found["clerk"])[0]) == {"price": 1, "list": ["…", "…"], "say": "…"}


def test_each_branch_is_taken_that_a_parser_s_words_can_lead_to() -> None:
    found = asked(compile_file("router"))
    assert [text.splitlines()[0] for text in said(found["answer"])] == [
        "<answer>[quick]</answer>",
        "<answer>[careful]</answer>",
    ]
    assert found["careful"].facts["when"] == 'router.action == "hard"'
    assert not any(prompt.note for of in found.values() for prompt in of.asked)


def test_what_a_condition_keeps_from_being_asked_is_shown_and_says_so(tmp_path: Path) -> None:
    plan = spec(
        tmp_path,
        "  one: {prompt: First.}\n"
        '  two: {needs: one, when: one.action == "never", prompt: "Then {{ one.action }}."}\n',
    )
    (prompt,) = asked(plan)["two"].asked
    assert prompt.messages[-1]["content"] == "Then [one]."
    assert prompt.note == 'if one.action == "never"'


def test_turns_that_other_answers_lead_to_are_reached(tmp_path: Path) -> None:
    plan = spec(
        tmp_path,
        '  plan: {prompt: "Plan.", parser: {json: {items: {enum: [a, b, c]}, type: array, maxItems: 1}}}\n'
        '  b: {needs: plan, when: "\'b\' in plan.action", prompt: "B."}\n'
        '  deal: {prompt: "{{ self.round }}", parser: {json: {required: [ok]}, default: {ok: true}}}\n'
        '  rate: {prompt: "Rate.", parser: number}\n'
        '  low: {needs: rate, when: rate.action > 2, prompt: "Low."}\n'
        '  vote: {count: 2, prompt: "{{ self.round }}", parser: number}\n',
        "loops:\n"
        "  talk: {roles: [deal], times: 2, until: deal.action.ok}\n"
        "  votes: {roles: [vote], times: 2, until: 'all(vote.action == 1)'}\n",
    )
    found = asked(plan)
    assert not [prompt.note for of in found.values() for prompt in of.asked if prompt.note]
    assert {name: len(of.asked) for name, of in found.items()} == {
        "plan": 1,
        "b": 1,
        "deal": 2,
        "rate": 1,
        "low": 1,
        "vote": 2,
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_every_role_of_a_shipped_spec_is_reached_and_no_hidden_field_is_seen(name: str) -> None:
    plan = compile_file(name)
    secret = {**COUNTDOWN, "solution": "the-secret"}
    found = asyncio.run(preview_task(plan, secret))
    for of in found.roles:
        assert not of.problems
        assert bool(of.asked) == (of.role.run is None)
        if "solution" in plan.hidden:  # a game's tasks are seeds
            assert "the-secret" not in str((of.asked, of.values, of.facts))
    assert ("the-secret" in str(found.task)) == ("solution" not in plan.hidden)


def test_a_hidden_field_that_a_role_shows_is_known_by_its_name() -> None:
    (judge,) = said(asked(compile_file("judge_with_reference"))["judge"])
    assert "One solution: [hidden: solution]" in judge


HIDDEN = """
rolegraph: 2
name: hidden
data: {train: rows.jsonl, hidden: [cards, target, who]}
roles:
  ask: {run: {http: "{{ task.question | tojson }}", url: "http://127.0.0.1:9/x"}}
  player:
    needs: [ask]
    sees: [cards, target, who]
    prompt: "PROMPT <answer>"
    parser: {tag: answer}
    reward: {exact_match: {field: target}}
    estimator: grpo
"""
ROW = {"question": "q", "cards": ["king", "queen"], "target": 42, "who": {"name": "Bob", "share": 0.5}}


def hidden(tmp_path: Path, prompt: str) -> RolePrompts:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    (tmp_path / "hidden.yaml").write_text(HIDDEN.replace("PROMPT", prompt))
    plan = compile_file(tmp_path / "hidden.yaml", allow=["http://127.0.0.1:9/x"])
    return next(
        of for of in asyncio.run(preview_task(plan, {"id": "1", **ROW})).roles if of.asked or of.problems
    )


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("a {{ task.cards[self.index - 1] }}", "a [hidden: cards 1]"),
        ("{{ task.cards | join(', ') }}", "[hidden: cards 1], [hidden: cards 2]"),
        ("{{ task.target }}", "[hidden: target]"),
        ("{{ 2 * (task.target + 1) }}", "[hidden: 2 * (target + 1)]"),
        ("{{ task.target / 2 - task.target }}", "[hidden: (target / 2) - target]"),
        ("{{ 'xy' * task.target }}{% if task.target %}z{% endif %}", "xyz"),
        ("{% if task.target > 100 %}more{% else %}less{% endif %}", "less"),
        ("{{ task.who.name }} {{ task.who.share }}", "[hidden: who.name] [hidden: who.share]"),
        ("{{ task.who.share * 2 }}", "[hidden: who.share * 2]"),
    ],
)
def test_a_hidden_value_keeps_its_type(prompt: str, shown: str, tmp_path: Path) -> None:
    of = hidden(tmp_path, prompt)
    (asked_once,) = of.asked
    assert [message["content"] for message in asked_once.messages] == [f"{shown} <answer>"]


def test_a_prompt_that_reads_parts_of_a_service_s_answer_says_that_it_is_unknown(tmp_path: Path) -> None:
    of = hidden(tmp_path, "{{ ask.action.verdict }}")
    (problem,) = of.problems
    assert "ask (http)" in problem and "object" not in problem


def test_a_tool_that_asks_somebody_is_not_run_and_gives_what_it_could(tmp_path: Path) -> None:
    plan = spec(
        tmp_path,
        "  plan: {prompt: Search for}\n"
        '  wiki: {needs: plan, run: {search: "{{ plan.action }}!", url: "http://127.0.0.1:9/search"}}\n'
        '  read: {needs: wiki, prompt: "{% for hit in wiki.action %}{{ hit.text }};{% endfor %}"}\n',
    )
    assert [permission.name for permission in plan.withheld] == ["http://127.0.0.1:9/search"]
    found = asked(plan)
    assert found["wiki"].values == ["[plan]!"]
    assert said(found["read"]) == ["[wiki];"]


def test_a_model_is_told_of_tools_and_those_that_are_not_allowed_are_not_opened() -> None:
    agent = asked(compile_file("react"))["agent"]
    assert [function.name for function in agent.asked[0].functions] == ["calculator"]
    assert "mcp (not opened: it is not allowed)" in agent.facts["tools"]


def test_an_environment_shows_its_start_and_does_not_move() -> None:
    found = asked(compile_file("tic_tac_toe"))
    assert "You are X" in said(found["x"])[0]
    assert "[what player 2 sees]" in said(found["o"])[0]


def test_a_prompt_that_cannot_be_rendered_says_why(tmp_path: Path) -> None:
    plan = spec(tmp_path, '  one: {prompt: "{{ task.nums + 1 }}"}\n')
    one = asked(plan)["one"]
    assert not one.asked
    assert one.problems == ['prompt_error: can only concatenate list (not "int") to list']


def test_many_prompts_that_differ_are_counted(tmp_path: Path) -> None:
    plan = spec(tmp_path, '  one: {count: 40, prompt: "You are {{ self.index }}."}\n')
    one = asked(plan)["one"]
    assert (len(one.asked), one.more) == (MOST, 40 - MOST)


def test_a_made_up_episode_says_what_it_is_told_in_the_form_that_each_parser_reads() -> None:
    episode = asyncio.run(made_up(solver_judge(), COUNTDOWN, "3 + 4"))
    assert [t.action for t in episode.trajectories] == [RIGHT, RIGHT, RIGHT]
    assert episode.task == COUNTDOWN


def test_a_call_of_a_tool_gives_what_it_gave_on_record_and_is_not_made_again() -> None:
    plan = compile_file("react", ["roles.agent.tools=calculator"])

    def says(request: Request) -> Completion:
        if request.id.call > 1:
            return Completion(RIGHT)
        return Completion("Let me see.", calls=(ToolCall("calculator", {"expression": "3 + 4"}),))

    ran = asyncio.run(episode(plan, [LimitedModel(Calling(says), 8)]))
    other = str(ran.to_dict()).replace("'content': '7'", "'content': 'seven'")
    (agent,) = asked(plan, Episode.from_dict(ast.literal_eval(other))).values()
    assert [prompt.note for prompt in agent.asked] == ["", "call 2 of the turn"]
    assert agent.asked[1].messages[-1]["content"] == "seven"
