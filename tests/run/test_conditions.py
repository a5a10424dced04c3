"""Tests of `when`: the roles that run, and the roles that depend on a skipped role."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edge import ScriptedModel, by_role, run_one
from tests.run.written import asked, plan, said, whose


def test_who_is_skipped_asks_nothing_earns_nothing_and_fails_nothing(tmp_path: Path) -> None:
    routed = plan(
        tmp_path,
        {
            "router": {"prompt": "which?"},
            "sums": {"needs": ["router"], "when": 'router.action == "sums"', "prompt": "sum"},
            "words": {"needs": ["router"], "when": 'router.action == "words"', "prompt": "word"},
            "last": {
                "needs": ["sums", "words"],
                "prompt": "{{ sums.ran }} {{ sums.action }}|{{ words.ran }} {{ words.action }}|"
                "{% for w in words %}{{ w.action }}{% endfor %}",
            },
        },
        episode={"correct": "all(words.right)", "metrics": {"words": "mean(words.reward)"}},
    )
    model = ScriptedModel(by_role({"router": said("sums"), "sums": said("9"), "last": said("x")}))
    episode = run_one(routed, model)
    assert [t.name for t in episode.trajectories] == ["router", "sums", "last"]
    assert asked(episode, "last") == [["True 9|False |"]]
    assert "failures" not in episode.metadata
    assert not episode.is_correct
    assert "words" not in episode.metrics, "a role that was skipped has no mean"


def test_a_fan_out_over_a_list_is_a_count_with_a_condition(tmp_path: Path) -> None:
    fan = plan(
        tmp_path,
        {
            "planner": {"parser": "json", "prompt": "plan"},
            "worker": {
                "count": 4,
                "needs": ["planner"],
                "when": "self.index <= planner.action | length",
                "prompt": "{{ planner.action[self.index - 1] }}",
            },
            "checker": {"needs": {"worker": "each"}, "prompt": "{{ worker.action }}"},
        },
    )
    plans = by_role({"planner": '["x", "y"]', "worker": said("w"), "checker": said("c")})
    episode = run_one(fan, ScriptedModel(plans))
    assert asked(episode, "worker") == [["x"], ["y"]]
    assert len(episode["checker"]) == 2, "what is one for each of the skipped is skipped with them"


@pytest.mark.parametrize(
    "when",
    [
        "self.index == 2",
        "self.index == 2 or self.count == 5 or self.lineage[0] == 2",
        "self.index == 2 and task.question",
        "self.index == 2 or task.question == 'another'",
    ],
)
def test_a_condition_may_read_the_number_of_the_instance(tmp_path: Path, when: str) -> None:
    routed = plan(tmp_path, {"a": {"count": 4, "when": when, "prompt": "{{ task.question }}"}})
    assert {t.index for t in run_one(routed, ScriptedModel(whose)).trajectories} == {2}


def test_a_condition_that_cannot_be_computed_is_false_and_counted(tmp_path: Path) -> None:
    routed = plan(
        tmp_path,
        {"a": {"prompt": "a"}, "b": {"needs": ["a"], "when": "a.action + 1 > 3", "prompt": "b"}},
    )
    episode = run_one(routed, ScriptedModel(whose))
    assert [t.name for t in episode.trajectories] == ["a"]
    assert episode.metadata["uncomputed_conditions"] == 1
