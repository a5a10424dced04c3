"""Tools: what a role runs in place of asking a model, and what a model may call in its turn.

Each factory makes a `Tool`. One that computes or asks somebody has a function, whose first argument is what a
`run:` role gives as the tool's value; one that chooses picks from what the role sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from rolegraph.engine.sandbox import PythonSandbox, SandboxError
from rolegraph.engine.sandbox.process import require_monty
from rolegraph.engine.sandbox.python import MEMORY, SECONDS
from rolegraph.engine.vocabulary import (
    Function,
    Pairs,
    Tool,
    ToolError,
    Upstream,
    View,
    check_url,
)
from rolegraph.roles import calculator as arithmetic
from rolegraph.roles import corpus as corpora
from rolegraph.roles import retrieving
from rolegraph.roles.choosing import Same, best, commonest
from rolegraph.roles.equality import MATH_SECONDS, Equal, SameMath, require_math, same_text

Seconds = Annotated[float, Field(gt=0, le=600)]


# that choose


def majority(*, equal: Equal = "text") -> Tool:
    """The action that most of those it sees have; of equally common ones, the first. The failed do not vote.

    equal: as text, or as mathematics (the math-verify library)
    """
    return _comparing(_majority, equal)


def _majority(same: Same, _: Sequence[str] | None, upstream: Upstream, pairs: Pairs) -> Any:
    seen = _seen(upstream)
    return commonest([view.action for view in seen if not view.failed] or [v.action for v in seen], same)


def equal(names: list[str] | None = None, /, *, compare: Equal = "text") -> Tool:
    """Whether all that it sees is the same: true or false.

    names: the names whose actions are compared; null compares everything it needs
    compare: as text, or as mathematics (the math-verify library)
    """
    return _comparing(_equal, compare, names)


def _equal(same: Same, names: Sequence[str] | None, upstream: Upstream, pairs: Pairs) -> bool:
    first, *others = _seen(upstream if names is None else {name: upstream[name] for name in names})
    return all(same(first.action, other.action) for other in others)


def argmax(of: str, /, *, by: str) -> Tool:
    """The action with the highest score; of equal ones the first, and those without a score come last.

    of: the name whose instances are compared
    by: where the score stands, such as scorer.score: a name that the role needs, and a path into its action.
      Those on the candidate's own branch score it; of several the mean counts
    """
    name, *path = by.split(".")
    return Tool(choose=partial(_argmax, of, name, path), roles=(of, name), pairs=(of, name))


def _argmax(of: str, scorer: str, path: Sequence[str], upstream: Upstream, pairs: Pairs) -> Any:
    return _ranked(of, scorer, path, upstream, pairs)[0]


def top(of: str, /, *, by: str, k: Annotated[int, Field(ge=1)]) -> Tool:
    """The k actions with the highest scores, the best first; otherwise as argmax.

    of: the name whose instances are compared
    by: where the score stands, such as scorer.score: a name that the role needs, and a path into its action
    k: how many
    """
    name, *path = by.split(".")
    return Tool(choose=partial(_top, of, name, path, k), roles=(of, name), pairs=(of, name))


def _top(of: str, scorer: str, path: Sequence[str], k: int, upstream: Upstream, pairs: Pairs) -> list[Any]:
    return _ranked(of, scorer, path, upstream, pairs)[:k]


def _ranked(of: str, scorer: str, path: Sequence[str], upstream: Upstream, pairs: Pairs) -> list[Any]:
    candidates = _seen({of: upstream[of]})
    scored = [[other.action for other in pairs.partners(view, upstream[scorer])] for view in candidates]
    return best([view.action for view in candidates], scored, path)


def _comparing(
    choose: Callable[[Same, Sequence[str] | None, Upstream, Pairs], Any],
    equal: Equal,
    names: Sequence[str] | None = None,
) -> Tool:
    """A tool that compares actions; mathematics in a process that can be stopped."""
    roles = tuple(names or ())
    if equal == "text":
        return Tool(choose=partial(choose, same_text, names), roles=roles)
    require_math()
    return Tool(choose=partial(choose, SameMath(), names), roles=roles, timeout=MATH_SECONDS)


def _seen(upstream: Upstream) -> list[View]:
    seen = [view for views in upstream.values() for view in views if isinstance(view, View)]
    if not seen:
        raise ToolError(f"nothing to choose from: of {', '.join(upstream)} nobody ran")
    return seen


# that have a function


def calculator(expression: str | None = None, /) -> Tool:
    """The value of an arithmetic expression, such as 2 * (3 + 4) ^ 2 or sqrt(2).

    expression: the expression, a template; left out where a model writes it
    """
    says = f"Computes an arithmetic expression and gives its value. It knows {', '.join(arithmetic.KNOWN)}."
    about = _Argument("expression", "such as 2 * (3 + 4)")
    functions = (_function("calculator", says, about, _calculate),)
    return Tool(partial(_always, functions), source=expression, example=1)


async def _calculate(expression: Any) -> int | float:
    try:
        return arithmetic.calculate(str(expression))
    except ValueError as error:
        raise ToolError(str(error)) from None


def python(
    code: str | None = None,
    /,
    *,
    seconds: Seconds = SECONDS,
    memory: Annotated[int, Field(ge=8, le=4096)] = MEMORY >> 20,
) -> Tool:
    """Runs Python in a sandbox, without files or network: what it prints, and the value that it ends with.

    code: the program, a template; left out where a model writes it
    seconds: what a program may take, by the clock
    memory: what it may use, in MB
    """
    require_monty()
    says = (
        "Runs a Python program and gives what it prints, and the value of the expression that it ends with. "
        "There are no files, no network and no packages; nothing is kept from one program to the next."
    )
    run = partial(_execute, seconds, memory << 20)
    function = _function("python", says, _Argument("code", "the program"), run)
    return Tool(partial(_always, (function,)), source=code, permissions=("python",))


async def _execute(seconds: float, memory: int, code: Any) -> str:
    try:
        ran = await _sandbox(seconds, memory).run(_unfenced(str(code)))
    except SandboxError as error:
        fenced = str(error).startswith("SyntaxError") and "```" in str(code)
        raise ToolError(f"{error}{'; a Markdown fence stands in the program' if fenced else ''}") from None
    value = "" if ran.value is None else ran.value if isinstance(ran.value, str) else repr(ran.value)
    return "\n".join(part for part in (ran.output.rstrip("\n"), value) if part)


@cache
def _sandbox(seconds: float, memory: int) -> PythonSandbox:
    """One for all episodes, so that no more programs run at once than there are processors."""
    return PythonSandbox(seconds=seconds, memory=memory)


def _unfenced(code: str) -> str:
    """A program out of the Markdown fence that models put around it."""
    lines = code.strip().split("\n")
    fenced = (
        len(lines) > 1 and lines[0].strip() in ("```", "```py", "```python") and lines[-1].strip() == "```"
    )
    return "\n".join(lines[1:-1]) if fenced else code


_FOUND = [{"id": "1", "title": "…", "text": "…", "score": 1.0}]
"""What a search could find."""


def search(
    query: str | None = None,
    /,
    *,
    corpus: str | None = None,
    url: str | None = None,
    k: Annotated[int, Field(ge=1, le=100)] = 3,
    folder: Path = Path(),
) -> Tool:
    """The passages that fit a query best, the best first: of a corpus beside the spec, or from a retriever.

    query: what is looked for, a template; left out where a model writes it
    corpus: a .jsonl, .csv or .parquet file with a `text` for each passage, and an `id` and a `title` where it
      has them; ranked by BM25
    url: a retriever in its place, which is sent {"query": …, "k": …} and answers with a list of passages, or
      with {"results": […]}
    k: how many passages
    """
    if (corpus is None) == (url is None):
        raise ValueError("needs either a corpus or a url")
    says = f"Looks for passages of text, and gives the {k} that fit the query best."
    about = _Argument("query", "what is looked for, in a few words")
    if url is not None:
        run = partial(retrieving.retrieve, check_url(url), k)
        opened = partial(_asking, "search", says, about, run)
        return Tool(opened, source=query, permissions=(url,), example=_FOUND)
    look_up = partial(_look_up, corpora.open_corpus(str(corpus), folder=folder), k)
    functions = (_function("search", says, about, look_up),)
    return Tool(partial(_always, functions), source=query, example=_FOUND)


async def _look_up(corpus: corpora.Corpus, k: int, query: Any) -> list[corpora.SearchHit]:
    return await asyncio.to_thread(corpora.search, corpus, str(query), k)


def http(
    body: str | None = None,
    /,
    *,
    url: str,
    method: Literal["POST", "GET"] = "POST",
) -> Tool:
    """What a service answers to JSON that it is sent: JSON again, or text.

    body: the JSON, a template; left out where a model writes it. With GET an object, whose fields go into the
      URL's query
    url: where it is sent
    method: how
    """
    says = f"Sends JSON to {url} by {method}, and gives what it answers."
    run = partial(retrieving.exchange, check_url(url), method)
    opened = partial(_asking, "http", says, _Argument("body", "the JSON", {}), run)
    return Tool(opened, source=body, permissions=(url,))


class _Argument(NamedTuple):
    """What a function is asked."""

    name: str
    description: str
    schema: Mapping[str, Any] = {"type": "string"}  # read only


def _function(tool: str, says: str, asked: _Argument, run: Callable[[Any], Awaitable[Any]]) -> Function:
    about = {**asked.schema, "description": asked.description}
    parameters = {"type": "object", "properties": {asked.name: about}, "required": [asked.name]}

    async def call(arguments: Mapping[str, Any]) -> Any:
        if asked.name not in arguments:
            raise ToolError(f"{tool} needs the argument {asked.name}")
        return await run(arguments[asked.name])

    return Function(tool, says, parameters, call)


@asynccontextmanager
async def _always(functions: Sequence[Function]) -> AsyncGenerator[Sequence[Function], None]:
    """Functions that keep nothing."""
    yield functions


@asynccontextmanager
async def _asking(
    tool: str, says: str, asked: _Argument, run: Callable[[Any, Any], Awaitable[Any]]
) -> AsyncGenerator[Sequence[Function], None]:
    """A function that asks a URL, over connections that an episode keeps."""
    async with retrieving.client() as client:
        yield (_function(tool, says, asked, partial(run, client)),)
