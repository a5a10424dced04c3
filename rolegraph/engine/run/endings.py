"""Loops of one episode that are skipped or end early: on which branches, and by which cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rolegraph.engine.compile.plan import Block, InputEdge
from rolegraph.engine.run.context import EpisodeContext

Ending = Literal["until", "env", "when", "outer"]
"""Cause of a loop's end before its last round: its condition, its environment, its `when`, or the end of the
loop around it before it began."""
Endings = Mapping[int, Mapping[tuple[InputEdge, ...], Ending]]
"""Cause by which each branch of a loop ended: by loop, then by the input edges that the `until` of the branch
reads."""


class LoopEnds:
    """Record of the loops of one episode that have ended early or are skipped, with the causes.

    Loops, blocks, roles and nodes are positions in the plan.
    """

    def __init__(self, context: EpisodeContext) -> None:
        """Evaluate the `when` of each loop, and record the loops that it skips."""
        self.context, self.plan = context, context.plan
        self.endings: dict[int, dict[tuple[InputEdge, ...], Ending]] = {}
        self._is_over: dict[int, bool] = {}
        """True for each block whose loop ended before the block; blocks that were not decided yet are
        missing."""
        for number, loop in enumerate(self.plan.loops):
            if loop.when is not None and not context.holds(
                loop.when, context.of_loop_end(()), _owner(number)
            ):
                self._note("when", (), number)

    def is_skipped(self, loop: int | None) -> bool:
        """Return True if the `when` of a loop, or of a loop around it, is false."""
        while loop is not None:
            if self.endings.get(loop, {}).get(()) == "when":
                return True
            loop = self.plan.loops[loop].outer
        return False

    def is_over(self, block: int, loop: int) -> bool:
        """Return True if `loop` is skipped, or ended on the branch of `block` in an earlier round.

        The end of a loop is recorded when it is found first.
        """
        if self.is_skipped(loop):
            return True
        plan, undecided_blocks, number, is_over = self.plan, list[int](), block, False
        while number not in self._is_over:
            undecided_blocks.append(number)
            plan_block = plan.blocks[number]
            if not plan_block.until_inputs:
                break
            # The block that was asked before, which may not have been decided yet.
            first_node, role = plan_block.nodes[0], plan.roles[plan_block.role]
            number = plan.nodes[first_node - role.count * plan_block.back].block
        else:
            is_over = self._is_over[number]
        for number in reversed(undecided_blocks):
            if is_over:
                self._note_outer(plan.blocks[number])
            is_over = self._is_over[number] = is_over or self._ends_before(plan.blocks[number])
        return is_over

    def _ends_before(self, block: Block) -> bool:
        """Return True, and record the cause, if a block's loop ends just before the block's round.

        Causes are that `until` holds for the previous round, that no node of that round ran, or that the
        environment is done.
        """
        if block.until_inputs and self._until_holds(block):
            self._note("until", block.until_inputs, block.until_loop)
            return True
        environment = self.context.env_of.get(block.role)
        if environment is None or not environment.over_before(block.role, block.round):
            return False
        self._note("env", block.until_inputs, environment.plan.loop)
        return True

    def _until_holds(self, block: Block) -> bool:
        edges = block.until_inputs
        if all(self._is_over.get(self.plan.nodes[node].block) for edge in edges for node in edge.nodes):
            return True
        until = self.plan.loops[block.until_loop].until
        if until is None:
            return False
        turns = [node for edge in edges for node in edge.nodes]
        return self.context.holds(until, self.context.of_loop_end(edges), _owner(block.until_loop), turns)

    def _note_outer(self, block: Block) -> None:
        """Record that an inner loop never starts because its outer loop ended; called for the inner loop's
        first block only."""
        loop, is_second = block.until_loop, self.plan.nodes[block.nodes[0]].round == 2
        if is_second and loop == self.plan.roles[block.role].loop and self.plan.loops[loop].outer is not None:
            self._note("outer", block.until_inputs, loop)

    def _note(self, ending: Ending, edges: tuple[InputEdge, ...], loop: int) -> None:
        self.endings.setdefault(loop, {}).setdefault(edges, ending)


def _owner(loop: int) -> str:
    """Return the name under which the conditions of a loop draw random numbers; its space keeps it apart from
    role names."""
    return f"loop {loop}"
