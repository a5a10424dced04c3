"""An environment in one episode: its transitions, who moves in each, what each sees, and what it earned.

In: the players' turns of a round. Out: the next transition. Knows no model, no prompt and no reward.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.compile.plan import EnvPlan, Node
from rolegraph.engine.limits.tools import OBSERVATION_TEXT, TOOL_TEXT
from rolegraph.engine.records import Task, derive_seed
from rolegraph.engine.run.session import NodeResult
from rolegraph.engine.vocabulary import EnvironmentFailure, LiveEnvironment, Transition
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error, finite_number, plain_json

_logger = logging.getLogger(__name__)


def seed_of(task: Task) -> int:
    """The seed of a task's environment: its own `seed`, else what follows from its id."""
    seed = task.get("seed")
    return seed if type(seed) is int else derive_seed(0, "environment", task["id"])


class EnvironmentSession:
    """One environment while it goes on. It is opened with its first transition."""

    __slots__ = ("_early", "_earned", "_live", "_plan", "_seed", "_transitions", "_turns", "info")

    def __init__(self, plan: EnvPlan, task: Task) -> None:
        self._plan, self._seed = plan, seed_of(task)
        self._live: LiveEnvironment | None = None
        self._transitions: list[Transition] = []
        self._turns: dict[int, int] = {}
        """By player, the node of its last turn."""
        self._earned: dict[int, float] = {}
        """By node, what came after it."""
        self._early: dict[int, float] = {}
        """By player, what came before its first turn."""
        self.info: dict[str, Any] = {}
        """What the transitions say besides."""

    @property
    def loop(self) -> int:
        """The loop that it is of."""
        return self._plan.loop

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do in it."""
        return bool(self._transitions) and self._transitions[-1].done

    def over_before(self, round: int) -> bool:
        """Whether it was over before a round: who else is in the round that ended it still has a turn."""
        return bool(self._transitions) and self._transitions[min(round, len(self._transitions)) - 1].done

    async def go_on(self, results: Sequence[NodeResult | None]) -> None:
        """The next transition: the start, or what comes of the turns of the round that was.

        Raises EnvironmentFailure, whatever goes wrong in the environment.
        """
        number = len(self._transitions)
        nodes = self._plan.player_nodes[number - 1] if number else ()
        ran = {player: result for player, node in enumerate(nodes) if (result := results[node]) is not None}
        for player in ran:
            self._turns[player] = nodes[player]
            self._earned[nodes[player]] = self._early.pop(player, 0.0)
        try:
            actions = {player: result.view.action for player, result in ran.items()}
            transition = self._checked(await self._next(actions))
        except EnvironmentFailure:
            raise
        except FOREIGN_ERRORS as error:  # a package's own code: whatever it raises ends this episode only
            raise EnvironmentFailure(f"the environment raised {describe_error(error)}") from error
        for player, reward in transition.rewards.items():
            turn = self._turns.get(player)
            kept, key = (self._early, player) if turn is None else (self._earned, turn)
            kept[key] = kept.get(key, 0.0) + float(reward)
        self.info.update(transition.info)
        self._transitions.append(transition)

    async def _next(self, actions: Mapping[int, Any]) -> Transition:
        if not self._transitions:
            self._live = self._plan.environment.open()
            return await self._live.reset(self._seed, self._players)
        assert self._live is not None
        before = self._transitions[-1]
        # Nothing has changed where nobody moved of those who were to move.
        if before.done or (before.observations and not actions):
            return before._replace(rewards={}, info={})
        return await self._live.step(actions)

    def _checked(self, given: Transition) -> Transition:
        """What an environment gave, of the types that it has to be; raises ValueError, or whatever else."""
        strangers = [
            player for player in (*given.observations, *given.rewards) if player not in range(self._players)
        ]
        if strangers:
            raise ValueError(f"it speaks of player {strangers[0]}, and there are {self._players}, from 0")
        for player, shown in given.observations.items():
            if not isinstance(shown, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a package's own
                raise TypeError(f"it shows player {player} {type(shown).__name__}, expected text")
            if len(shown) > OBSERVATION_TEXT.most:
                raise ValueError(OBSERVATION_TEXT.exceeded(f"it shows player {player}"))
        return Transition(
            given.observations,
            {player: finite_number(reward, "it gave the reward") for player, reward in given.rewards.items()},
            bool(given.done),
            plain_json(dict(given.info), TOOL_TEXT) if given.info else {},
        )

    @property
    def _players(self) -> int:
        return len(self._plan.player_nodes[0])

    def moves(self, node: Node) -> bool:
        """Whether it is an instance's turn to move in a round; who only advises has one in each."""
        player = self._player(node)
        return player is None or player in self._transitions[node.id.round - 1].observations

    def observation(self, node: Node) -> str:
        """What an instance sees before a round; who only advises sees what those see who move."""
        shown = self._transitions[node.id.round - 1].observations
        player = self._player(node)
        return "\n\n".join(dict.fromkeys(shown.values())) if player is None else shown.get(player, "")

    def _player(self, node: Node) -> int | None:
        first = self._plan.players.get(node.role)
        return None if first is None else first + node.id.index - 1

    def earned(self, node: int) -> float | None:
        """What a player's turn earned; None where the environment never answered it."""
        return self._earned.get(node)

    def stopped(self) -> Sequence[int]:
        """The players' last turns, which nothing may have come of; for whoever had none, its first."""
        return [self._turns.get(player, node) for player, node in enumerate(self._plan.player_nodes[0])]

    async def close(self) -> None:
        """Let go of the environment; where it will not, the episode is over all the same."""
        live, self._live = self._live, None
        try:
            if live is not None:
                await live.close()
        except FOREIGN_ERRORS as error:
            _logger.warning("an environment could not be closed: %s: %s", type(error).__name__, error)
