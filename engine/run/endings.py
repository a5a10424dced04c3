"""The loops of one episode that end before their last round: on which branches, and by what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rolegraph.engine.compile import Plan
from rolegraph.engine.compile.plan import Block, InputEdge
from rolegraph.engine.run.context import EpisodeContext, Results
from rolegraph.engine.run.environment import EnvironmentSession

Ending = Literal["until", "env"]
"""What ended a loop before its last round: its condition, or its environment."""
Endings = Mapping[int, Mapping[tuple[InputEdge, ...], Ending]]
"""By loop, and by the edges that a branch's end is read from, what ended it."""


@dataclass(slots=True, eq=False)
class LoopEnds:
    """The ends of one episode's loops. Loops, blocks and nodes are positions in the plan."""

    plan: Plan
    results: Results
    context: EpisodeContext
    environment: EnvironmentSession | None
    endings: dict[int, dict[tuple[InputEdge, ...], Ending]] = field(init=False, default_factory=dict)
    _is_over: dict[int, bool] = field(init=False, default_factory=dict)
    """By block, whether its loop ended before it."""

    def is_over(self, block: int, loop: int) -> bool:
        """Return whether a loop ended, on the block's branch, in a round before the block's round."""
        plan, undecided, number = self.plan, list[int](), block
        while number not in self._is_over and (at := plan.blocks[number]).until_inputs:
            undecided.append(number)
            # The block of the round before, which may not have been decided yet.
            number = plan.nodes[at.nodes[0] - plan.roles[at.role].count].block
        over = self._is_over.get(number, False)
        for number in reversed(undecided):
            over = self._is_over[number] = over or self._ends_before(plan.blocks[number], loop)
        environment, at = self.environment, plan.blocks[block]
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
        if all(self._is_over.get(self.plan.nodes[node].block) for node in before):
            self._note("until", block, loop)
            return True
        results = (self.results[node] for node in before)
        if any(result is not None and result.failure is not None for result in results):
            return False
        until = self.plan.loops[loop].until
        if until is None or not self.context.holds(until, self.context.of_loop_end(block.until_inputs)):
            return False
        self._note("until", block, loop)
        return True

    def _note(self, ending: Ending, block: Block, loop: int) -> None:
        self.endings.setdefault(loop, {}).setdefault(block.until_inputs, ending)
