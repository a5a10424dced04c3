"""Share of tests that a program passes, measured without trusting the program."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from rolegraph.engine.errors import DataError, SandboxError, UnsupportedProgram, UsageError, first_line
from rolegraph.engine.vocabulary import MONTY
from rolegraph.sandbox.process import ProgramLimits
from rolegraph.sandbox.python import MEMORY, SECONDS, execute_program, open_process, program_names


def run_tests(
    code: str, tests: Sequence[str], *, seconds: float = SECONDS, interpreter: str = MONTY
) -> float:
    """Return the share of tests, from 0 to 1, that a program passes; 0 for a program that fails without a
    test.

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
        interpreter: The interpreter of Python, as for `open_process`.

    Raises:
        DataError: A test is not valid Python.
        UnsupportedProgram: The interpreter lacks what the program or a test needs.
        WorldError: The container or the server of the interpreter fails.
        UsageError: There are no tests, or the sandbox is not installed.
    """
    if not tests:
        raise UsageError("no tests for the program; expected at least one")
    guarded_tests = [_guarded(test) for test in tests]
    limits, names = ProgramLimits(seconds, MEMORY), program_names({})
    passed_count = 0
    for test, (guarded_source, used_names) in zip(tests, guarded_tests, strict=True):
        with open_process(interpreter, limits) as process:
            try:
                execute_program(process, code, names)
            except UnsupportedProgram:
                raise
            except SandboxError:
                return 0.0
            try:
                process.run("judge(test, used, names)", test=guarded_source, used=used_names)
                passed_count += 1
            except SandboxError as error:
                explained_error = process.explain(error, f"{code}\n{test}")
                if isinstance(explained_error, UnsupportedProgram):
                    raise explained_error from None
    return passed_count / len(tests)


def _guarded(test: str) -> tuple[str, list[str]]:
    """Return (source of a test with comparisons that a program cannot fake, names of the program that the
    test reads)."""
    try:
        tree = ast.parse(test, "it")
    except (SyntaxError, ValueError) as error:
        raise DataError(f"the test {test[:100]!r} is not Python: {first_line(error)}") from error
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _BUILTINS
    return ast.unparse(ast.fix_missing_locations(_GuardComparisons().visit(tree))), sorted(names)


_BUILTINS = frozenset(dir(builtins))


class _GuardComparisons(ast.NodeTransformer):
    """Transformer that replaces comparisons and differences with functions of `sandbox/inside.py`."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as operator], comparators=[right]):
                call = _call("_equal", left, right)
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as operator], comparators=[right]):
                call = _call("_holds", left, right)
            case _:
                return node
        return ast.UnaryOp(ast.Not(), call) if isinstance(operator, ast.NotEq | ast.NotIn) else call

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _call("_minus", node.left, node.right) if isinstance(node.op, ast.Sub) else node


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(function, ast.Load()), args=list(arguments), keywords=[])
