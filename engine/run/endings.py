"""The loops of one episode that end before their last round: on which branches, and by what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.plan import Block, InputEdge
from rolegraph.engine.run.context import EpisodeContext, Results
from rolegraph.engine.run.environment import EnvironmentSession

Ending = Literal["until", "env"]
"""What ended a loop before its last round: its condition, or its environment."""
Endings = Mapping[int, Mapping[tuple[InputEdge, ...], Ending]]
"""By loop, and by the edges that a branch's end is read from, what ended it."""


class LoopEnds:
    """The ends of one episode's loops. Loops, blocks and nodes are positions in the plan."""

    __slots__ = ("_context", "_environment", "_is_over", "_plan", "_results", "endings")

    def __init__(
        self,
        plan: Plan,
        results: Results,
        context: EpisodeContext,
        environment: EnvironmentSession | None,
    ) -> None:
        self._plan, self._results, self._context, self._environment = plan, results, context, environment
        self._is_over: dict[int, bool] = {}
        """By block, whether its loop ended before it."""
        self.endings: dict[int, dict[tuple[InputEdge, ...], Ending]] = {}

    def is_over(self, block: int, loop: int) -> bool:
        """Return whether a block's loop ended before the block's round; later rounds are over, too."""
        plan, undecided, number = self._plan, list[int](), block
        while number not in self._is_over and (at := plan.blocks[number]).until_inputs:
            undecided.append(number)
            # The block of the round before, which may not have been decided yet.
            number = plan.nodes[at.nodes[0] - plan.roles[at.role].count].block
        over = self._is_over.get(number, False)
        for number in reversed(undecided):
            over = self._is_over[number] = over or self._ends_before(plan.blocks[number], loop)
        environment, at = self._environment, plan.blocks[block]
        if not over and environment is not None and environment.loop == loop:
            over = environment.over_before(at.round)
            if over:
                self._is_over[block] = True
                self._note("env", at, loop)
        return over

    def _ends_before(self, block: Block, loop: int) -> bool:
        """Return whether the loop ends with the round before a block: no node of that round still ran, or
        the loop's condition is true of the nodes that did."""
        before = [node for edge in block.until_inputs for node in edge.nodes]
        if all(self._is_over.get(self._plan.nodes[node].block) for node in before):
            self._note("until", block, loop)
            return True
        results = (self._results[node] for node in before)
        if any(result is not None and result.failure is not None for result in results):
            return False
        until = self._plan.loops[loop].until
        if until is None or not self._context.holds(until, self._context.of_loop_end(block.until_inputs)):
            return False
        self._note("until", block, loop)
        return True

    def _note(self, ending: Ending, block: Block, loop: int) -> None:
        self.endings.setdefault(loop, {}).setdefault(block.until_inputs, ending)
