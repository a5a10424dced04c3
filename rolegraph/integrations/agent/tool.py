"""Tool `agent`: a program that itself calls the role's model."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rolegraph.engine.errors import describe_error
from rolegraph.engine.limits.tools import TOOL_TEXT
from rolegraph.engine.vocabulary import Ask, Tool, ToolError
from rolegraph.engine.vocabulary.children import program_environment, supervised

PROMPT = "{prompt}"
"""Placeholder of the prompt in a command; without the placeholder the program reads the prompt from standard
input."""
FOLDER = "{folder}"
"""Placeholder of the spec's folder in a command."""
_SHOWN = 500
"""Largest number of characters that a failure quotes from a program's error output."""
_VARIABLES = {
    "OPENAI_BASE_URL": "{url}/v1",
    "OPENAI_API_BASE": "{url}/v1",
    "OPENAI_API_KEY": "{key}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{key}",
    "ANTHROPIC_AUTH_TOKEN": "{key}",
}
"""Environment variables that give a program its endpoint."""
_CHUNK = 65_536


def agent(
    command: str | Annotated[list[str], Field(min_length=1)],
    /,
    *,
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 600.0,
    folder: Path = Path(),
    allowed: Collection[str] = (),
) -> Tool:
    """Let a program ask the role's model, by OpenAI's or Anthropic's API, as often as `max_calls`; its output
    is the answer.

    command: the command, in words or as one text, which must be allowed on the command line; {folder} stands
        for the spec's folder, {prompt} for the role's prompt, which is otherwise the standard input
    timeout: seconds for one run of the program
    """
    words = tuple(
        word.replace(FOLDER, str(folder.resolve()))
        for word in (shlex.split(command) if isinstance(command, str) else command)
    )
    if not words:
        raise ValueError("the command is empty")
    return Tool(
        agent=partial(run_agent, words, timeout, allowed), permissions=(f"agent:{shlex.join(words)}",)
    )


async def run_agent(
    command: Sequence[str], seconds: float, allowed: Collection[str], prompt: str, ask: Ask
) -> str:
    """Run an agent program in a new empty folder, and return its output.

    The program gets the variables of `program_environment`, and those of `_VARIABLES`, which name an endpoint
    for this run alone. All processes that the program started have ended when this function returns.

    Args:
        command: The words of the command.
        seconds: Time limit of the run.
        allowed: Permissions that the user gave; `env:NAME` passes a variable to the program.
        prompt: The role's prompt.
        ask: Function that answers a request to the endpoint.

    Raises:
        ToolError: The program cannot be started, takes too long, fails, or gives too much output.
    """
    from rolegraph.integrations.agent.endpoint import AgentEndpoint  # needs the room `serving`

    async with AgentEndpoint(ask) as endpoint:
        words = [word.replace(PROMPT, prompt) for word in command]
        stdin_bytes = b"" if words != [*command] else prompt.encode()
        environment = program_environment(allowed)
        environment |= {
            name: value.format(url=endpoint.url, key=endpoint.key) for name, value in _VARIABLES.items()
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *supervised(words, "rolegraph-agent-"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"cannot start {command[0]}: {describe_error(error)}") from None
        output = asyncio.create_task(_output(command[0], process, stdin_bytes))
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait({output, endpoint.failed}, return_when=asyncio.FIRST_COMPLETED)
            if endpoint.failed.done():
                endpoint.failed.result()
            return output.result()
        except TimeoutError:
            if endpoint.failed.done():  # a call of the model took too long
                raise
            raise ToolError(f"{command[0]} did not end within {seconds:g} s") from None
        finally:
            output.cancel()
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _output(name: str, process: asyncio.subprocess.Process, given: bytes) -> str:
    """Write the input of a program, wait for its end, and return its output.

    Raises:
        ToolError: The program's status is not 0, or its output is too long.
    """
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    stderr_task = asyncio.create_task(_tail(process.stderr))
    try:
        with suppress(ConnectionError):  # the program reads no input
            process.stdin.write(given)
            await process.stdin.drain()
        process.stdin.close()
        output = bytearray()
        while chunk := await process.stdout.read(_CHUNK):
            output += chunk
            if len(output) > TOOL_TEXT.most:
                raise ToolError(TOOL_TEXT.exceeded(f"the output of {name} has"))
        status = await process.wait()
        if status != 0:
            error_tail = (await stderr_task).strip()
            raise ToolError(
                f"{name} ended with status {status}" + (f": {error_tail[-_SHOWN:]}" if error_tail else "")
            )
        return output.decode(errors="replace").strip()
    finally:
        stderr_task.cancel()


async def _tail(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end, and return its last characters."""
    tail = b""
    while chunk := await stream.read(_CHUNK):
        tail = (tail + chunk)[-4 * _SHOWN :]
    return tail.decode(errors="replace")
