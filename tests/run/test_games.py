"""Tests of the shipped specs of games: self-play, a grid to cross, and games of TextArena."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import signal
from collections.abc import Callable

import pytest

from rolegraph.engine.compile import compile_file
from rolegraph.engine.models import Request
from rolegraph.engine.records import FailureName
from rolegraph.engine.training.advantages.ledger import Membership
from rolegraph.integrations.textarena import arena
from tests.edge import ScriptedModel, run_one

Choose = Callable[[str, random.Random], str]


def move(text: str) -> str:
    return f"<answer>{text}</answer>"


def free_cell(request: Request) -> str:
    """Return a legal move of tic-tac-toe that seldom wins."""
    (cells,) = re.findall(r"Free cells: (.*)\.", request.messages[0]["content"])
    return move(cells.split(", ")[0])


def test_self_play_is_zero_sum_whoever_moves() -> None:
    plan = compile_file("tic_tac_toe")
    for task in plan.data["train"].rows(16):
        done = run_one(plan, ScriptedModel(free_cell), task)
        (x,), (o,) = done["x"], done["o"]
        assert x.reward is not None and x.reward + (o.reward or 0.0) == 0.0
        assert sum(step.reward for step in x.steps) == x.reward
        assert done.is_correct == (x.reward == 1.0)
        assert done.metadata["ended"] == {"play": "env"}
        assert done.metadata["environment"]["reason"] in (
            "X has three in a row",
            "O has three in a row",
            "draw",
        )


def test_a_planner_earns_what_its_walker_earns_turn_by_turn() -> None:
    plan = compile_file("plan_path")
    rng = random.Random(3)

    def answer(request: Request) -> str:
        if request.id.node.role == "planner":
            return "<plan>go round the wall</plan>"
        asked = request.messages[0]["content"]
        assert "The planner says: go round the wall" in asked
        (legal,) = re.findall(r"Legal moves here: (.*) \(", asked)
        return move(rng.choice(legal.split(", ")))

    for task in plan.data["train"].rows(8):
        done = run_one(plan, ScriptedModel(answer), task)
        (planner,), (walker,) = done["planner"], done["walker"]
        assert [step.reward for step in planner.steps] == [step.reward for step in walker.steps]
        assert walker.reward == pytest.approx(sum(step.reward for step in walker.steps))
        assert done.metadata["rounds"]["walk"] == len(walker.steps) <= 5
        groups = Membership(plan.trained).add([done]).groups()
        assert len(groups) == 2 * len(walker.steps), "a group for each round of each role"


def listed(pattern: str) -> Choose:
    """Return a function that picks a random move from the list at the end of an observation."""
    return lambda seen, rng: rng.choice(re.findall(pattern, seen[seen.rindex("vailable") :]))


def pile(seen: str, rng: random.Random) -> str:
    piles = [(at, count) for at, count in re.findall(r"pile (\d): (\d+)", seen)[-3:] if int(count)]
    at, count = rng.choice(piles)
    return f"[{at} {rng.randint(1, int(count))}]"


GAMES: dict[str, tuple[int, Choose, bool]] = {
    "TicTacToe-v0": (2, listed(r"\[\d\]"), True),
    "KuhnPoker-v0": (2, listed(r"\[\w+\]"), True),
    "Nim-v0": (2, pile, True),
    "ThreePlayerTicTacToe-v0": (3, listed(r"\[\d+\]"), False),
    "FrozenLake-v0-random": (1, listed(r"\[\w+\]"), False),
    "IteratedPrisonersDilemma-v0": (2, lambda seen, rng: rng.choice(["[cooperate]", "[defect]"]), False),
}
"""Number of players, function that picks a move, and True for a zero-sum game, by the game's name."""
needs_textarena = pytest.mark.skipif(
    importlib.util.find_spec("textarena") is None, reason="needs the extra `textarena`"
)


@needs_textarena
@pytest.mark.parametrize("game", GAMES)
def test_a_game_of_textarena_is_played_to_its_end(game: str) -> None:
    players, choose, zero_sum = GAMES[game]
    plan = compile_file("textarena", [f"loops.play.env.textarena={game}", f"roles.player.count={players}"])
    rng = random.Random(1)
    model = ScriptedModel(lambda request: move(choose(request.messages[0]["content"], rng)))
    (task,) = plan.data["train"].rows(1)
    done = run_one(plan, model, task)
    assert done.metadata["ended"] == {"play": "env"}, "the game itself was over"
    assert done.metadata["environment"]["reason"]
    assert "failures" not in done.metadata
    rewards = [trajectory.reward for trajectory in done["player"]]
    assert len(rewards) == players and all(reward is not None for reward in rewards)
    assert not zero_sum or sum(reward or 0.0 for reward in rewards) == 0.0
    assert model.most_under_way == 1, "one player moves at a time"


@needs_textarena
def test_a_worker_that_is_killed_ends_the_episode_by_name() -> None:
    plan = compile_file("textarena", ["loops.play.env.textarena=TicTacToe-v0"])
    (task,) = plan.data["train"].rows(1)

    def answer(request: Request) -> str:
        for workers in arena._workers.values():  # pyright: ignore[reportPrivateUsage]
            for worker in workers._idle:  # pyright: ignore[reportPrivateUsage]
                os.kill(worker._process.pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
        return move("[4]")

    done = run_one(plan, ScriptedModel(answer), task)
    assert [t.failure and t.failure.name for t in done["player"]] == [FailureName.ENVIRONMENT_ERROR] * 2
    assert all(t.masked for t in done["player"])
    # Either the call meets the death of the process, or a new process lacks the game.
    assert "process has ended" in done.metadata["failures"][0]["message"]
