"""Share of the tests that a program passes, measured without trusting the program."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from typing import NamedTuple

from rolegraph.engine.errors import DataError, SandboxError, UnsupportedProgram, UsageError, first_line
from rolegraph.engine.sandbox.process import ProgramLimits
from rolegraph.engine.sandbox.python import MEMORY, SECONDS, execute_program, open_process, program_names
from rolegraph.engine.vocabulary import MONTY


def run_tests(
    code: str,
    tests: Sequence[str],
    *,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    interpreter: str = MONTY,
) -> float:
    """Return the share of tests, from 0 to 1, that a program passes; 0 for a program that fails by itself.

    Each test has a new process, in which the program runs before the test. Protected against: reading the
    test; redefining builtins such as `abs`, `len` or `AssertionError`; state left by an earlier test; and
    objects that compare equal to everything, since `==`, `!=`, `in` and `-` in a test never make an object
    with operators of its own equal to, or near, plain data.

    Not protected against: a function that answers from a table of arguments; and tests that call methods of
    an answer (`assert answer.ok()`), compare it with an object of the program's class, chain comparisons or
    use `-=`.

    Args:
        code: The program.
        tests: Python snippets, each of which passes if it raises nothing, such as `assert add(2, 3) == 5`.
        seconds: Time limit of the program, and of each test.
        memory: Memory limit in bytes of the program together with one test.
        interpreter: The interpreter of Python, as for `open_process`.

    Raises:
        DataError: A test is not valid Python.
        UnsupportedProgram: The interpreter lacks what the program or a test needs.
        WorldError: The container or the server of the interpreter fails.
        UsageError: There are no tests, or the sandbox is not installed.
    """
    if not tests:
        raise UsageError("no tests for the program; expected at least one")
    parsed = [_parse(test) for test in tests]
    limits, names = ProgramLimits(seconds, memory), program_names({})
    passed = 0
    for test in parsed:
        with open_process(interpreter, limits) as process:
            try:
                execute_program(process, code, names)
            except UnsupportedProgram:
                raise
            except SandboxError:
                return 0.0
            try:
                process.run("judge(test, used, names)", test=test.code, used=test.names)
                passed += 1
            except SandboxError as error:
                explained = process.explain(error, f"{code}\n{test.written}")
                if isinstance(explained, UnsupportedProgram):
                    raise explained from None
    return passed / len(tests)


class _Test(NamedTuple):
    """Unit test whose comparisons call guarded functions, and the names of the program that it uses."""

    code: str
    written: str
    names: list[str]
    """Names that the test reads, other than Python's builtins."""


def _parse(test: str) -> _Test:
    try:
        tree = ast.parse(test, "it")
    except (SyntaxError, ValueError) as error:
        raise DataError(f"the test {test[:100]!r} is not Python: {first_line(error)}") from error
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _BUILTINS
    guarded = ast.unparse(ast.fix_missing_locations(_GuardComparisons().visit(tree)))
    return _Test(guarded, test, sorted(names))


_BUILTINS = frozenset(dir(builtins))
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "_equal",
    ast.NotEq: "_equal",
    ast.In: "_holds",
    ast.NotIn: "_holds",
}
"""Functions of `engine/sandbox/inside.py` that replace the operators of a test."""


class _GuardComparisons(ast.NodeTransformer):
    """Transformer that replaces comparisons and differences with calls of guarded functions."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
                call = _call(_COMPARED[type(operator)], left, right)
                is_negated = isinstance(operator, ast.NotEq | ast.NotIn)
                return ast.UnaryOp(ast.Not(), call) if is_negated else call
            case _:
                return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call("_minus", node.left, node.right) if isinstance(node.op, ast.Sub) else node


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(function, ast.Load()), args=list(arguments), keywords=[])
