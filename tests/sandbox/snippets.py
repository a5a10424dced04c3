"""65 programs with their tests, as models write them, one for a part of Python each.

Each passes its tests in plain CPython.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Snippet(NamedTuple):
    name: str
    program: str
    test: str


def _snippets() -> Iterator[Snippet]:
    for part in _SNIPPETS.split("\n### ")[1:]:
        name, _, rest = part.partition("\n")
        program, _, test = rest.partition("\n---\n")
        yield Snippet(name.strip(), program + "\n", test.strip() + "\n")


_SNIPPETS = """
### arithmetic
def f(a, b):
    return a // b, a % b, a ** b, -a // b
---
assert f(7, 2) == (3, 1, 49, -4)
### f-strings
def f(x):
    return f"{x:>8.3f}|{x!r}|{x:.1%}"
---
assert f(0.25) == "   0.250|0.25|25.0%"
### list comprehension
def f(n):
    return [x * x for x in range(n) if x % 2]
---
assert f(6) == [1, 9, 25]
### nested comprehension
def f(rows):
    return [[row[i] for row in rows] for i in range(len(rows[0]))]
---
assert f([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]
### dict comprehension
def f(words):
    return {w: len(w) for w in words}
---
assert f(["a", "bb"]) == {"a": 1, "bb": 2}
### set operations
def f(a, b):
    return sorted(set(a) & set(b)), sorted(set(a) ^ set(b))
---
assert f([1, 2, 3], [2, 3, 4]) == ([2, 3], [1, 4])
### slices
def f(text):
    return text[::-1], text[1:-1], text[-2:]
---
assert f("abcd") == ("dcba", "bc", "cd")
### del
def f(items, i):
    items = list(items)
    del items[i]
    return items
---
assert f([1, 2, 3], 1) == [1, 3]
### yield
def evens(n):
    for i in range(0, n, 2):
        yield i

def f(n):
    return list(evens(n))
---
assert f(5) == [0, 2, 4]
### yield from
def flat(items):
    for item in items:
        if isinstance(item, list):
            yield from flat(item)
        else:
            yield item
---
assert list(flat([1, [2, [3]]])) == [1, 2, 3]
### next of a generator expression
def f(items, low):
    return next((x for x in items if x > low), None)
---
assert f([1, 5, 7], 4) == 5 and f([1], 4) is None
### iter and next
def f(items):
    it = iter(items)
    return next(it) + next(it)
---
assert f([4, 5, 6]) == 9
### heapq
import heapq

def f(items, k):
    heap = []
    for x in items:
        heapq.heappush(heap, x)
    return [heapq.heappop(heap) for _ in range(k)]
---
assert f([5, 1, 4, 2], 3) == [1, 2, 4]
### heapq nlargest
from heapq import nlargest

def f(items):
    return nlargest(2, items)
---
assert f([3, 9, 7]) == [9, 7]
### bisect
import bisect

def f(items, x):
    return bisect.bisect_left(items, x)
---
assert f([1, 3, 5], 4) == 2
### counter
from collections import Counter

def f(text):
    return Counter(text).most_common(1)[0]
---
assert f("banana") == ("a", 3)
### defaultdict
from collections import defaultdict

def f(pairs):
    groups = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)
---
assert f([("a", 1), ("b", 2), ("a", 3)]) == {"a": [1, 3], "b": [2]}
### deque
from collections import deque

def f(n):
    queue = deque(range(n))
    queue.rotate(1)
    queue.appendleft(9)
    return list(queue)
---
assert f(3) == [9, 2, 0, 1]
### namedtuple
from collections import namedtuple

Point = namedtuple("Point", "x y")

def f(x, y):
    p = Point(x, y)
    return p.x + p.y
---
assert f(1, 2) == 3
### ordered dict
from collections import OrderedDict

class LRU:
    def __init__(self, size):
        self.size, self.items = size, OrderedDict()

    def get(self, key):
        if key not in self.items:
            return -1
        self.items.move_to_end(key)
        return self.items[key]

    def put(self, key, value):
        self.items[key] = value
        self.items.move_to_end(key)
        if len(self.items) > self.size:
            self.items.popitem(last=False)

def f():
    c = LRU(2)
    c.put(1, 1), c.put(2, 2), c.get(1), c.put(3, 3)
    return c.get(2), c.get(1)
---
assert f() == (-1, 1)
### itertools
from itertools import accumulate, chain, combinations, groupby, permutations, product

def f(items):
    return (list(combinations(items, 2)), len(list(permutations(items))), list(accumulate(items)),
            list(chain([1], [2])), len(list(product("ab", repeat=2))),
            [(k, len(list(g))) for k, g in groupby("aab")])
