"""What is read of the turns that ran: under a name by prompts and conditions, by rewards under their role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.compile import Plan
from engine.compile.plan import See
from engine.run.assembly import steps_of
from engine.run.session import NodeResult
from engine.run.world import World
from engine.vocabulary import Reward, Seen

Results = Sequence[NodeResult | None]
"""By node; None where it has not run."""


def turns(see: See, results: Results) -> list[int]:
    """Of each instance its turns that ran, or the last of them: their nodes."""
    if see.each == 1:
        return [node for node in see.nodes if results[node] is not None]
    found: list[int] = []
    for start in range(0, len(see.nodes), see.each):
        ran = [node for node in see.nodes[start : start + see.each] if results[node] is not None]
        found += ran[-1:]
    return found


class Reader:
    """What the rewards of one episode read, when those that they read are settled."""

    def __init__(self, plan: Plan, results: Results, world: World | None) -> None:
        self._plan, self._results, self._world = plan, results, world
        self._places: dict[tuple[int, int], Mapping[tuple[int, int], int]] = {}

    def own(self, node: int, reward: Reward) -> Seen:
        """What a reward reads of its own turn."""
        result = self._results[node]
        if result is None or not reward.of_turn:
            return SEEN_NOTHING
        role = self._plan.roles[self._plan.nodes[node].role]
        return Seen(own=result.view, steps=tuple(steps_of(role, result)))

    def all(self, node: int, reward: Reward) -> Seen:
        """What it reads of its own turn, of others and of the environment."""
        results, at = self._results, self._plan.nodes[node]
        ran = {see.name: turns(see, results) for see in self._plan.reads.get(node, ())}
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
        env = self._world.earned(node) if reward.environment and self._world is not None else None
        return self.own(node, reward)._replace(scores=scores, views=views, places=places, env=env)

    def places(self, node: int, role: int) -> Mapping[tuple[int, int], int]:
        """Where each turn of a role stood in what a node saw, by index and round.

        The turns of an instance of which only another was seen stand where that one did.
        """
        block = self._plan.nodes[node].block
        if (found := self._places.get((block, role))) is None:
            found = self._places[block, role] = self._found(block, role)
        return found

    def _found(self, block: int, role: int) -> Mapping[tuple[int, int], int]:
        for see in self._plan.blocks[block].sees:
            if see.role == role:
                ids = [self._plan.nodes[node].id for node in turns(see, self._results)]
                rounds = range(1, self._plan.rounds_of(self._plan.roles[role]) + 1)
                seen = {(id.index, number): place for place, id in enumerate(ids) for number in rounds}
                return seen | {(id.index, id.round): place for place, id in enumerate(ids)}
        return {}


SEEN_NOTHING = Seen()
