"""A queue in which owners take turns: whoever asks for much waits for it alone."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by owner. What one owner adds keeps its order; the owners come one after the other.

    >>> rounds = Rounds[int]()
    >>> for owner, item in [("a", 1), ("a", 2), ("b", 3)]:
    ...     rounds.add(owner, item)
    >>> [rounds.take() for _ in range(len(rounds))]
    [1, 3, 2]
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def add(self, owner: str, item: T) -> None:
        """Put an item behind the owner's others."""
        self._queues.setdefault(owner, deque()).append(item)

    def first(self) -> T:
        """What `take` takes; raises StopIteration where there is nothing."""
        return next(iter(self._queues.values()))[0]

    def take(self) -> T:
        """The next item; raises KeyError where there is none."""
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[owner] = queue
        return item

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Drop the items that are not wanted."""
        for owner, queue in list(self._queues.items()):
            kept = deque(item for item in queue if wanted(item))
            if kept:
                self._queues[owner] = kept
            else:
                del self._queues[owner]

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)
