"""Tests of recipes whose rewards are expressions over several instances: what each instance earns."""

from __future__ import annotations

from pathlib import Path

from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.models import Request
from rolegraph.engine.records import Episode
from tests.compile.test_recipes import DATA, HEAD, RECIPES, write_files
from tests.edge import ScriptedModel, run_one, write_spec


def recipe(folder: Path, title: str) -> Plan:
    """Compile a recipe of the documentation in a folder with its files."""
    write_files(folder)
    text = RECIPES[title]
    return compile_file(write_spec(folder, HEAD + ("" if "data:" in text else DATA) + text))


def earned(episode: Episode, role: str) -> list[float | None]:
    return [it.reward for it in episode[role]]


def test_the_highest_bid_is_paid_and_equal_bids_share(tmp_path: Path) -> None:
    plan = recipe(tmp_path, "An auction by private value")
    task = {"id": "t", "question": "q", "values": [9, 8, 7]}
    for bids, paid in (
        (["3", "5", "1"], [0, 3, 0]),
        (["5", "5", "1"], [2, 1.5, 0]),
        (["4", "none", "4"], [2.5, 0, 1.5]),
    ):
        model = ScriptedModel(lambda request, bids=bids: f"<bid>{bids[request.id.node.index - 1]}</bid>")
        assert earned(run_one(plan, model, task), "bidder") == paid


def test_a_question_earns_most_where_few_answers_are_right(tmp_path: Path) -> None:
    plan = recipe(tmp_path, "Groups over a batch")
    task = {"id": "t", "question": "q", "document": "d", "hops": 1}
    for right, reward in ((0, 0), (1, 1), (3, 1 / 3), (4, 0)):

        def answer(request: Request, right: int = right) -> str:
            if request.id.node.role == "proposer":
                return '{"question": "1 + 1?", "answer": "2"}'
            return f"<answer>{2 if request.id.node.index <= right else 3}</answer>"

        assert earned(run_one(plan, ScriptedModel(answer), task), "proposer") == [reward]


def test_an_opening_earns_what_the_others_learn_after_it(tmp_path: Path) -> None:
    plan = recipe(tmp_path, "Influence on others")
    task = {"id": "t", "question": "q", "answer": "1"}
    opening, reply = [1, 0, 0], [1, 1, 0]

    def answer(request: Request) -> str:
        said = opening if request.id.node.role == "opening" else reply
        return f"<answer>{said[request.id.node.index - 1]}</answer>"

    assert earned(run_one(plan, ScriptedModel(answer), task), "opening") == [1 + 0.5 * 1, 0, 0.5 * 1]