---
assert f([1, 2, 3]) == ([(1, 2), (1, 3), (2, 3)], 6, [1, 3, 6], [1, 2], 4, [("a", 2), ("b", 1)])
### functools
from functools import reduce

def f(items):
    return reduce(lambda a, b: a * b, items, 1)
---
assert f([2, 3, 4]) == 24
### lru_cache
from functools import lru_cache

@lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
---
assert fib(60) == 1548008755920
### cmp_to_key
from functools import cmp_to_key

def f(numbers):
    words = sorted(map(str, numbers), key=cmp_to_key(lambda a, b: (a + b < b + a) - (a + b > b + a)))
    return "".join(words)
---
assert f([3, 30, 34]) == "34330"
### operator
from operator import itemgetter, mul

def f(rows):
    return sorted(rows, key=itemgetter(1)), mul(3, 4)
---
assert f([("a", 2), ("b", 1)]) == ([("b", 1), ("a", 2)], 12)
### math
import math

def f(a, b):
    return math.gcd(a, b), math.isqrt(a), math.comb(5, 2), math.prod([2, 3])
---
assert f(12, 18) == (6, 3, 10, 6)
### statistics
import statistics

def f(items):
    return statistics.mean(items), statistics.median(items)
---
assert f([1, 2, 3, 6]) == (3, 2.5)
### fractions
from fractions import Fraction

def f(a, b):
    return str(Fraction(a, b) + Fraction(1, 3))
---
assert f(1, 6) == "1/2"
### decimal
from decimal import Decimal

def f(text):
    return str(Decimal(text) + Decimal("0.1"))
---
assert f("0.2") == "0.3"
### re
import re

def f(text):
    return re.findall(r"\\d+", text), re.sub(r"\\s+", " ", text)
---
assert f("a1  b22") == (["1", "22"], "a1 b22")
### string module
import string

def f(text):
    return "".join(c for c in text if c in string.ascii_lowercase)
---
assert f("aB-c") == "ac"
### maketrans
def f(text):
    return text.translate(str.maketrans("abc", "xyz", "-"))
---
assert f("a-bc") == "xyz"
### string methods
def f(text):
    return text.title(), text.zfill(6), text.partition("-"), text.swapcase(), text.center(7, "*")
---
assert f("a-b") == ("A-B", "000a-b", ("a", "-", "b"), "A-B", "**a-b**")
### format
def f(x):
    return "{0:05d} {name} {0:b}".format(x, name="n") + " %s %.2f" % ("s", 1.5)
---
assert f(5) == "00005 n 101 s 1.50"
### json
import json

def f(value):
    return json.loads(json.dumps(value, sort_keys=True))
---
assert f({"b": [1, None], "a": True}) == {"a": True, "b": [1, None]}
### datetime
from datetime import date, timedelta

def f(y, m, d, days):
    return (date(y, m, d) + timedelta(days=days)).isoformat()
---
assert f(2024, 2, 28, 2) == "2024-03-01"
### class
class Stack:
    def __init__(self):
        self.items = []

    def push(self, x):
        self.items.append(x)
        return self

    def pop(self):
        return self.items.pop()

def f():
    return Stack().push(1).push(2).pop()
---
assert f() == 2
### inheritance
class Shape:
    def area(self):
        return 0

    def name(self):
        return "shape"

class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side ** 2

def f(side):
    s = Square(side)
    return s.area(), s.name(), isinstance(s, Shape)
---
assert f(3) == (9, "shape", True)
### super
class Base:
    def __init__(self, x):
        self.x = x

class Child(Base):
    def __init__(self, x, y):
        super().__init__(x)
        self.y = y

def f(x, y):
    c = Child(x, y)
    return c.x + c.y
---
assert f(1, 2) == 3
### property
class Celsius:
    def __init__(self, degrees):
        self._degrees = degrees

    @property
    def fahrenheit(self):
        return self._degrees * 9 / 5 + 32

    @fahrenheit.setter
    def fahrenheit(self, value):
        self._degrees = (value - 32) * 5 / 9

def f(x):
    c = Celsius(x)
    c.fahrenheit = c.fahrenheit + 18
    return c.fahrenheit
---
assert f(100) == 230
### staticmethod and classmethod
class A:
    count = 0

    @classmethod
    def make(cls):
        cls.count += 1
        return cls()

    @staticmethod
    def twice(x):
        return 2 * x

def f():
    A.make(), A.make()
    return A.count, A.twice(4)
---
assert f() == (2, 8)
### operators of a class
class Vector:
    def __init__(self, *parts):
        self.parts = parts

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self.parts, other.parts)))

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, i):
        return self.parts[i]

def f():
    v = Vector(1, 2) + Vector(3, 4)
    return len(v), v[0], v[1]
---
assert f() == (2, 4, 6)
### iterator class
class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1

def f(n):
    return list(Countdown(n))
