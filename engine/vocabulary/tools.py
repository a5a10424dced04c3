"""What a tool is: what a `run:` role does in place of asking a model, or what a model calls in its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolegraph.engine.vocabulary.registry import Item
from rolegraph.engine.vocabulary.views import Upstream, View, Views


class ToolError(ValueError):
    """A tool raises this where it cannot do what it was asked; its message is for whoever asked."""


class ToolCall(NamedTuple):
    """What a model asks of a tool."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """What an endpoint knows the call by; the result is sent back under it."""
    malformed: str = ""
    """What the model wrote where no arguments can be read; without a name, that cannot be read either."""


class Function(NamedTuple):
    """What can be asked of a tool: what a model is told of it, and what does it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments, an object's."""
    call: Callable[[Mapping[str, Any]], Awaitable[Any]]
    """Arguments to a result: text, or a JSON value. Raises ToolError."""


class Pairs(NamedTuple):
    """Which of the instances that a second name stands for are on the branch of each of a first one's."""

    indices: Mapping[int, Collection[int]]
    """By an instance's number, theirs."""
    by_round: bool = False
    """Whether both are in one loop: then a turn is paired with those of its own round."""

    def partners(self, view: View, others: Views) -> list[View]:
        """Those that belong to one of the first, in order."""
        numbers = self.indices.get(view.index, ())
        return [
            other
            for other in others
            if isinstance(other, View)
            and other.index in numbers
            and (other.round == view.round or not self.by_round)
        ]


NO_PAIRS = Pairs({})


@dataclass(frozen=True, slots=True)
class Tool(Item):
    """What a `run:` role does in place of asking a model, or what a model may call in its turn.

    One of the first two is given: `open` for what computes or asks somebody, `choose` for what only picks
    from what a `run:` role sees.
    """

    open: Callable[[], AbstractAsyncContextManager[Sequence[Function]]] | None = None
    """Its functions for one episode: what they keep, they keep as long. `run:` takes a tool of one."""
    choose: Callable[[Upstream, Pairs], Any] | None = None
    """What is seen, in order of `needs`, to a result; raises ToolError. Pure."""
    source: str | None = None
    """The template that a `run:` role gives as its value; rendered, it is the function's first argument."""
    roles: tuple[str, ...] = ()
    """Names of `needs` that it reads."""
    pairs: tuple[str, str] | None = None
    """Two of them, which `choose` is told the pairs of."""
    timeout: float | None = None
    """Seconds for `choose`. None: fast, runs in place. A number: runs in a process stopped at the limit."""
    example: Any = "…"
    """What a function of it could give, made up: for a look at prompts without asking anybody."""
