"""Which blocks may start, as nodes end. Pure counting over a plan's wiring: no asyncio, no results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rolegraph.engine.compile.plan import JoinReductions, Wiring


class Frontier:
    """The state of one episode's joins and blocks; blocks, joins and nodes by their positions in the plan."""

    __slots__ = ("_feeds", "_left", "_releases", "_waits")

    def __init__(self, wiring: Wiring) -> None:
        self._feeds, self._releases = wiring.joins_of_node, wiring.blocks_of_join
        self._left = list(wiring.join_sizes)
        self._waits = list(wiring.joins_awaited)

    def done(self, node: int) -> Sequence[int]:
        """Count a node that has ended, which no node does twice; the blocks that became ready by it."""
        ready: list[int] | None = None
        left = self._left
        for join in self._feeds[node]:
            left[join] -= 1
            if not left[join]:
                ready = self._release(join, ready or [])
        return ready or ()

    def skip(self, nodes: Iterable[int]) -> Sequence[int]:
        """Count many at once, as `done` does each."""
        left, feeds, ready = self._left, self._feeds, list[int]()
        for node in nodes:
            for join in feeds[node]:
                left[join] -= 1
                if not left[join]:
                    ready = self._release(join, ready)
        return ready

    def end(self, tail: JoinReductions) -> Sequence[int]:
        """Count all that a loop which is over is spared, at once; the blocks that became ready by it."""
        ready: list[int] = []
        for join, count in tail:
            self._left[join] -= count
            if not self._left[join]:
                ready = self._release(join, ready)
        return ready

    def _release(self, join: int, ready: list[int]) -> list[int]:
        for block in self._releases[join]:
            self._waits[block] -= 1
            if not self._waits[block]:
                ready.append(block)
        return ready
