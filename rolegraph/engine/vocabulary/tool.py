"""Tools: what a `run:` role does instead of asking a model, and what a model calls in its turn."""

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
    """Error of a tool that cannot do its work; its message is for the model or role that called.

    `retry_headers` is set for a failure that may pass, such as overload or a dropped connection: the call is
    then repeated with backoff. It holds the server's headers, of which `Retry-After` is obeyed.
    """

    def __init__(self, message: str, *, retry_headers: Mapping[str, str] | None = None) -> None:
        self.retry_headers = retry_headers
        super().__init__(without_secrets(message))


class ProgramFailure(ToolError):
    """Error of a program that a tool ran: it raised an exception, or exceeded its time or memory.

    It is the program's result: what the program printed, `output`, and the message.
    """

    def __init__(self, message: str, output: str = "") -> None:
        self.output = output
        super().__init__(message)


class ToolCall(NamedTuple):
    """Call of a tool in a model's answer."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """Identifier of the call at an endpoint, which the result is sent back with."""
    malformed: str = ""
    """The call's text where its arguments, or with an empty `name` its name too, cannot be read."""


class Function(NamedTuple):
    """One function of a tool: its description for a model, and the code that runs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, of type object."""
    call: Callable[[Mapping[str, Any]], Awaitable[Any]]
    """`await call(arguments)` returns text or a JSON value, or raises ToolError."""


async def never_called(arguments: Mapping[str, Any]) -> Any:
    """Raise AssertionError: the `call` of a function that is only described here."""
    raise AssertionError("the function is called elsewhere")


class Pairs(NamedTuple):
    """For each instance (by index) of one role, the instances of another role on the same branch."""

    indices: Mapping[int, Collection[int]]
    """Indices of the partners of each instance of the first role, by the instance's index."""
    by_round: bool = False
    """True where both names are in one loop, so that only turns of the same round are partners."""

    def partners(self, view: View, candidates: Views) -> list[View]:
        """Return those of the candidates that are on the same branch as a view, in order.

        Args:
            view: An instance of the first name.
            candidates: The instances of the second name.
        """
        indices = self.indices.get(view.index, ())
        views = [each for each in candidates if each.index in indices]
        if not self.by_round:
            return views
        return [each for each in views if (each.outer, each.round) == (view.outer, view.round)]


NO_PAIRS = Pairs({})

EPISODE_ID = re.compile(r"\{\{\s*episode\.id\s*\}\}")
"""Place of the episode's id in a header."""


Headers = Annotated[dict[str, str], Field(max_length=20)] | None
"""Headers of a tool's requests, as a spec writes them."""


def check_headers(headers: Headers) -> Mapping[str, str]:
    """Return the headers of a tool's requests; messages show no values of headers that are named as secrets.

    Raises:
        ValueError: A name is no `X-` header, or a value holds a template other than `{{ episode.id }}`.
    """
    for name, value in (headers or {}).items():
        # Others steer a connection (Host, Content-Length, Cookie), which is the client's to do.
        if not re.fullmatch(r"[Xx]-[A-Za-z0-9-]{1,80}", name):
            raise ValueError(f"the header {name!r} does not start with X-, as a spec's headers do")
        rest = EPISODE_ID.sub("", value)
        if "{{" in rest or "{%" in rest:
            raise ValueError(f"the header {name} holds a template; only {{{{ episode.id }}}} can stand there")
        if not re.fullmatch(r"[ -~]{0,1000}", rest):
            raise ValueError(f"the header {name} is not plain ASCII text of at most 1,000 characters")
        if is_secret_name(name):
            remember(rest)
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
"""`await ask(messages, functions)` answers a request of an agent program by the role's model."""

Agent = Callable[[str, Ask], Awaitable[str]]
"""`await agent(prompt, ask)` runs an agent program on a prompt and returns the program's output.

It raises what `ask` raises, and ToolError for a program that fails.
"""


class SessionCall(NamedTuple):
    """A `run: function` of a function from another role's tools, as that role opened them in the episode."""

    role: str
    """Name, in `needs`, of the role whose tools they are."""
    function: str


@dataclass(frozen=True, slots=True)
class Tool(Item):
    """Tool of a `run:` role or of a model's turn; at most one of `open`, `choose` and `agent` is given.

    A tool without `open` is for `run:` roles only. Without `choose` and `session`, too, its result is the
    text of `source`.
    """

    open: Callable[..., AbstractAsyncContextManager[Sequence[Function]]] | None = None
    """Opens the tool's functions for one episode. A `run:` role takes a tool with a single function. Its
    argument are the `headers`, if there are any."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the tool's requests, which may hold `{{ episode.id }}`."""
    agent: Agent | None = None
    """Runs a program that asks the role's model itself, as often as it likes, in place of a turn's calls."""
    callee: str = ""
    """Name of the role that a call runs; the engine has its function, so there is no `open`."""
    choose: Callable[[Upstream, Pairs], Any] | None = None
    """`choose(upstream, pairs)` returns the role's action from what the role sees, in order of `needs`; it is
    pure, and may raise ToolError."""
    source: str | None = None
    """Template that a `run:` role writes as the tool's value; rendered, it is the first argument of
    the function."""
    session: SessionCall | None = None
    """Function that a tool without `open` and `choose` calls, of another role's tools; `source` is then the
    JSON of its arguments."""
    sends_body: bool = False
    """True where the value is the body of a request, which may hold `{{ episode.id }}`."""
    roles: tuple[str, ...] = ()
    """Names of the role's `needs` that `choose` reads."""
    pairs: tuple[str, str] | None = None
    """Two of the `roles`, of which `choose` gets the pairs."""
    least: int = 1
    """Fewest actions with which `choose` has a choice; `validate` warns of fewer."""
    timeout: float | None = None
    """Time limit of `choose` in seconds of processor time, in a process that is stopped at it; None runs it
    in place."""
    files: Mapping[Path, Collection[str]] = field(default_factory=dict[Path, Collection[str]])
    """Files of rows that the results quote, each with the fields that they quote; a hidden field of the tasks
    in one of them is a fault of the spec."""
    example: Any = "…"
    """Made-up result, for previews without a model."""
    gives: Shape = field(default_factory=dict[str, Any])
    """Shape of the result."""
    reads: tuple[ActionRead, ...] = ()
    """Numbers that `choose` reads in actions."""

    def opened(self, episode: str) -> AbstractAsyncContextManager[Sequence[Function]]:
        """Return a context manager that opens the tool's functions for the episode with this id."""
        assert self.open is not None
        if not self.headers:
            return self.open()
        return self.open({name: EPISODE_ID.sub(episode, value) for name, value in self.headers.items()})
