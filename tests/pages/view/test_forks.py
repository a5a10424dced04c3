"""Tests of the viewer's turns that go on from another role's conversation, or begin their own anew."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.records import NodeId
from rolegraph.pages.view.texts import earlier_messages
from rolegraph.pages.view.turns import turns
from tests.edge import ScriptedModel, run_one
from tests.run.test_forks import STEPS, TALK, folding, thinking
from tests.run.written import plan, whose


def test_a_fork_shows_the_messages_that_it_shares_as_those_of_its_trunk(tmp_path: Path) -> None:
    taken = turns(run_one(plan(tmp_path, folding(), STEPS), ScriptedModel(whose)))
    (first,), (second,) = (taken[NodeId("branch", 1, number)].calls for number in (3, 4))
    trunk = taken[NodeId("agent", 1, 2)].calls[0].step.chat_completions
    assert first.earlier == [*trunk]
    assert first.forked == NodeId("agent", 1, 2)
    assert [message["content"] for message in first.prompt] == ["try 1"]
    assert earlier_messages(first) == "4 earlier messages, of the conversation of agent 1, round 2"
    assert second.forked is None
    assert earlier_messages(second) == "6 earlier messages"


def test_a_turn_that_begins_anew_says_so(tmp_path: Path) -> None:
    taken = turns(run_one(plan(tmp_path, thinking("self.round == 3"), TALK), ScriptedModel(whose)))
    said = [taken[NodeId("thinker", 1, number)].begins_anew for number in (1, 2, 3, 4)]
    assert said == [False, False, True, False]
    assert taken[NodeId("thinker", 1, 3)].calls[0].earlier == []
