"""Tools: what a role runs instead of asking a model, and what a model may call in its turn.

Each factory makes a `Tool`. A tool that computes or sends something has a function, whose first argument is
the value that a `run:` role writes; a tool that chooses picks one of the actions that the role reads.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from rolegraph.engine.connections import client_options, route
from rolegraph.engine.limits.answers import ANSWER_CALLS
from rolegraph.engine.limits.tools import REPLY_BYTES, REPLY_SECONDS
from rolegraph.engine.secrets import without_secrets
from rolegraph.engine.vocabulary import (
    Function,
    Pairs,
    SessionCall,
    Tool,
    ToolError,
    Upstream,
    View,
    check_headers,
    check_url,
)
from rolegraph.engine.vocabulary.actions import ACTION_OF, NUMBER, TEXT, ActionRead, Shape
from rolegraph.engine.vocabulary.replies import RejectedReply, bound_replies
from rolegraph.engine.vocabulary.tool import Headers
from rolegraph.roles import calculator as arithmetic
from rolegraph.roles.equality import MATH_SECONDS, SAME_MATH, Equal, canonical, require_math, same_text
from rolegraph.roles.json_text import value_at

Seconds = Annotated[float, Field(gt=0, le=600)]
Method = Literal["POST", "GET"]
Sent = Mapping[str, str] | None
"""Headers of one request."""


# The tool that writes


def text(template: str, /) -> Tool:
    """Write a text from what earlier roles said.

    template: the text, with the rules of prompts
    """
    return Tool(source=template, gives=TEXT)


# The tool that is another role


def role(name: str, /, *, parallel: Annotated[int, Field(ge=1, le=ANSWER_CALLS.most)] = 1) -> Tool:
    """Call another role, which has `callable` with its description and arguments.

    name: the role
    parallel: most calls of the role in one answer
    """
    return Tool(callee=name)


# The tool that asks another role's tools


def function(name: str, /, *, of: str, with_: str = "{}") -> Tool:
    """Call a function of the tools that another role had in the episode, such as the state of its MCP server.

    name: the function's name, which no model is offered then
    of: the name of that role in `needs`; tools that it did not use are opened
    with: the arguments, a template of a JSON object
    """
    return Tool(source=with_, roles=(of,), session=SessionCall(of, name), sends_body=True)


# Tools that choose


def majority(*, equal: Equal = "text") -> Tool:
    """Choose the commonest action; of equally common ones, the first. Failed instances do not vote.

    Where all failed, nothing is chosen.

    equal: as text, or as mathematics (the math-verify library)
    """
    are_equal, timeout = _comparison(equal)

    def choose(upstream: Upstream, pairs: Pairs) -> Any:
        groups: dict[str, list[Any]] = {}
        for view in _answered(upstream):
            key = canonical(view.action)
            if equal == "math":
                key = next((key for key, group in groups.items() if are_equal(view.action, group[0])), key)
            groups.setdefault(key, []).append(view.action)
        return max(groups.values(), key=len)[0]

    return Tool(choose=choose, timeout=timeout, gives={ACTION_OF: None})


def equal(names: list[str] | None = None, /, *, compare: Equal = "text") -> Tool:
    """Tell whether all actions that it sees are the same: true or false.

    The actions of failed instances are not known: there is a result only where two others differ.

    names: the names whose actions are compared; null compares everything it needs
    compare: as text, or as mathematics (the math-verify library)
    """
    are_equal, timeout = _comparison(compare)

    def choose(upstream: Upstream, pairs: Pairs) -> bool:
        compared_turns = upstream if names is None else {name: upstream[name] for name in names}
        first_view, *other_views = views = _answered(compared_turns)
        is_same = all(are_equal(first_view.action, view.action) for view in other_views)
        if is_same and len(views) < len(_views(compared_turns)):
            raise ToolError(f"not all of {', '.join(compared_turns)} answered, and the others are the same")
        return is_same

    shape = {"type": "boolean"}
    return Tool(choose=choose, roles=tuple(names or ()), least=2, timeout=timeout, gives=shape)


def argmax(of: str, /, *, by: str) -> Tool:
    """Choose the action with the highest score; of equal ones the first. Those without a score come last.

    Failed instances are not chosen, and failed scorers give no score; without any score nothing is chosen.

    of: the name whose instances are compared
    by: the place of the score, such as scorer.score: a name that the role needs, and a path into its action.
      Those on the candidate's own branch score it; of several the mean counts
    """
    return _ranking_tool(of, by, lambda ranked: ranked[0], {ACTION_OF: of})


def top(of: str, /, *, by: str, k: Annotated[int, Field(ge=1)]) -> Tool:
    """Choose the k actions with the highest scores, the best first; all else is as in argmax.

    of: the name whose instances are compared
    by: the place of the score, such as scorer.score: a name that the role needs, and a path into its action
    k: how many
    """
    shape = {"type": "array", "items": {ACTION_OF: of}, "maxItems": k}
    return _ranking_tool(of, by, lambda ranked: ranked[:k], shape)


def _ranking_tool(of: str, by: str, pick: Callable[[list[Any]], Any], gives: Shape) -> Tool:
    """Return a tool that ranks the actions of a role by score and chooses from the ranking.

    Args:
        of: Name of the role in `needs`.
        by: Place of the score, a name in `needs` and a path into its action; of several scores, the mean
            counts.
        pick: Function from the ranked actions, the best first, to the choice.
        gives: Shape of the choice.
    """
    scorer, _, path = by.partition(".")

    def choose(upstream: Upstream, pairs: Pairs) -> Any:
        def mean_score(view: View) -> float:
            numbers: list[float] = []
            for partner in pairs.partners(view, upstream[scorer]):
                if partner.failed:
                    continue
                # A number may be written as text; True and False are 1 and 0, as for rewards.
                with suppress(LookupError, TypeError, ValueError, OverflowError):
                    numbers.append(float(value_at(partner.action, path) if path else partner.action))
            finite_numbers = [number for number in numbers if math.isfinite(number)]
            return fmean(finite_numbers) if finite_numbers else -math.inf

        # A sort keeps the order of equal scores, also in reverse.
        scored_actions = [(mean_score(view), view.action) for view in _answered({of: upstream[of]})]
        if all(score == -math.inf for score, _ in scored_actions):
            raise ToolError(f"nothing to choose from: none of {of} has a score of {scorer}")
        ranked_actions = sorted(scored_actions, key=itemgetter(0), reverse=True)
        return pick([action for _, action in ranked_actions])

    names, action_reads = (of, scorer), (ActionRead(scorer, path, is_number=True),)
    return Tool(choose=choose, roles=names, pairs=names, least=2, gives=gives, reads=action_reads)


def _comparison(equal: Equal) -> tuple[Callable[[Any, Any], bool], float | None]:
    """Return (function that compares two actions, its time limit in seconds), by text or by mathematics.

    The comparison of texts has no limit, None; that of mathematics runs in a process that can be stopped.
    """
    if equal == "text":
        return same_text, None
    require_math()
    return SAME_MATH, MATH_SECONDS


def _answered(upstream: Upstream) -> list[View]:
    """Return the views of all turns that did not fail; raises ToolError if all failed."""
    views = [view for view in _views(upstream) if not view.failed]
    if not views:
        raise ToolError(f"nothing to choose from: all of {', '.join(upstream)} failed")
    return views


def _views(upstream: Upstream) -> list[View]:
    views = [view for inputs in upstream.values() for view in inputs]
    if not views:
        raise ToolError(f"nothing to choose from: none of {', '.join(upstream)} ran")
    return views


# Tools with a function


def calculator(expression: str | None = None, /) -> Tool:
    """Compute the value of an arithmetic expression, such as 2 * (3 + 4) ^ 2 or sqrt(2).

    expression: the expression, a template; left out where a model writes it
    """
    about = f"Computes an arithmetic expression and gives its value. It knows {', '.join(arithmetic.KNOWN)}."
    function = function_opener("calculator", about, "expression", "such as 2 * (3 + 4)", _calculate)
    return Tool(function, source=expression, example=1, gives=NUMBER)


async def _calculate(expression: Any, headers: Sent) -> int | float:
    try:
        return arithmetic.calculate(str(expression))
    except ValueError as error:
        raise ToolError(str(error)) from None


def http(body: str | None = None, /, *, url: str, method: Method = "POST", headers: Headers = None) -> Tool:
    """Send JSON to a service and return its answer: JSON again, or text.

    body: the JSON, a template; left out where a model writes it. With GET an object, whose fields go into the
      URL's query
    url: the URL of the service
    method: the method of the request
    headers: of the request, such as X-Episode: "{{ episode.id }}"
    """
    description = f"Sends JSON to {without_secrets(check_url(url))} by {method}, and gives what it answers."
    send_request = partial(exchange, url, method)
    return Tool(
        function_opener("http", description, "body", "the JSON", send_request, {}),
        headers=check_headers(headers),
        source=body,
        permissions=(url,),
        sends_body=method == "POST",
    )


async def exchange(url: str, method: Method, body: Any, headers: Sent) -> Any:
    """Send a JSON value to a URL and return the answer, JSON or text; raises ToolError for a failure.

    The request carries no keys and no cookies.
    """
    import httpx  # importing it takes longer than checking a spec

    try:
        sent_value = json.loads(body) if isinstance(body, str) else body
    except ValueError as error:
        hint = "write a value as {{ … | tojson }}"
        raise ToolError(f"what is to be sent is not JSON ({error}); {hint}") from None
    if method == "GET" and not isinstance(sent_value, Mapping):
        raise ToolError("with GET, an object is sent, whose fields go into the query")
    content: dict[str, Any] = {"params": sent_value} if method == "GET" else {"json": sent_value}
    try:
        client = httpx.AsyncClient(timeout=None, follow_redirects=False, **client_options(url))
        bound_replies(client, REPLY_BYTES)
        async with asyncio.timeout(REPLY_SECONDS.most), client:
            answer = await client.request(method, url, headers=headers, **content)
        status, text = answer.status_code, answer.text
    except RejectedReply as error:
        raise ToolError(f"rejected response from {url}: {error}") from None
    except TimeoutError:
        raise ToolError(f"{url} does not answer within {REPLY_SECONDS}") from None
    except (httpx.HTTPError, httpx.InvalidURL, LookupError, ValueError) as error:
        transient_errors = httpx.NetworkError | httpx.RemoteProtocolError
        retry_headers = httpx.Headers() if isinstance(error, transient_errors) else None
        message = f"cannot reach {url}{route(url)}: {str(error) or 'the connection was dropped'}"
        raise ToolError(message, retry_headers=retry_headers) from None
    if not 200 <= status < 300:
        retry_headers = answer.headers if status == 429 or status >= 500 else None
        raise ToolError(f"{url} answers {status}: {text[:200]}", retry_headers=retry_headers)
    try:
        return json.loads(text)
    except ValueError:
        return text


def function_opener(
    tool: str,
    about: str,
    name: str,
    description: str,
    run: Callable[[Any, Sent], Awaitable[Any]],
    schema: Mapping[str, Any] = TEXT,
) -> Callable[..., nullcontext[Sequence[Function]]]:
    """Return the `open` of a tool with a single function that takes one argument and keeps no state.

    `about` describes the function; `name`, `description` and `schema` are those of its argument.
    """
    argument = {**schema, "description": description}
    parameters = {"type": "object", "properties": {name: argument}, "required": [name]}

    async def call(headers: Sent, arguments: Mapping[str, Any]) -> Any:
        if name not in arguments:
            raise ToolError(f"{tool} needs the argument {name}")
        return await run(arguments[name], headers)

    def open(headers: Sent = None) -> nullcontext[Sequence[Function]]:
        return nullcontext((Function(tool, about, parameters, partial(call, headers)),))

    return open
