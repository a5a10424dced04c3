"""Rewards that run programs in the sandbox: programs that a model wrote, and programs of a spec."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Annotated, Any, cast

from pydantic import Field

from rolegraph.engine.records import Task
from rolegraph.engine.vocabulary import MONTY, Reward, RewardFacts, RewardInputs, Score
from rolegraph.roles.bounds import UNIT
from rolegraph.roles.fences import fenced_blocks
from rolegraph.sandbox import evaluate, require_interpreter, run_tests

Seconds = Annotated[float, Field(gt=0, le=3600)]


def tests(
    *, field: str = "tests", seconds: Seconds = 5.0, timeout: Seconds = 60.0, interpreter: str = MONTY
) -> Reward:
    """Score the share of unit tests that the action, a Python program, passes; right when it passes all.

    field: the task field that holds the tests: a piece of Python that raises nothing where it passes, such as
      `assert add(2, 3) == 5`, or a list of them
    seconds: the time limit of the program by itself, and then of each test
    timeout: the time limit of all of them together
    """
    require_interpreter(interpreter)

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        test_sources = cast("list[Any]", task[field]) if isinstance(task[field], list) else [task[field]]
        if not test_sources or not all(isinstance(test, str) for test in test_sources):
            got = f"task.{field} must hold tests, such as 'assert add(2, 3) == 5'; got {test_sources!r:.80}"
            raise TypeError(got)
        share = run_tests(program_of(str(action)), test_sources, seconds=seconds, interpreter=interpreter)
        return Score(share, share >= 1.0)

    return Reward(
        score, RewardFacts(fields=(field,), labels=(field,)), timeout=timeout, permissions=("python",)
    )


def python(
    code: str,
    /,
    *,
    labels: Sequence[str] | None = None,
    seconds: Seconds = 5.0,
    timeout: Seconds = 60.0,
    interpreter: str = MONTY,
) -> Reward:
    """Score the value of a program of the spec, run in the sandbox: of the expression that it ends with.

    code: the program, which reads `action` and `task`; true and false are 1 and 0, and 1 or more is right
    labels: task fields that give the answer away, which no prompt may show; left out, all that it reads
    seconds: the time limit of one program
    timeout: the time limit with the wait for its turn
    """
    from rolegraph.roles.formulas import bounds_of_text  # imports jinja2

    require_interpreter(interpreter)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"not Python: {error.msg}, line {error.lineno}") from error
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        raise ValueError("a program that ends with an expression, whose value is the reward")
    reads = _Reads(tree)
    hidden_fields = tuple(dict.fromkeys([*reads.fields, *reads.others])) if labels is None else tuple(labels)

    def score(task: Task, action: Any, inputs: RewardInputs) -> Score:
        program_inputs = {"task": dict(task), "action": action}
        value = evaluate(code, program_inputs, seconds=seconds, interpreter=interpreter).value
        if not isinstance(value, bool | int | float):
            raise TypeError(f"the value of the program is {value!r:.80}, expected a number")
        return Score(float(value), value >= 1)

    fields = tuple(dict.fromkeys([*(labels or ()), *reads.fields]))
    required_fields = fields if labels is None else tuple(labels)
    bounds = bounds_of_text(ast.unparse(tree.body[-1])) or UNIT
    facts = RewardFacts(fields=fields, labels=hidden_fields, required=required_fields, bounds=bounds)
    return Reward(score, facts, timeout=timeout, permissions=("python",))


class _Reads:
    """Task fields that a program reads, found in its syntax tree."""

    def __init__(self, tree: ast.Module) -> None:
        """Walk a program's syntax tree and collect the task fields that it reads in `fields` and `others`."""
        self.fields: list[str] = []
        """Fields that each row must have, read as `task["…"]`."""
        self.others: list[str] = []
        """Fields that a row may lack, read as `task.get("…")`.

        If the program reads `task` in another way, all of its string constants are included, because each may
        be the name of a field.
        """
        nodes = [*ast.walk(tree)]
        for node in nodes:
            match node:
                case ast.Subscript(value=ast.Name(id="task"), slice=ast.Constant(value=str(field))):
                    self.fields.append(field)
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="task"), attr="get"),
                    args=[ast.Constant(value=str(field)), *_],
                ):
                    self.others.append(field)
                case _:
                    pass
        use_count = sum(isinstance(node, ast.Name) and node.id == "task" for node in nodes)
        if use_count > len(self.fields) + len(self.others):
            texts = (node.value for node in nodes if isinstance(node, ast.Constant))
            self.others += [text for text in texts if isinstance(text, str)]


def program_of(text: str) -> str:
    """Return the last fenced block of Python, or of no language; without such a block, the whole text."""
    blocks = [block for block in fenced_blocks(text, glued=True)[0] if block.language in _LANGUAGES]
    return blocks[-1].text if blocks else text


_LANGUAGES = ("", "py", "python", "python3")
