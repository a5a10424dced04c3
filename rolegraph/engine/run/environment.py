"""The environment of one episode: its transitions, the turns to move, the observations and the rewards.

In: the players' actions of a round. Out: the next transition. Knows no model and no prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rolegraph.engine.compile.plan import Node
from rolegraph.engine.compile.role_plan import EnvPlan
from rolegraph.engine.errors import FOREIGN_ERRORS, describe_error
from rolegraph.engine.limits.tools import OBSERVATION_TEXT, TOOL_TEXT
from rolegraph.engine.records import Task, derive_seed
from rolegraph.engine.run.turn import NodeResult
from rolegraph.engine.vocabulary import EnvironmentFailure, LiveEnvironment, Transition
from rolegraph.engine.vocabulary.foreign import finite_number, plain_json

_logger = logging.getLogger(__name__)


def environment_seed(task: Task) -> int:
    """Return the seed of a task's environment: the task's own `seed`, else one derived from its id."""
    seed = task.get("seed")
    return seed if type(seed) is int else derive_seed(0, "environment", task["id"])


class EnvironmentSession:
    """Environment of a loop in one episode, with the transitions so far; the first `advance` opens it.

    Players are numbered from 0.
    """

    def __init__(self, plan: EnvPlan, task: Task) -> None:
        self.plan, self._seed, self._players = plan, environment_seed(task), len(plan.player_nodes[0])
        self._live: LiveEnvironment | None = None
        self._transitions: list[Transition] = []
        self._last_turns: dict[int, int] = {}
        """Node of the last turn of each player."""
        self._rewards: dict[int, float] = {}
        """Sum of the rewards after the turn of each node."""
        self._early: dict[int, float] = {}
        """Rewards that the environment gave each player before the player's first turn."""
        self.info: dict[str, Any] = {}
        """`info` of all transitions, merged."""

    @property
    def over(self) -> bool:
        """True if the last transition was `done`."""
        return bool(self._transitions) and self._transitions[-1].done

    def over_before(self, role: int, number: int) -> bool:
        """Return True if the environment was done before the round of turn `number` of a role."""
        last_index = min(self._step(role, number), len(self._transitions) - 1)
        return last_index >= 0 and self._transitions[last_index].done

    async def advance(self, results: Sequence[NodeResult | None]) -> None:
        """Reset the environment, or apply the actions of the last round.

        Args:
            results: The episode's results by node.

        Raises:
            EnvironmentFailure: Something failed in the environment, or its transition is invalid.
        """
        number = len(self._transitions)
        nodes = self.plan.player_nodes[number - 1] if number else ()
        ended = {player: result for player, node in enumerate(nodes) if (result := results[node]) is not None}
        for player in ended:
            self._last_turns[player] = nodes[player]
            self._rewards[nodes[player]] = self._early.pop(player, 0.0)
        try:
            actions = {player: result.view.action for player, result in ended.items()}
            transition = self._checked(await self._next(actions))
        except EnvironmentFailure:
            raise
        except FOREIGN_ERRORS as error:  # a package's own code: its error ends this episode only
            reason = describe_error(error, with_place=True)
            raise EnvironmentFailure(f"the environment raised {reason}") from error
        for player, reward in transition.rewards.items():
            node = self._last_turns.get(player)
            sums, key = (self._early, player) if node is None else (self._rewards, node)
            sums[key] = sums.get(key, 0.0) + float(reward)
        self.info.update(transition.info)
        self._transitions.append(transition)

    async def _next(self, actions: Mapping[int, Any]) -> Transition:
        if not self._transitions:
            self._live = self.plan.environment.open()
            return await self._live.reset(self._seed, self._players)
        assert self._live is not None
        last_transition = self._transitions[-1]
        # No player of those to move took a turn: the state is as it was.
        if last_transition.done or (last_transition.observations and not actions):
            return last_transition._replace(rewards={}, info={})
        return await self._live.step(actions)

    def _checked(self, given: Transition) -> Transition:
        """Return a copy of a transition with checked types; raises ValueError or TypeError for bad foreign
        data."""
        players = range(self._players)
        strangers = [player for player in (*given.observations, *given.rewards) if player not in players]
        if strangers:
            raise ValueError(f"it names player {strangers[0]}, expected 0 to {self._players - 1}")
        for player, text in given.observations.items():
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a package's own
                raise TypeError(f"it shows player {player} {type(text).__name__}, expected text")
            if len(text) > OBSERVATION_TEXT.most:
                raise ValueError(OBSERVATION_TEXT.exceeded(f"it shows player {player}"))
        rewards = {player: finite_number(r, "it gave the reward") for player, r in given.rewards.items()}
        info: dict[str, Any] = plain_json(dict(given.info), TOOL_TEXT) if given.info else {}
        return Transition(given.observations, rewards, bool(given.done), info)

    def moves(self, node: Node) -> bool:
        """Return True if a node acts in its round: a player that got an observation, or a role that is no
        player."""
        player = self._player(node)
        return player is None or player in self._shown(node)

    def observation(self, node: Node) -> str:
        """Return the observation that a node reads before its round; a role that is no player reads those of
        all players."""
        texts = self._shown(node)
        player = self._player(node)
        return "\n\n".join(dict.fromkeys(texts.values())) if player is None else texts.get(player, "")

    def _shown(self, node: Node) -> Mapping[int, str]:
        """Return the observations that the environment gave before a node's round, by player."""
        return self._transitions[self._step(node.role, node.id.round)].observations

    def _step(self, role: int, number: int) -> int:
        """Return the index of the environment's round in which a role takes turn `number`; a role may take
        several turns in a round."""
        return (number - 1) // self.plan.turns[role]

    def _player(self, node: Node) -> int | None:
        first_player = self.plan.players.get(node.role)
        return None if first_player is None else first_player + node.id.index - 1

    def reward(self, node: int) -> float | None:
        """Return the sum of the environment's rewards after a player's turn `node`; None without a reward."""
        return self._rewards.get(node)

    def last_turns(self) -> Sequence[int]:
        """Return the node of each player's last turn so far; for a player without a turn, the node of its
        first."""
        return [self._last_turns.get(player, node) for player, node in enumerate(self.plan.player_nodes[0])]

    async def close(self) -> None:
        """Close the environment; a failure is logged, since the episode is over."""
        live_environment, self._live = self._live, None
        try:
            if live_environment is not None:
                await live_environment.close()
        except FOREIGN_ERRORS as error:
            _logger.warning("an environment could not be closed: %s: %s", type(error).__name__, error)
