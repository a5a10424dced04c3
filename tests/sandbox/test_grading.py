"""Tests of grading a program: the share of passed cases, and attempts to cheat."""

from __future__ import annotations

import pytest

from rolegraph.engine.errors import DataError, UsageError
from rolegraph.sandbox import run_tests

pytest.importorskip("pydantic_monty", reason="needs the extra `sandbox`")

ADD = "def add(a, b):\n    return a + b\n"
TESTS = [
    "assert add(2, 3) == 5",
    "assert add([1], [2]) == [1, 2]",
    "assert abs(add(0.1, 0.2) - 0.3) < 1e-9",
    "assert round(add(1.111, 1), 2) == 2.11",
    "assert add(2, 3) in (5, 6) and 1 in add([1], [2])",
    "for n in range(3):\n    assert add(n, n) == 2 * n",
]
ALWAYS = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __contains__(self, other): return True
    def __sub__(self, other): return 0
    def __rsub__(self, other): return 0
    def __abs__(self): return 0
    def __round__(self, places=None): return self
    def __getitem__(self, key): return self
    def __hash__(self): return 1
"""


def test_a_program_has_the_share_of_the_tests_that_it_passes() -> None:
    assert run_tests(ADD, TESTS) == 1.0
    assert run_tests(ADD, ["assert add(1, 1) == 2", "assert add(1, 1) == 3"]) == 0.5
    assert run_tests("def sub(a, b): return a - b", TESTS) == 0.0


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("def add(a, b", id="is no Python"),
        pytest.param(ADD + "1 / 0", id="fails after all"),
        pytest.param(ADD + "while True: pass", id="does not end"),
        pytest.param("def add(a, b):\n    while True: pass", id="does not answer"),
        pytest.param("def add(a, b): return [0] * 10**9", id="answers too much"),
        pytest.param("def add(a, b): raise SystemExit", id="leaves"),
        pytest.param(ALWAYS + "def add(a, b): return Always()", id="equals everything"),
        pytest.param(ALWAYS + "def add(a, b): return [Always(), Always()]", id="holds what does"),
        pytest.param(ALWAYS + "add = lambda a, b: {0: Always(), 1: Always()}", id="maps to what does"),
        pytest.param(
            "abs = lambda x: 0\nround = lambda *a: 2.11\nrange = lambda n: []\n"
            "class AssertionError: pass\nadd = lambda a, b: None",
            id="has its own builtins",
        ),
        pytest.param(
            "def add(a, b):\n    global abs, round, range, _equal, _minus, _holds, equal, odd\n"
            "    abs = _minus = lambda *a: 0\n    round = _equal = _holds = equal = odd = lambda *a: True\n"
            "    range = lambda n: []",
            id="rebinds what compares",
        ),
        pytest.param(
            "def add(a, b):\n    for name in ('test', 'names', 'used', 'code', 'judge'):\n        try:\n"
            "            return eval(name)\n        except NameError:\n            pass",
            id="looks for the test",
        ),
        pytest.param("def add(a, b): return str(locals())", id="looks around"),
    ],
)
def test_a_program_that_cheats_or_fails_passes_nothing(program: str) -> None:
    assert run_tests(program, TESTS, seconds=0.5) == 0.0


@pytest.mark.parametrize(
    "test",
    [
        "assert Point(1, 2) + Point(1, 1) == Point(2, 3)",
        "assert Point(1, 2) - Point(1, 1) == Point(0, 1)",
        "assert [Point(1, 2)] == [Point(1, 2)] and Point(1, 2) in [Point(1, 2)]",
        "assert Point(1, 2) != None and Point(1, 2) != Point(1, 3)",
        "assert Point(3, 4).norm() == 5",
        "assert Solution().sort([2, 1]) == [1, 2]",
        "def check(candidate):\n    assert candidate([3, 1]) == [1, 3]\ncheck(Solution().sort)",
        "assert chain(3).value == 3 and chain(3).rest is None",
        "try:\n    chain()\nexcept TypeError:\n    pass\nelse:\n    assert False",
        "x = {'a': 1}\nassert 'a' in x and 'b' not in x and 'ell' in 'hello' and 3 not in range(3)",
        "import math\nassert math.isclose(chain(2).value / 3, 0.6666666666)",
        "assert {1, 2} - {2} == {1}",
        "assert 0 < chain(3).value == 3",
    ],
)
def test_a_test_of_classes_or_of_several_lines_has_its_say(test: str) -> None:
    program = """
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __eq__(self, other): return self.x == other.x and self.y == other.y
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __sub__(self, other): return Point(self.x - other.x, self.y - other.y)
    def norm(self): return (self.x ** 2 + self.y ** 2) ** 0.5
class Chain:
    def __init__(self, value, rest=None): self.value, self.rest = value, rest
class Solution:
    def sort(self, items): return sorted(items)
def chain(value): return Chain(value)
"""
    assert run_tests(program, [test]) == 1.0


def test_each_test_finds_the_program_as_it_was_written() -> None:
    counting = "calls = []\ndef call():\n    calls.append(1)\n    return len(calls)"
    assert run_tests(counting, ["assert call() == 1", "assert call() == 1 and call() == 2"]) == 1.0


def test_tests_that_are_none_are_the_datasets_mistake() -> None:
    with pytest.raises(DataError, match="'assert add = 1' is not Python: "):
        run_tests(ADD, ["assert add = 1"])
    with pytest.raises(UsageError, match="at least"):
        run_tests(ADD, [])
