"""How many of its tests a program passes, with no help from the program."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from rolegraph.engine.errors import DataError, SandboxError, UsageError, first_line
from rolegraph.engine.sandbox.process import ProgramLimits, SandboxProcess
from rolegraph.engine.sandbox.python import MEMORY, SECONDS, execute_program, program_names


def run_tests(code: str, tests: Sequence[str], *, seconds: float = SECONDS, memory: int = MEMORY) -> float:
    """The share of `tests` that hold of what a program defines; 0 for a program that fails by itself.

    A test is a piece of Python that raises nothing where it passes: `assert add(2, 3) == 5`. For each a
    process is started, the program run in it, then the test; each of the two has `seconds`, and both
    `memory` bytes. Raises DataError for a test that is not Python.

    Held: a program runs before its test is there, and cannot read it afterwards. Tests do not see the
    program's names where they are Python's own: `abs`, `len`, `AssertionError`. Neither a program nor a test
    finds what an earlier one left. `==`, `!=`, `in` and `-` never find an object with operators of its own
    equal to plain data or near it, so that one which equals everything passes nothing.

    Not held: a function sees its arguments, and may answer by a table of them. A test that asks an answer's
    own methods (`assert answer.ok()`), compares it with an object of the program's own class, or compares in
    a chain or by `-=`, has what these say.
    """
    if not tests:
        raise UsageError("a program is judged by at least one test")
    read = [_read(test) for test in tests]
    limits, names = ProgramLimits(seconds, memory), program_names({})
    passed = 0
    for test in read:
        with SandboxProcess(limits) as process:
            try:
                execute_program(process, code, names)
            except SandboxError:
                return 0.0
            with suppress(SandboxError):
                process.run("judge(test, used, names)", test=test.code, used=test.names)
                passed += 1
    return passed / len(tests)


class _Test(NamedTuple):
    code: str
    names: list[str]
    """Those that it reads and that are not Python's own."""


def _read(test: str) -> _Test:
    try:
        tree = ast.parse(test, "it")
    except (SyntaxError, ValueError) as error:
        raise DataError(f"the test {test[:100]!r} is not Python: {first_line(error)}") from error
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _OWN
    return _Test(ast.unparse(ast.fix_missing_locations(_Careful().visit(tree))), sorted(names))


_OWN = frozenset(dir(builtins))
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "_equal",
    ast.NotEq: "_unequal",
    ast.In: "_holds",
    ast.NotIn: "_lacks",
}
"""The functions that a test compares with, in `engine/sandbox/inside.py`."""


class _Careful(ast.NodeTransformer):
    """Has the operators of a test done by functions that do not believe all they are told."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
                return _call(_COMPARED[type(operator)], left, right)
            case _:
                return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call("_minus", node.left, node.right) if isinstance(node.op, ast.Sub) else node


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(function, ast.Load()), args=list(arguments), keywords=[])
