"""What rewards read of the turns that ran, under their roles."""

from __future__ import annotations

from collections.abc import Mapping

from rolegraph.engine.compile import Plan, RolePlan
from rolegraph.engine.run.assembly import steps_of
from rolegraph.engine.run.seeing import Results, turns
from rolegraph.engine.run.session import NodeResult
from rolegraph.engine.run.world import EnvironmentSession
from rolegraph.engine.vocabulary import Reward, RewardInputs

NOTHING_SEEN = RewardInputs()


def own(role: RolePlan, result: NodeResult) -> RewardInputs:
    """What a reward that is `reads_turn` reads."""
    return RewardInputs(turn=result.view, steps=tuple(steps_of(role, result, masked=False)))


class RewardReader:
    """What the rewards of one episode read, when those that they read are settled."""

    __slots__ = ("_places", "_plan", "_results", "_world")

    def __init__(self, plan: Plan, results: Results, world: EnvironmentSession | None) -> None:
        self._plan, self._results, self._world = plan, results, world
        self._places: dict[tuple[int, int], Mapping[tuple[int, int], int]] = {}

    def all(self, node: int, result: NodeResult, reward: Reward) -> RewardInputs:
        """What it reads of its own turn, of others and of the environment."""
        results, at = self._results, self._plan.nodes[node]
        ran = {see.name: turns(see, results) for see in self._plan.reward_inputs.get(node, ())}
        scores = {
            role: tuple(r.score for n in ran[role] if (r := results[n]) is not None and r.score is not None)
            for role in reward.roles
        }
        views = {
            role: tuple(r.view for n in ran[role] if (r := results[n]) is not None) for role in reward.views
        }
        places = {
            role: tuple(self.places(other, at.role).get((at.id.index, at.id.round)) for other in ran[role])
            for role in reward.views
        }
        env = self._world.earned(node) if reward.reads_environment and self._world is not None else None
        seen = own(self._plan.roles[at.role], result) if reward.reads_turn else NOTHING_SEEN
        return seen._replace(scores=scores, views=views, positions=places, env_reward=env)

    def places(self, node: int, role: int) -> Mapping[tuple[int, int], int]:
        """Where each turn of a role stood in what a node saw, by index and round.

        The turns of an instance of which only another was seen stand where that one did.
        """
        block = self._plan.nodes[node].block
        if (found := self._places.get((block, role))) is None:
            found = self._places[block, role] = self._found(block, role)
        return found

    def _found(self, block: int, role: int) -> Mapping[tuple[int, int], int]:
        for see in self._plan.blocks[block].inputs:
            if see.role == role:
                ids = [self._plan.nodes[node].id for node in turns(see, self._results)]
                rounds = range(1, self._plan.roles[role].rounds + 1)
                seen = {(id.index, number): place for place, id in enumerate(ids) for number in rounds}
                return seen | {(id.index, id.round): place for place, id in enumerate(ids)}
        return {}