---
assert f(3) == [3, 2, 1]
### dataclass
from dataclasses import dataclass, field

@dataclass(order=True)
class Item:
    weight: int
    tags: list = field(default_factory=list)

def f():
    return max(Item(1), Item(3, ["a"])).tags, Item(1) == Item(1)
---
assert f() == (["a"], True)
### enum
from enum import Enum

class Color(Enum):
    RED = 1
    BLUE = 2

def f(name):
    return Color[name].value
---
assert f("BLUE") == 2
### typing
from typing import Dict, List, Optional

def f(items: List[int], default: Optional[int] = None) -> Dict[str, int]:
    return {"first": items[0] if items else default}
---
assert f([4]) == {"first": 4}
### exceptions
class Bad(ValueError):
    pass

def f(x):
    try:
        if x < 0:
            raise Bad("negative")
        return 10 // x
    except ZeroDivisionError:
        return "zero"
    except Bad as error:
        return str(error)
    finally:
        pass
---
assert (f(2), f(0), f(-1)) == (5, "zero", "negative")
### try else
def f(text):
    try:
        n = int(text)
    except ValueError:
        return None
    else:
        return n + 1
---
assert f("4") == 5 and f("x") is None
### contextlib
from contextlib import contextmanager

@contextmanager
def opened(log):
    log.append("in")
    yield log
    log.append("out")

def f():
    log = []
    with opened(log) as it:
        it.append("work")
    return log
---
assert f() == ["in", "work", "out"]
### with of a class
class Timer:
    def __enter__(self):
        self.log = ["in"]
        return self

    def __exit__(self, *args):
        self.log.append("out")

def f():
    with Timer() as t:
        pass
    return t.log
---
assert f() == ["in", "out"]
### closure and nonlocal
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step

def f():
    c = counter()
    c()
    return c()
---
assert f() == 2
### global
total = 0

def add(x):
    global total
    total += x
    return total
---
assert add(2) == 2 and add(3) == 5
### decorator
def twice(function):
    def wrapped(*args, **kwargs):
        return 2 * function(*args, **kwargs)
    return wrapped

@twice
def f(x, *, y=1):
    return x + y
---
assert f(2, y=3) == 10
### star arguments
def g(a, *rest, key=0, **more):
    return a, rest, key, more

def f():
    first, *middle, last = [1, 2, 3, 4]
    return g(1, 2, 3, key=4, z=5), middle, last
---
assert f() == ((1, (2, 3), 4, {"z": 5}), [2, 3], 4)
### walrus
def f(items):
    return [y for x in items if (y := x * 2) > 4]
---
assert f([1, 2, 3, 4]) == [6, 8]
### match
def f(value):
    match value:
        case [x, y]:
            return x + y
        case {"k": v}:
            return v
        case int() if value > 10:
            return "big"
        case _:
            return None
---
assert (f([1, 2]), f({"k": 3}), f(11), f("a")) == (3, 3, "big", None)
### lambda and sort
def f(words):
    return sorted(words, key=lambda w: (-len(w), w))
---
assert f(["b", "aa", "a"]) == ["aa", "a", "b"]
### zip, enumerate, any, all
def f(a, b):
    return [i for i, (x, y) in enumerate(zip(a, b)) if x != y], any(a), all(b)
---
assert f([1, 0, 3], [1, 2, 3]) == ([1], True, True)
### recursion
def hanoi(n, a="A", b="B", c="C"):
    return [] if n == 0 else hanoi(n - 1, a, c, b) + [(a, c)] + hanoi(n - 1, b, a, c)
---
assert len(hanoi(5)) == 31
### dynamic programming
def lcs(a, b):
    dp = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            dp[i + 1][j + 1] = dp[i][j] + 1 if x == y else max(dp[i][j + 1], dp[i + 1][j])
    return dp[-1][-1]
---
assert lcs("abcbdab", "bdcaba") == 4
### while else
def f(n):
    d = 2
    while d * d <= n:
        if n % d == 0:
            break
        d += 1
    else:
        return True
    return False
---
assert f(13) and not f(15)
### bit operations
def f(x):
    return bin(x).count("1"), x << 2, x & -x, ~x, hex(x), (5).bit_length()
---
assert f(12) == (2, 48, 4, -13, "0xc", 3)
### bytes
def f(text):
    data = text.encode("utf-8")
    return data[0], len(data), bytes(reversed(data)).decode()
---
assert f("ab") == (97, 2, "ba")
### input
def f():
    try:
        return input()
    except EOFError:
        return "no input"
---
assert f() == "no input"
### async
import asyncio

async def work(x):
    await asyncio.sleep(0)
    return x + 1

def f():
    return asyncio.run(work(1))
---
assert f() == 2
"""

SNIPPETS = [*_snippets()]
