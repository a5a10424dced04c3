"""Programs with one test each, made from families by drawing numbers; some have a mistake."""

from __future__ import annotations

import random
from collections.abc import Iterator
from textwrap import dedent

from tests.sandbox.snippets import Snippet


def generated(count: int, seed: int = 0) -> Iterator[tuple[Snippet, bool]]:
    """Yield programs with one test each, and True for those that pass it; every third has a mistake."""
    draw = random.Random(seed)
    for number in range(count):
        family = _FAMILIES[number % len(_FAMILIES)]
        a, b, c = draw.randint(2, 9), draw.randint(2, 9), draw.randint(10, 40)
        items = [draw.randint(0, 30) for _ in range(draw.randint(3, 8))]
        right = number % 3 != 2
        program = (
            dedent(family).strip().replace("AA", str(a)).replace("BB", str(b)).replace("CC", str(c)) + "\n"
        )
        names: dict[str, object] = {}
        exec(program, names)
        value = names["solve"](list(items))  # type: ignore[operator]
        if not right:  # the last return gives something else
            head, _, tail = program.rpartition("return ")
            program = f"{head}return [{tail.strip()}, 'wrong']\n"
        yield Snippet(f"{number}", program, f"assert solve({items!r}) == {value!r}\n"), right


_FAMILIES = [
    """
    def solve(items):
        return [x * AA + BB for x in items if x % 2 == 0]
    """,
    """
    from collections import Counter
    def solve(items):
        counts = Counter(x % AA for x in items)
        return sorted(counts.items())
    """,
    """
    import heapq
    def solve(items):
        heap = [x ^ BB for x in items]
        heapq.heapify(heap)
        return [heapq.heappop(heap) for _ in range(2)]
    """,
    """
    class Base:
        def __init__(self, scale):
            self.scale = scale
        def value(self, x):
            return x * self.scale
    class Shifted(Base):
        def __init__(self, scale, by):
            super().__init__(scale)
            self.by = by
        def value(self, x):
            return super().value(x) + self.by
    def solve(items):
        it = Shifted(AA, BB)
        return [it.value(x) for x in items]
    """,
    """
    def pairs(items):
        for i, x in enumerate(items):
            for y in items[i + 1:]:
                if (x + y) % AA == 0:
                    yield x, y
    def solve(items):
        return list(pairs(items))
    """,
    """
    from itertools import accumulate, groupby
    def solve(items):
        sums = list(accumulate(items))
        return [(k, sum(1 for _ in g)) for k, g in groupby(s // CC for s in sums)]
    """,
    """
    from functools import lru_cache
    def solve(items):
        @lru_cache(None)
        def best(i, room):
            if i == len(items):
                return 0
            skip = best(i + 1, room)
            return max(skip, best(i + 1, room - items[i]) + items[i]) if items[i] <= room else skip
        return best(0, CC)
    """,
    """
    from fractions import Fraction
    def solve(items):
        return str(sum((Fraction(x, AA) for x in items), Fraction(0)))
    """,
    """
    import re
    def solve(items):
        text = "-".join(f"{x:03d}" for x in items)
        return re.sub(r"0+(\\\\d)", r"<\\\\1>", text)
    """.replace("\\\\\\\\", "\\\\"),
    """
    import statistics
    def solve(items):
        return statistics.median(items) + AA, statistics.pvariance(items) >= BB
    """,
    """
    def solve(items):
        seen, out = set(), []
        while items:
            x = items.pop()
            if x in seen:
                continue
            seen.add(x)
            out.append(x)
        del out[AA:]
        return out
    """,
    """
    from dataclasses import dataclass
    @dataclass
    class Account:
        balance: int = 0
        def move(self, x):
            if x > CC:
                raise ValueError("too much")
            self.balance += x
    def solve(items):
        it = Account()
        for x in items:
            try:
                it.move(x * AA)
            except ValueError:
                it.balance -= 1
        return it.balance
    """,
    """
    def solve(items):
        table = str.maketrans("0123456789", "ABCDEFGHIJ")
        return [str(x).translate(table) for x in items]
    """,
    """
    import math
    def solve(items):
        return [(math.gcd(x, CC), math.isqrt(x), round(math.sqrt(x), 3)) for x in items]
    """,
    """
    def solve(items):
        grid = [[(x + r * AA) % BB for x in items] for r in range(3)]
        return [list(column) for column in zip(*grid)][::-1]
    """,
    """
    class Node:
        def __init__(self, key):
            self.key, self.left, self.right = key, None, None
    def insert(node, key):
        if node is None:
            return Node(key)
        if key < node.key:
            node.left = insert(node.left, key)
        else:
            node.right = insert(node.right, key)
        return node
    def walk(node):
        return walk(node.left) + [node.key] + walk(node.right) if node else []
    def solve(items):
        root = None
        for x in items:
            root = insert(root, x % CC)
        return walk(root)
    """,
    """
    from operator import itemgetter
    def solve(items):
        rows = [(x % AA, x) for x in items]
        return sorted(rows, key=itemgetter(0, 1), reverse=True)
    """,
    """
    def solve(items):
        primes = [n for n in range(2, CC) if all(n % d for d in range(2, n))]
        return [next((p for p in primes if p > x), None) for x in items]
    """,
    """
    from contextlib import contextmanager
    @contextmanager
    def logged(log, name):
        log.append(f"<{name}>")
        yield
        log.append(f"</{name}>")
    def solve(items):
        log = []
        for x in items[:3]:
            with logged(log, x):
                log.append(str(x * AA))
        return "".join(log)
    """,
    """
    from decimal import Decimal
    def solve(items):
        return [str(Decimal(x) / Decimal(AA) if x % AA == 0 else Decimal(x) * Decimal("0.1")) for x in items]
    """,
]
