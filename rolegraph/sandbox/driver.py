"""Script around pieces of code in CPython, to which this file is sent as text; it imports nothing of ours."""

import ast
import io
import json
import random
import sys
from contextlib import redirect_stdout
from typing import Any


def run(steps: str, mark: str) -> None:
    """Run pieces of code with the same globals; print the mark, and the last piece's result as JSON.

    Args:
        steps: JSON of the pieces, each the code and its further globals by name.
        mark: Text in front of the result: `[value, printed text, error or null]`.
    """
    sys.setrecursionlimit(10_000)
    random.seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    value, printed, error = None, io.StringIO(), None
    for code, inputs in json.loads(steps):
        names.update(inputs)
        printed = io.StringIO()
        tree = ast.parse(code)
        end = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        try:
            with redirect_stdout(printed):
                exec(compile(tree, "program", "exec"), names)
                value = eval(compile(ast.Expression(end.value), "program", "eval"), names) if end else None
        except BaseException as raised:  # SystemExit and KeyboardInterrupt, too
            error = f"{type(raised).__name__}: {raised}"
            break
    sys.stdout.write(mark + json.dumps([value, printed.getvalue(), error]))
