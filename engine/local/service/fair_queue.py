"""A queue that serves its owners in turn, so that one with many items delays no other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by owner: the owners alternate, and the items of one owner keep their order.

    >>> queue = FairQueue[int]()
    >>> for owner, item in [("a", 1), ("a", 2), ("b", 3)]:
    ...     queue.add(owner, item)
    >>> [queue.pop() for _ in range(len(queue))]
    [1, 3, 2]
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def add(self, owner: str, item: T) -> None:
        """Append an item to its owner's items."""
        self._queues.setdefault(owner, deque()).append(item)

    def peek(self) -> T:
        """Return the item that `pop` removes next; raises StopIteration if the queue is empty."""
        return next(iter(self._queues.values()))[0]

    def pop(self) -> T:
        """Remove and return the next item; raises KeyError if the queue is empty."""
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[owner] = queue
        return item

    def filter(self, keep: Callable[[T], bool]) -> None:
        """Remove the items for which `keep` returns False."""
        for owner, queue in list(self._queues.items()):
            kept = deque(item for item in queue if keep(item))
            if kept:
                self._queues[owner] = kept
            else:
                del self._queues[owner]

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))
