"""Tools: run by a `run:` role in place of a model, or called by a model in its turn."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from rolegraph.engine.records import Message
from rolegraph.engine.secrets import is_secret_name, remember, without_secrets
from rolegraph.engine.vocabulary.actions import ActionRead, Shape
from rolegraph.engine.vocabulary.registry import Item
from rolegraph.engine.vocabulary.views import Upstream, View, Views


class ToolError(ValueError):
    """Error of a tool that cannot do its work; its message is for the model or role that called the tool.

    `retry_headers` is set for a transient failure, such as overload or a dropped connection: the call is then
    repeated with backoff. It holds the server's headers; `Retry-After` is obeyed.
    """

    def __init__(self, message: str, *, retry_headers: Mapping[str, str] | None = None) -> None:
        self.retry_headers = retry_headers
        super().__init__(without_secrets(message))


class ProgramFailure(ToolError):
    """Error of a program that a tool ran: it raised an exception, or exceeded its time or memory.

    The error is the program's result: its `output`, the text that it printed, and the message.
    """

    def __init__(self, message: str, output: str = "") -> None:
        self.output = output
        super().__init__(message)


class ToolCall(NamedTuple):
    """Call of a tool in a model's answer."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """Identifier of the call at an endpoint, with which the result is sent back."""
    malformed: str = ""
    """Text of a call that cannot be read: its arguments, or if `name` is empty, the whole call."""


class Function(NamedTuple):
    """One function of a tool: its description for a model, and the code that runs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, of type object."""
    call: Callable[[Mapping[str, Any]], Awaitable[Any]]
    """`await call(arguments)` returns text or a JSON value, or raises ToolError."""


async def never_called(arguments: Mapping[str, Any]) -> Any:
    """Raise AssertionError; it is the `call` of a function that is only described to a model."""
    raise AssertionError("the function is called elsewhere")


class Pairs(NamedTuple):
    """For each instance (by index) of one role, the instances of another role on the same branch."""

    indices: Mapping[int, Collection[int]]
    """Indices of the partners of each instance of the first role, by the instance's index."""
    by_round: bool = False
    """True if both roles are in one loop, so that only turns of the same round are partners."""

    def partners(self, view: View, candidates: Views) -> list[View]:
        """Return the candidates that are partners of a view, in order.

        Args:
            view: An instance of the first role.
            candidates: The instances of the second role.
        """
        indices = self.indices.get(view.index, ())
        views = [c for c in candidates if c.index in indices]
        if not self.by_round:
            return views
        return [c for c in views if (c.outer, c.round) == (view.outer, view.round)]


NO_PAIRS = Pairs({})

EPISODE_ID = re.compile(r"\{\{\s*episode\.id\s*\}\}")
"""Pattern of the placeholder for the episode's id in a header."""


Headers = Annotated[dict[str, str], Field(max_length=20)] | None
"""Headers of a tool's requests, as a spec writes them."""


def check_headers(headers: Headers) -> Mapping[str, str]:
    """Return the headers of a tool's requests; messages leave out the values of headers with names of
    secrets.

    Raises:
        ValueError: A name is no `X-` header, or a value holds a template other than `{{ episode.id }}`.
    """
    for name, value in (headers or {}).items():
        # Others steer a connection (Host, Content-Length, Cookie), which is the client's to do.
        if not re.fullmatch(r"[Xx]-[A-Za-z0-9-]{1,80}", name):
            raise ValueError(f"the header {name!r} does not start with X-, as a spec's headers do")
        remaining_text = EPISODE_ID.sub("", value)
        if "{{" in remaining_text or "{%" in remaining_text:
            raise ValueError(f"the header {name} holds a template; only {{{{ episode.id }}}} can stand there")
        if not re.fullmatch(r"[ -~]{0,1000}", remaining_text):
            raise ValueError(f"the header {name} is not plain ASCII text of at most 1,000 characters")
        if is_secret_name(name):
            remember(remaining_text)
    return headers or {}


class AgentAnswer(NamedTuple):
    """Answer of a role's model to a request of an agent program."""

    text: str
    calls: Sequence[ToolCall]
    """Calls of the program's functions, each with an id."""
    is_cut: bool
    """True where `max_tokens` ended the answer."""
    prompt_tokens: int
    answer_tokens: int


Ask = Callable[[Sequence[Message], Sequence[Function]], Awaitable[AgentAnswer]]
"""`await ask(messages, functions)` sends a request of an agent program to the role's model, and returns the
answer."""

Agent = Callable[[str, Ask], Awaitable[str]]
"""`await agent(prompt, ask)` runs an agent program on a prompt and returns the program's output.

It raises the errors of `ask`, and ToolError if the program fails.
"""


class SessionCall(NamedTuple):
    """A `run: function` of a function from another role's tools, as that role opened them in the episode."""

    role: str
    """Name, in `needs`, of the role that has the tools."""
    function: str


@dataclass(frozen=True, slots=True)
class Tool(Item):
    """Tool of a `run:` role or of a model's turn; at most one of `open`, `choose` and `agent` is set.

    A tool without `open` is for `run:` roles only. If it has neither `open`, `choose`, `agent` nor `session`,
    its result is the text of `source`.
    """

    open: Callable[..., AbstractAsyncContextManager[Sequence[Function]]] | None = None
    """Function that opens the tool's functions for one episode, called with the `headers` if there are any.
    The tool of a `run:` role has exactly one function."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the tool's requests, which may hold `{{ episode.id }}`."""
    agent: Agent | None = None
    """Function that runs a program in place of a turn's calls; the program asks the role's model itself, as
    often as it likes."""
    callee: str = ""
    """Name of the role that a call runs; the engine supplies the function, so `open` is None."""
    choose: Callable[[Upstream, Pairs], Any] | None = None
    """`choose(upstream, pairs)` returns the role's action from the turns that the role reads, in order of
    `needs`; it is pure, and may raise ToolError."""
    source: str | None = None
    """Template that a `run:` role writes as the tool's value; the rendered text is the first argument of the
    function."""
    session: SessionCall | None = None
    """Function of another role's tools that this tool calls; `source` is then the JSON of its arguments."""
    sends_body: bool = False
    """True if the value is the body of a request, which may hold `{{ episode.id }}`."""
    roles: tuple[str, ...] = ()
    """Names of the role's `needs` that `choose` reads."""
    pairs: tuple[str, str] | None = None
    """Two of the `roles`; `choose` gets the pairs of their instances."""
    least: int = 1
    """Smallest number of actions among which `choose` can choose; `validate` warns of fewer."""
    timeout: float | None = None
    """Time limit of `choose` in seconds of processor time; it runs in a separate process that is killed at
    the limit. None runs it in this process."""
    files: Mapping[Path, Collection[str]] = field(default_factory=dict[Path, Collection[str]])
    """Files of rows that the results quote, each with the quoted fields; a hidden field of the tasks among
    them is a fault of the spec."""
    example: Any = "…"
    """Made-up result, for previews without a model."""
    gives: Shape = field(default_factory=dict[str, Any])
    """Shape of the result."""
    reads: tuple[ActionRead, ...] = ()
    """Numbers that `choose` reads from actions."""

    def opened(self, episode: str) -> AbstractAsyncContextManager[Sequence[Function]]:
        """Return a context manager that opens the tool's functions for the episode with this id."""
        assert self.open is not None
        if not self.headers:
            return self.open()
        return self.open({name: EPISODE_ID.sub(episode, value) for name, value in self.headers.items()})
