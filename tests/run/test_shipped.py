"""Tests of the shipped specs that run tools, with a scripted model."""

from __future__ import annotations

from rolegraph.engine.compile import compile_file
from rolegraph.engine.models import Request
from tests.edge import ScriptedModel, run_one

GOOD, BAD = "3 + 4", "3 * 4"


def said(text: object) -> str:
    return f"<answer>{text}</answer>"


def test_the_best_of_four_is_that_with_the_highest_score() -> None:
    def answer(request: Request) -> str:
        node = request.id.node
        if node.role == "solver":
            return said(GOOD if node.index == 3 else BAD)
        return said(9 if GOOD in request.messages[-1]["content"] else 2)

    done = run_one(compile_file("best_of_n"), ScriptedModel(answer))
    assert done["best"][0].action == GOOD
    assert done.is_correct
    assert done.metrics == {"solver_acc": 0.25, "best_acc": 1.0}


def test_each_editor_reads_the_critics_of_its_own_draft() -> None:
    def answer(request: Request) -> str:
        node, asked = request.id.node, request.messages[-1]["content"]
        if node.role == "critic":
            return f"critic {node.index} of {(node.index + 1) // 2}"
        if node.role == "editor":
            own = [f"critic {number} of {node.index}" for number in (2 * node.index - 1, 2 * node.index)]
            assert [line.partition(": ")[2] for line in asked.splitlines() if "Critic" in line] == own
        return said(GOOD)

    done = run_one(compile_file("critics"), ScriptedModel(answer))
    assert [len(done[role]) for role in ("draft", "critic", "editor", "vote")] == [2, 4, 2, 1]
    assert done.is_correct


def test_a_debate_ends_in_a_vote_on_the_last_round() -> None:
    def answer(request: Request) -> str:
        node = request.id.node
        return said(GOOD if node.round == 2 and node.index > 1 else BAD)

    done = run_one(compile_file("debate"), ScriptedModel(answer))
    assert GOOD in done["vote"][0].action
    assert done.is_correct
