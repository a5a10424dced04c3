"""Tests of edges and rounds at run time; `test_random_specs` covers their combinations."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.compile import compile_file
from rolegraph.engine.errors import ModelError, SpecError
from rolegraph.engine.models import Request
from rolegraph.engine.models.replay import Replay
from rolegraph.engine.records import Episode
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.engine.vocabulary import RewardInputs
from tests.edge import COUNTDOWN, RIGHT, WRONG, ScriptedModel, run_one, write_spec
from tests.run.written import Roles, asked, plan, said, show, whose


def test_the_round_before_is_nothing_in_the_first(tmp_path: Path) -> None:
    debate = plan(
        tmp_path,
        {"debater": {"count": 2, "needs": {"debater": "previous"}, "prompt": show("debater")}},
        {"debate": {"roles": ["debater"], "times": 3}},
    )
    episode = run_one(debate, ScriptedModel(whose))
    turns = ["", "debater1.1 debater2.1 ", "debater1.2 debater2.2 "]
    assert asked(episode, "debater") == [turns, turns]
    assert [step.round for step in episode["debater"][0].steps] == [1, 2, 3]
    assert episode.metadata["rounds"] == {"debate": 3}


def test_a_loop_is_the_same_workflow_unrolled_by_hand(tmp_path: Path) -> None:
    looped = plan(
        tmp_path,
        {
            "solver": {"count": 2, "needs": {"critic": "previous"}, "prompt": show("critic")},
            "critic": {"needs": ["solver"], "prompt": show("solver")},
        },
        {"refine": {"roles": ["solver", "critic"], "times": 3}},
    )
    by_hand: Roles = {}
    for number in (1, 2, 3):
        before = f"critic_{number - 1}"
        needs = {"critic": {"of": before}} if number > 1 else {}
        prompt = show("critic") if number > 1 else "{{ '' }}"
        by_hand[f"solver_{number}"] = {"count": 2, "needs": needs, "prompt": prompt}
        by_hand[f"critic_{number}"] = {
            "needs": {"solver": {"of": f"solver_{number}"}},
            "prompt": show("solver"),
        }
    unrolled = plan(tmp_path, by_hand)

    def flat(request: Request) -> str:
        role, _, number = request.id.node.role.partition("_")
        return said(f"{role}{request.id.node.index}.{number or request.id.node.round}")

    ours = run_one(looped, ScriptedModel(flat))
    theirs = run_one(unrolled, ScriptedModel(flat))
    for role in ("solver", "critic"):
        for index, turns in enumerate(asked(ours, role)):
            assert turns == [asked(theirs, f"{role}_{number}")[index][0] for number in (1, 2, 3)]


def test_history_is_every_round_before_and_from_outside_all_of_them(tmp_path: Path) -> None:
    looped = plan(
        tmp_path,
        {
            "a": {"needs": {"a": "history"}, "prompt": show("a")},
            "past": {"needs": {"a": "history"}, "prompt": show("a")},
            "last": {"needs": ["a"], "prompt": "{{ a.action }} of {{ a.round }}"},
        },
        {"l": {"roles": ["a"], "times": 3}},
    )
    episode = run_one(looped, ScriptedModel(whose))
    assert asked(episode, "a") == [["", "a1.1 ", "a1.1 a1.2 "]]
    assert asked(episode, "past") == [["a1.1 a1.2 a1.3 "]]
    assert asked(episode, "last") == [["a1.3 of 3"]]


PAIR: Roles = {
    "solver": {
        "count": 2,
        "needs": {"verifier": {"join": "branch", "round": "previous"}},
        "prompt": "{{ verifier.ran }} {{ verifier.action }}",
    },
    "verifier": {"needs": {"solver": "each"}, "prompt": "{{ solver.action }}"},
    "after": {"needs": ["solver"], "prompt": "{% for s in solver %}{{ s.index }}:{{ s.round }} {% endfor %}"},
}
REFINE = {"refine": {"roles": ["solver", "verifier"], "times": 4, "until": 'verifier.action == "yes"'}}


def test_each_pair_of_a_loop_ends_for_itself(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        node = request.id.node
        return said("yes" if node.role == "verifier" and node.round == node.index else "no")

    episode = run_one(plan(tmp_path, PAIR, REFINE), ScriptedModel(answer))
    assert [len(t.steps) for t in episode["solver"]] == [1, 2]
    assert asked(episode, "solver") == [["False "], ["False ", "True no"]]
    assert asked(episode, "after") == [["1:1 2:2 "]]


def test_who_is_shared_by_several_branches_goes_on_while_one_of_them_does(tmp_path: Path) -> None:
    roles = {**PAIR, "moderator": {"needs": ["verifier"], "prompt": show("verifier")}}
    loop = {
        "roles": ["solver", "verifier", "moderator"],
        "times": 4,
        "until": "'no' not in verifier | map(attribute='action') | list",
    }

    def answer(request: Request) -> str:
        node = request.id.node
        return said("yes" if node.role == "verifier" and node.round == 2 * node.index - 1 else "no")

    episode = run_one(plan(tmp_path, roles, {"refine": loop}), ScriptedModel(answer))
    assert [len(t.steps) for t in episode["solver"]] == [1, 3]
    assert asked(episode, "moderator") == [["yes no ", "no ", "yes "]]


def test_an_end_is_an_end_whatever_is_seen_of_it_later(tmp_path: Path) -> None:
    roles: Roles = {
        "solver": {"prompt": "{{ task.question }}"},
        "critic": {"count": 2, "needs": {"solver": "each"}, "prompt": "{{ solver.action }}"},
    }
    until = {"l": {"roles": ["solver", "critic"], "times": 4, "until": "critic | length == 2"}}
    episode = run_one(plan(tmp_path, roles, until), ScriptedModel(whose))
    assert [len(t.steps) for t in episode.trajectories] == [1, 1, 1]


def test_an_end_is_false_while_one_that_it_reads_has_failed(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        if request.id.node.role == "verifier" and request.id.node.round == 1:
            raise ModelError("down")
        return said("yes")

    until = {"refine": {**REFINE["refine"], "until": 'verifier.action != "no"'}}
    episode = run_one(plan(tmp_path, PAIR, until), ScriptedModel(answer))
    assert [len(t.steps) for t in episode["solver"]] == [2, 2]


def test_a_loop_that_ends_spares_the_rest_and_what_waits_for_it_goes_on(tmp_path: Path) -> None:
    looped = plan(
        tmp_path,
        {
            "a": {"needs": {"b": "previous"}, "prompt": show("b")},
            "b": {"needs": ["a"], "prompt": show("a")},
            "after": {"needs": ["a", "b"], "prompt": "{{ a.action }} {{ b.action }}"},
        },
        {"l": {"roles": ["a", "b"], "times": 1000, "until": "b.round == 7"}},
    )
    model = ScriptedModel(whose)
    episode = run_one(looped, model)
    assert len(model.requests) == 15
    assert asked(episode, "after") == [["a1.7 b1.7"]]


def test_self_says_which_instance_is_asked(tmp_path: Path) -> None:
    looped = plan(
        tmp_path,
        {
            "a": {
                "count": 2,
                "prompt": "{{ self.role }} {{ self.index }} of {{ self.count }}, "
                "{{ self.round }}/{{ self.times }}{% for t in self.history %} {{ t.action }}{% endfor %}",
            }
        },
        {"l": {"roles": ["a"], "times": 2}},
    )
    episode = run_one(looped, ScriptedModel(whose))
    assert asked(episode, "a")[1] == ["a 2 of 2, 1/2", "a 2 of 2, 2/2 a2.1"]


def test_rounds_overlap_as_far_as_their_edges_allow(tmp_path: Path) -> None:
    looped = plan(tmp_path, {"a": {"prompt": "a"}}, {"l": {"roles": ["a"], "times": 5}})
    model = ScriptedModel(whose, latency=lambda _: 0.01)
    run_one(looped, model)
    assert model.most_under_way == 5


def test_a_turn_that_reads_self_as_a_whole_waits_for_the_earlier_turns(tmp_path: Path) -> None:
    prompt = "{{ [self] | map(attribute='history') | first | map(attribute='action') | join(' ') }}"
    looped = plan(tmp_path, {"a": {"prompt": prompt}}, {"l": {"roles": ["a"], "times": 3}})
    episode = run_one(looped, ScriptedModel(whose))
    assert asked(episode, "a") == [["", "a1.1", "a1.1 a1.2"]]


def test_an_instance_earns_what_its_last_turn_earns(tmp_path: Path) -> None:
    looped = plan(
        tmp_path,
        {"a": {"needs": {"a": "previous"}, "prompt": show("a")}},
        {"l": {"roles": ["a"], "times": 2}},
    )
    answers = [WRONG, RIGHT]
    episode = run_one(looped, ScriptedModel(lambda request: answers[request.id.node.round - 1]))
    (trajectory,) = episode.trajectories
    countdown = looped.roles[0].reward
    assert countdown is not None
    assert [step.reward for step in trajectory.steps] == [
        countdown.score(episode.task, step.action, RewardInputs({})).reward for step in trajectory.steps
    ]
    assert trajectory.reward == trajectory.steps[-1].reward


def test_a_reward_reads_the_last_turn_of_who_is_on_its_own_branch(tmp_path: Path) -> None:
    verifier = {
        **PAIR["verifier"],
        "parser": {"tag": "answer", "as": ["correct", "incorrect"]},
        "reward": 'action == ("correct" if solver.right else "incorrect")',
    }
    solver = {**PAIR["solver"], "parser": {"tag": "answer", "keep_tag": True}}
    roles = {**PAIR, "solver": solver, "verifier": verifier}
    loop = {"roles": ["solver", "verifier"], "times": 2, "until": 'verifier.action == "incorrect"'}
    refine = plan(tmp_path, roles, {"refine": loop})

    def answer(request: Request) -> str:
        node = request.id.node
        if node.role == "verifier":
            return said("correct")
        return RIGHT if node.index == node.round else WRONG

    task = {**COUNTDOWN, "id": "t"}
    episode = run_one(refine, ScriptedModel(answer), task)
    assert [t.reward for t in episode["verifier"]] == [0.0, 1.0]


def test_a_reward_that_finds_nobody_to_read_is_none_and_teaches_nothing(tmp_path: Path) -> None:
    routed = plan(
        tmp_path,
        {
            "a": {"when": "task.target == 0", "prompt": "a"},
            "b": {
                "needs": ["a"],
                "prompt": "{{ a.ran }}",
                "reward": 'action == ("correct" if a.right else "incorrect")',
            },
        },
    )
    episode = run_one(routed, ScriptedModel(whose))
    (trajectory,) = episode.trajectories
    assert (trajectory.reward, trajectory.masked) == (None, True)
    assert Membership().add([episode]).groups() == []


def test_turns_are_replayed_round_by_round(tmp_path: Path) -> None:
    refine = plan(tmp_path, PAIR, REFINE)
    first = run_one(refine, ScriptedModel(whose))
    again = run_one(refine, Replay.from_episodes([Episode.from_dict(first.to_dict())]))  # pyright: ignore

    def spoken(episode: Episode) -> list[list[str]]:
        return [[step.model_response for step in t.steps] for t in episode.trajectories]

    assert spoken(again) == spoken(first)


@pytest.mark.parametrize(
    ("roles", "loops", "message"),
    [
        ({"a": {"needs": {"b": "previous"}}, "b": {}}, {}, "a and b are in no loop together"),
        ({"a": {"needs": {"b": "history"}}, "b": {}}, {}, "b is in no loop, so it has one turn"),
        ({"a": {"count": 3}, "b": {"needs": {"a": {"chunks": 2}}}}, {}, "3 of a cannot be put into chunks"),
        (
            {"a": {"count": 2}, "b": {"count": 2}, "c": {"needs": {"a": "each", "b": "each"}}},
            {},
            "c fans out over both a and b; only one edge may fan out",
        ),
        (
            {"a": {"needs": ["b"]}, "b": {"needs": ["a"]}},
            {"l": {"roles": ["a", "b"], "times": 2}},
            "in a loop, let a see the round before: needs: {b: previous}",
        ),
        ({"a": {}}, {"l": {"roles": ["a"], "times": 2, "until": "task.target == 1"}}, "depends on none"),
        ({"a": {}, "b": {}}, {"l": {"roles": ["a", "c"], "times": 2}}, "no role 'c'"),
        (
            {"a": {}, "b": {}},
            {"l": {"roles": ["a"], "times": 2}, "m": {"roles": ["a"], "times": 2}},
            "a is in the loop l already",
        ),
        ({"a": {"when": "task.solution == 1"}}, {}, "would leak the label"),
        ({"a": {"when": "self.round > 1"}}, {}, "only in a loop"),
        ({"a": {"when": "self.index >"}}, {}, "not a valid condition"),
        ({"a": {"when": "len(task.target) > 1"}}, {}, "cannot be called in this expression"),
        (
            {"a": {"run": {"text": "{{ len(task.target) }}"}}},
            {},
            "cannot be called in the argument of a tool",
        ),
        ({"a": {}, "b": {"needs": {"a": "ech"}}}, {}, "ech"),
        ({"self": {}}, {}, "a role cannot be named 'self'"),
    ],
)
def test_what_cannot_be_is_said(roles: Roles, loops: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = {"data": {"train": {"countdown": {"count": 8}}}}
    with pytest.raises(SpecError) as raised:
        plan(tmp_path, roles, loops, **data)
    assert message in str(raised.value)


def test_what_an_episode_is_done_with_it_holds_no_longer(tmp_path: Path) -> None:
    def tasks(request: Request) -> str:
        alive.append(sum(isinstance(thing, asyncio.Task) for thing in gc.get_objects()))
        return whose(request)

    alive: list[int] = []
    two = plan(
        tmp_path, {"a": {"count": 2, "needs": {"a": "previous"}}}, {"talk": {"roles": ["a"], "times": 40}}
    )
    gc.freeze()  # gc.get_objects() then skips all earlier objects
    try:
        run_one(two, ScriptedModel(tasks))
    finally:
        gc.unfreeze()
    assert len(alive) == 80
    assert max(alive) < 10


# loops in loops

NESTED: Roles = {
    "recruiter": {"needs": {"judge": "previous"}, "prompt": show("judge")},
    "expert": {
        "count": 2,
        "needs": {"recruiter": "this", "critic": "previous", "judge": "history"},
        "prompt": f"{{{{ recruiter.action }}}} {show('critic')}; {show('judge')}",
    },
    "critic": {"needs": {"expert": "this"}, "prompt": show("expert")},
    "judge": {
        "needs": {"expert": "this", "talk": {"of": "critic", "round": "history"}},
        "prompt": f"{show('expert')}; {show('talk')}",
    },
}
PLAN = {
    "talk": {"roles": ["expert", "critic"], "times": 2},
    "plan": {"roles": ["recruiter", "talk", "judge"], "times": 2},
}


def test_a_loop_in_a_loop_is_the_same_workflow_unrolled_by_hand(tmp_path: Path) -> None:
    by_hand: Roles = {}
    critics: dict[str, Any] = {}
    for outer in (1, 2):
        judge = {"judge": {"of": "judge_1"}} if outer == 2 else {}
        judged = show("judge") if outer == 2 else ""
        by_hand[f"recruiter_{outer}"] = {"needs": judge, "prompt": judged or "{{ '' }}"}
        for number in (2 * outer - 1, 2 * outer):
            critic = {} if number % 2 else {"critic": {"of": f"critic_{number - 1}"}}
            criticised = "" if number % 2 else show("critic")
            by_hand[f"expert_{number}"] = {
                "count": 2,
                "needs": {"recruiter": {"of": f"recruiter_{outer}"}, **critic, **judge},
                "prompt": f"{{{{ recruiter.action }}}} {criticised}; {judged}",
            }
            by_hand[f"critic_{number}"] = {
                "needs": {"expert": {"of": f"expert_{number}"}},
                "prompt": show("expert"),
            }
            critics[f"talk_{number}"] = {"of": f"critic_{number}"}
        by_hand[f"judge_{outer}"] = {
            "needs": {"expert": {"of": f"expert_{2 * outer}"}, **critics},
            "prompt": f"{show('expert')}; {''.join(map(show, critics))}",
        }

    def flat(request: Request) -> str:
        role, _, number = request.id.node.role.partition("_")
        return said(f"{role}{request.id.node.index}.{number or request.id.node.round}")

    ours = run_one(plan(tmp_path, NESTED, PLAN), ScriptedModel(flat))
    theirs = run_one(plan(tmp_path, by_hand), ScriptedModel(flat))
    for role in NESTED:
        for index, turns in enumerate(asked(ours, role)):
            numbers = range(1, len(turns) + 1)
            assert turns == [asked(theirs, f"{role}_{number}")[index][0] for number in numbers]
    assert [step.round for step in ours["expert"][1].steps] == [1, 2, 3, 4]
    assert ours.metadata["rounds"] == {"talk": 4, "plan": 2}
    assert ours.metadata["ended"] == {"talk": {"times": 2}, "plan": "times"}


def test_an_inner_loop_ends_in_each_outer_round_and_the_outer_one_for_all(tmp_path: Path) -> None:
    loops = {
        "talk": {**PLAN["talk"], "times": 3, "until": 'critic.action == "agree"'},
        "plan": {**PLAN["plan"], "times": 5, "until": 'judge.action == "done"'},
    }
    place = "{{ self.outer }}.{{ self.round }} of {{ self.times }}"
    roles = {**NESTED, "critic": {"needs": {"expert": "this"}, "prompt": place}}

    def answer(request: Request) -> str:
        node = request.id.node
        ends = {"critic": node.round in (2, 4), "judge": node.round == 3}
        return said({"critic": "agree", "judge": "done"}[node.role] if ends.get(node.role) else "more")

    nested = plan(tmp_path, roles, loops, episode={"metrics": {"talked": "talk.rounds"}})
    episode = run_one(nested, ScriptedModel(answer))
    assert [step.round for step in episode["critic"][0].steps] == [1, 2, 4, 7, 8, 9]
    assert asked(episode, "critic") == [[f"{p} of 3" for p in ("1.1", "1.2", "2.1", "3.1", "3.2", "3.3")]]
    assert episode.metadata["ended"] == {"talk": {"until": 2, "times": 1}, "plan": "until"}
    assert episode.metrics["talked"] == 6


def test_a_loop_whose_condition_is_false_is_skipped_with_the_loops_in_it(tmp_path: Path) -> None:
    for when, ran in (("task.target == 7", True), ("task.target == 8", False), ("task.target > 'x'", False)):
        skipped = {**PLAN, "plan": {**PLAN["plan"], "when": when}}
        roles = {**NESTED, "after": {"needs": ["expert"], "prompt": "{{ expert | length }}"}}
        episode = run_one(plan(tmp_path, roles, skipped), ScriptedModel(whose))
        assert {t.name for t in episode.trajectories} == ({*roles} if ran else {"after"})
        assert asked(episode, "after") == [["2" if ran else "0"]]
        assert episode.metadata["rounds"] == ({"talk": 4, "plan": 2} if ran else {"talk": 0, "plan": 0})
        assert ran or episode.metadata["ended"] == {"plan": "when"}
        assert ("uncomputed_conditions" in episode.metadata) == ("x" in when)


def test_of_the_roles_that_decide_those_that_ran_do(tmp_path: Path) -> None:
    roles: Roles = {"a": {}, "b": {}, "c": {}}
    loops = {
        "one": {"roles": ["a"], "times": 1, "when": "task.target == 7"},
        "two": {"roles": ["b"], "times": 1, "when": "task.target != 7"},
    }
    for correct, is_right in (
        (["a.right", "b.right"], True),
        ("b.right", False),
        (["a.right", "c.right"], False),
        ("a.right", True),
    ):
        chosen = plan(tmp_path, roles, loops, episode={"correct": correct})
        model = ScriptedModel(lambda request: WRONG if request.id.node.role == "c" else RIGHT)
        assert run_one(chosen, model).is_correct is is_right


def test_turns_of_one_place_in_both_loops_are_compared_and_rewards_read_the_outer_round(
    tmp_path: Path,
) -> None:
    paid = {**NESTED, "critic": {**NESTED["critic"], "reward": "judge.reward", "credit": "turn"}}
    judged = plan(tmp_path, {**paid, "critic": {**paid["critic"], "group": "turn"}}, PLAN)

    def answer(request: Request) -> str:
        return RIGHT if request.id.node == ("judge", 1, 2) else WRONG

    episode = run_one(judged, ScriptedModel(answer))
    assert [step.reward for step in episode["critic"][0].steps] == [0.0, 0.0, 1.0, 1.0]
    groups = Membership(judged.trained).add([episode]).groups()
    rounds = [group.key.round for group in groups if group.role == "critic"]
    assert sorted(rounds) == [1, 2, 3, 4]
    outer = plan(tmp_path, {**paid, "critic": {**paid["critic"], "group": {"by": "self.outer"}}}, PLAN)
    groups = Membership(outer.trained).add([run_one(outer, ScriptedModel(answer))]).groups()
    sizes = [len(group.members) for group in groups if group.role == "critic"]
    assert sizes == [2, 2], "one group for each outer round"


def test_an_environment_is_stepped_by_outer_rounds_and_another_stays_closed(tmp_path: Path) -> None:
    walks = {"prompt": "{{ self.observation }}", "reward": "env"}
    advice = "{{ self.outer }}.{{ self.round }} {{ self.observation }}"
    roles: Roles = {"adviser": {"prompt": advice}, "agent": walks, "other": walks}
    grid = {"grid": {"size": 4}}
    loops = {
        "confer": {"roles": ["adviser"], "times": 2},
        "walk": {"roles": ["confer", "agent"], "env": grid, "players": "agent", "times": 3},
        "again": {"roles": ["other"], "env": grid, "times": 3, "when": "task.target == 8"},
    }
    episode = run_one(plan(tmp_path, roles, loops), ScriptedModel(lambda request: said("hm")))
    (seen,), (advised,) = asked(episode, "agent"), asked(episode, "adviser")
    assert advised == [f"{n // 2 + 1}.{n % 2 + 1} {seen[n // 2]}" for n in range(6)]
    assert {t.name for t in episode.trajectories} == {"adviser", "agent"}
    assert episode.metadata["ended"]["again"] == "when"


def test_a_history_and_its_ties_and_places_go_by_round_then_index(tmp_path: Path) -> None:
    answers = {1: "zxx", 2: "yyw"}
    roles: Roles = {
        "a": {
            "count": 2,
            "reward": "judge.action.scores[2 * (self.round - 1) + self.index - 1]",
            "credit": "turn",
        },
        "judge": {
            "needs": {"a": "history"},
            "prompt": show("a"),
            "parser": "json",
            "reward": None,
            "estimator": None,
        },
    }
    loops = {"talk": {"roles": ["a"], "times": 3}}

    def answer(request: Request) -> str:
        role, index, number = request.id.node
        return '{"scores": [1, 2, 3, 4, 5, 6]}' if role == "judge" else said(answers[index][number - 1])

    made = plan(tmp_path, roles, loops, episode={"correct": "all(judge.right)"})
    episode = run_one(made, ScriptedModel(answer))
    assert asked(episode, "judge") == [["z y x y x w "]]
    assert [[step.reward for step in t.steps] for t in episode["a"]] == [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]
    vote = {"vote": {"needs": {"a": "history"}, "run": "majority"}}
    spec = {
        "rolegraph": 2,
        "name": "tie",
        "data": {"train": "countdown"},
        "roles": {
            "a": {"count": 2, "prompt": "?", "parser": {"tag": "answer"}},
            **vote,
        },
        "loops": loops,
    }
    tie = compile_file(write_spec(tmp_path, yaml.safe_dump(spec, sort_keys=False), "tie.yaml"))
    assert run_one(tie, ScriptedModel(answer))["vote"][0].action == "y", "x and y twice each, y first"
