"""The blocks that may start as nodes end. Pure counting over a plan's wiring: no asyncio, no results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rolegraph.engine.compile.wiring import Wiring


class Frontier:
    """Counters of what each block of one episode waits for. A block waits for joins, and a join for several
    nodes to end. Blocks, joins and nodes are positions in the plan."""

    __slots__ = ("_feeds", "_joins", "_releases", "_waits")

    def __init__(self, wiring: Wiring) -> None:
        self._feeds, self._releases = wiring.joins_of_node, wiring.blocks_of_join
        self._joins = list(wiring.join_sizes)
        """Number of nodes that each join still waits for."""
        self._waits = list(wiring.joins_awaited)
        """Number of joins that each block still waits for."""

    def done(self, node: int) -> Sequence[int]:
        """Count a node as ended, and return the blocks that became ready; call it once for each node."""
        ready_blocks: list[int] = []
        for join in self._feeds[node]:
            self._joins[join] -= 1
            if self._joins[join]:
                continue
            for block in self._releases[join]:
                self._waits[block] -= 1
                if not self._waits[block]:
                    ready_blocks.append(block)
        return ready_blocks

    def skip(self, nodes: Iterable[int]) -> Sequence[int]:
        """Count nodes that will not run as ended, and return the blocks that became ready."""
        return [block for node in nodes for block in self.done(node)]
