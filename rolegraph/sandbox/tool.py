"""Tool `python`: runs programs that a model or a spec wrote."""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Any

from pydantic import Field

from rolegraph.engine.errors import SandboxError, UnsupportedProgram, WorldError
from rolegraph.engine.vocabulary import MONTY, ProgramFailure, Tool, ToolError
from rolegraph.engine.vocabulary.actions import TEXT
from rolegraph.roles.tools import Seconds, Sent, function_opener
from rolegraph.sandbox.python import MEMORY, SECONDS, PythonSandbox, require_interpreter


def python(
    code: str | None = None,
    /,
    *,
    seconds: Seconds = SECONDS,
    memory: Annotated[int, Field(ge=8, le=4096)] = MEMORY >> 20,
    interpreter: str = MONTY,
) -> Tool:
    """Run Python in a sandbox, without files or network: its output, and the value that it ends with.

    code: the program, a template; left out where a model writes it
    seconds: the time limit of a program, by the clock
    memory: the memory limit of a program, in MB
    """
    require_interpreter(interpreter)
    description = (
        "Runs a Python program and gives what it prints, and the value of the expression that it ends with. "
        "There are no files, no network and no packages; nothing is kept from one program to the next."
    )
    run = partial(_execute, seconds, memory << 20, interpreter)
    function = function_opener("python", description, "code", "the program", run)
    return Tool(function, source=code, permissions=("python",), gives=TEXT)


async def _execute(seconds: float, memory: int, interpreter: str, code: Any, headers: Sent) -> str:
    try:
        ran = await _sandbox(seconds, memory, interpreter).run(_unfenced(str(code)))
    except (UnsupportedProgram, WorldError) as error:
        raise ToolError(str(error)) from None
    except SandboxError as error:
        has_fence = str(error).startswith("SyntaxError") and "```" in str(code)
        message = f"{error}{'; a Markdown fence stands in the program' if has_fence else ''}"
        raise ProgramFailure(message, error.output.rstrip("\n")) from None
    value = "" if ran.value is None else ran.value if isinstance(ran.value, str) else repr(ran.value)
    return "\n".join(part for part in (ran.output.rstrip("\n"), value) if part)


@cache
def _sandbox(seconds: float, memory: int, interpreter: str) -> PythonSandbox:
    """Return the PythonSandbox for these limits, shared by all episodes.

    So the number of concurrent programs is at most the number of processors.
    """
    return PythonSandbox(seconds=seconds, memory=memory, interpreter=interpreter)


def _unfenced(code: str) -> str:
    """Return a program without a surrounding Markdown fence."""
    first_line, *lines = code.strip().split("\n")
    has_fence = lines and first_line.strip() in ("```", "```py", "```python") and lines[-1].strip() == "```"
    return "\n".join(lines[:-1]) if has_fence else code
