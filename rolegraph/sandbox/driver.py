"""Script that runs pieces of code in CPython. This file is sent as text, and imports nothing of Rolegraph."""

import ast
import io
import json
import random
import sys
from contextlib import redirect_stdout
from typing import Any


def run(steps: str, mark: str) -> None:
    """Run pieces of code with the same globals; print the mark, and the last piece's result as JSON.

    After a piece that raises an error, the rest is not run.

    Args:
        steps: JSON list of (code, further globals by name).
        mark: Text before the result `[value, printed text, error or null]`.
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
