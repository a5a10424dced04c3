"""Which loops of one episode are over before their last round, on which branches, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.plan import Block, InputEdge
from rolegraph.engine.run.frontier import Frontier
from rolegraph.engine.run.seeing import EpisodeContext, Results
from rolegraph.engine.run.world import EnvironmentSession

Ending = Literal["until", "env"]
"""What ends a loop before its last round: its condition, or its environment."""
Endings = Mapping[int, Mapping[tuple[InputEdge, ...], Ending]]
"""By loop, what ended it; by what the end was read from, where its branches end each for itself."""


class LoopEnds:
    """The ends of one episode's loops. Loops, blocks and nodes are known by their positions in the plan."""

    __slots__ = ("_ended", "_frontier", "_plan", "_results", "_sight", "_verdicts", "_world", "endings")

    def __init__(
        self,
        plan: Plan,
        results: Results,
        sight: EpisodeContext,
        frontier: Frontier,
        world: EnvironmentSession | None,
    ) -> None:
        self._plan, self._results, self._sight = plan, results, sight
        self._frontier, self._world = frontier, world
        self._verdicts: dict[int, bool] = {}
        """By block, whether its loop ended before it."""
        self._ended: set[tuple[int, int]] = set()
        """The loops that ended as a whole, each with the round that was spared first."""
        self.endings: dict[int, dict[tuple[InputEdge, ...], Ending]] = {}

    def is_over(self, block: int, loop: int) -> bool:
        """Whether the loop of a block's nodes ended before their round; once ended, it stays so."""
        plan, undecided, number = self._plan, list[int](), block
        while number not in self._verdicts and (at := plan.blocks[number]).until_inputs:
            undecided.append(number)  # and its own turn before, which may not have been reached yet
            number = plan.nodes[at.nodes[0] - plan.roles[at.role].count].block
        over = self._verdicts.get(number, False)
        for number in reversed(undecided):
            over = self._verdicts[number] = over or self._ended_before(plan.blocks[number], loop)
        world = self._world
        if (
            not over
            and world is not None
            and world.loop == loop
            and world.over_before(plan.blocks[block].round)
        ):
            over = self._verdicts[block] = self._ended_by("env", plan.blocks[block], loop)
        return over

    def end(self, block: Block, loop: int) -> Sequence[int]:
        """Skip a block whose loop is over, and with it all that is left of the loop where its end is one."""
        tails = self._plan.loops[loop].early_exit
        if not tails:
            return self._frontier.skip(block.nodes)
        if (loop, block.round) in self._ended:
            return ()
        self._ended.add((loop, block.round))
        return self._frontier.end(tails[block.round - 1])

    def _ended_before(self, block: Block, loop: int) -> bool:
        """Whether the loop of a block's nodes ended with the round before: the condition holds of those that
        it still went on for, or there are none."""
        if (loop, block.round) in self._ended:
            return True
        before = [node for see in block.until_inputs for node in see.nodes]
        if all(self._verdicts.get(self._plan.nodes[node].block) for node in before):
            return self._ended_by("until", block, loop)
        results = (self._results[node] for node in before)
        if any(result is not None and result.failure is not None for result in results):
            return False
        until = self._plan.loops[loop].until
        if until is None or not self._sight.holds(until, self._sight.of_end(block.until_inputs)):
            return False
        return self._ended_by("until", block, loop)

    def _ended_by(self, ending: Ending, block: Block, loop: int) -> bool:
        """Note what ended a loop; true."""
        self.endings.setdefault(loop, {}).setdefault(block.until_inputs, ending)
        return True
