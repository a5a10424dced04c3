"""Tests of programs that Monty cannot run: a failure with a name where CPython may pass them, else 0."""

from __future__ import annotations

import pytest

from rolegraph.engine.errors import UnsupportedProgram
from rolegraph.sandbox import run_tests
from tests.sandbox.generated import generated
from tests.sandbox.snippets import SNIPPETS, Snippet

pytest.importorskip("pydantic_monty", reason="needs the extra `sandbox`")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda it: it.name)
def test_a_right_program_never_earns_0(snippet: Snippet) -> None:
    try:
        assert run_tests(snippet.program, [snippet.test]) == 1.0
    except UnsupportedProgram as error:
        assert "Monty" in str(error)


def test_generated_programs_earn_what_they_do_in_cpython_or_fail_by_name() -> None:
    unsupported = 0
    for snippet, is_right in generated(200):
        try:
            assert run_tests(snippet.program, [snippet.test]) == float(is_right), snippet.program
        except UnsupportedProgram:
            unsupported += 1
    assert unsupported < 120


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): return x.foo", "f(3)"),
        ("def f(x): return nope", "f(3)"),
        ("class A: pass\ndef f(x): return A().q", "f(3)"),
        ("class list: pass\ndef f(x): return list().append", "f(3)"),
        ("def f(x): return x + 'a'", "f(3)"),
        ("def f(x): return -x", "assert f(3) == 3"),
        ("def f(x): raise NotImplementedError", "f(3)"),
        ("def f(x): raise NotImplementedError('later')", "f(3)"),
        ("def f(x:", "f(3)"),
        ("def f(x): return eval('1 +')", "f(3)"),
        ("import numpy", "1"),
        ("from math import nope", "1"),
        ("def f(x): return next([1])", "f(1)"),
        ("def f(x): return x[9]", "f([1])"),
        ("while True: pass", "1"),
    ],
)
def test_a_wrong_program_earns_0(program: str, test: str) -> None:
    assert run_tests(program, [test], seconds=1) == 0.0


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): return x.bit_count()", "assert f(3) == 2"),
        ("def f(x): return bytearray(x)", "f(3)"),
        ("def f(x): return any(1 / y > 0 for y in x)", "assert f([1, 0])"),
        ("def f(x): return next(map(str, x))", "assert f([1]) == '1'"),
        ("def f(x): return f.n\nf.n = 3", "assert f(1) == 3"),
        ("class A:\n    def __bool__(self): return False\ndef f(): return not A()", "assert f()"),
        ("class A:\n    def __lt__(self, it): return True\ndef f(): return sorted([A(), A()])", "f()"),
        (
            "try:\n    import heapq\nexcept ImportError:\n    heapq = None\ndef f(x): return heapq",
            "assert f(1)",
        ),
        ("import re\ndef f(x): return re.match('a', 'a').expand", "f(1)"),
        ("import datetime\ndef f(): return datetime.date(2020, 1, 1).isocalendar()", "f()"),
        ("type X = int", "1"),
    ],
)
def test_a_gap_is_a_failure_also_beside_passed_tests(program: str, test: str) -> None:
    with pytest.raises(UnsupportedProgram):
        run_tests(program, ["1", test])
