"""Fields of a chat request that a server takes, as its refusals teach. Pure.

Our defaults are not the server's, so each field is sent until the server refuses it. A refused field is left
out where the spec does not ask for it: log-probabilities, a seed that the run derives, a `top_p` of 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rolegraph.engine.models.types import Request

Fields = Mapping[str, Any]
LIMITS = ("max_tokens", "max_completion_tokens")
"""Names of the limit on an answer's tokens; OpenAI's reasoning models take the second alone."""
_NEUTRAL = {"top_p": 1.0, "temperature": 1.0}
"""Values with which a field says nothing; the field to leave out first comes first."""
EXTRAS: Fields = {
    "return_token_ids": True,
    "return_prompt_token_ids": True,
    # Without `top_logprobs`, llama-cpp-python's server gives null for `logprobs`, and llama.cpp's own gives
    # 20 tokens for each position, which exceeds the limits of a response after some 2,500 tokens.
    "top_logprobs": 1,
    "logprobs": True,
}
"""Fields requested beyond the answer, those that most servers refuse first."""
_TOGETHER: Mapping[str, Sequence[str]] = {
    "return_token_ids": ("return_token_ids", "return_prompt_token_ids"),
    "return_prompt_token_ids": ("return_token_ids", "return_prompt_token_ids"),
    "logprobs": ("logprobs", "top_logprobs"),
}
"""Fields to leave out together where a server refuses one of them."""
_COSTS = {
    "seed": "answers cannot be repeated",
    "top_p": "its own top_p holds",
    "temperature": "its own temperature holds",
}
"""Consequence of a field that is left out, for the warning."""


class Taken(NamedTuple):
    """Knowledge of the fields that a server takes."""

    left_out: frozenset[str] = frozenset()
    """Names of the fields that it refuses."""
    limit: str = LIMITS[0]
    """Its name of the limit on an answer's tokens."""
    refused_limits: frozenset[str] = frozenset()
    """Names of the limit that it refuses."""


class AskedField(NamedTuple):
    """Field of one request."""

    value: Any
    place: str = ""
    """Key of the spec that asks for the value; empty for a field that may be left out."""


def fields_of(request: Request, body: Fields, *, tokens: bool) -> dict[str, AskedField]:
    """Return the fields of a request beside model, messages and tools.

    Args:
        request: The request.
        body: Fields of the model's own in the spec; those of the role go before them.
        tokens: Whether log-probabilities and token ids are asked for.
    """
    sampling, role = request.sampling, request.id.node.role
    asked = {
        name: AskedField(value, "" if value == _NEUTRAL[name] else f"sampling.{name}")
        for name, value in (("top_p", sampling.top_p), ("temperature", sampling.temperature))
    }
    if request.seed is not None:
        asked["seed"] = AskedField(request.seed, "" if sampling.seed is None else "sampling.seed")
    asked[LIMITS[0]] = AskedField(sampling.max_tokens, "sampling.max_tokens")
    if sampling.stop:
        asked["stop"] = AskedField([*sampling.stop], "sampling.stop")
    if tokens:
        asked = {name: AskedField(value) for name, value in EXTRAS.items()} | asked
    for name, value in {**body, **request.body}.items():
        asked.pop(LIMITS[0] if name in LIMITS else name, None)
        if value is not None:
            place = f"roles.{role}.body" if name in request.body else "model.body"
            asked[name] = AskedField(value, place)
    return asked


def sent(asked: Mapping[str, AskedField], taken: Taken) -> dict[str, Any]:
    """Return the fields to send: those that the spec asks for, and others that the server takes."""
    return {
        taken.limit if name == LIMITS[0] else name: field.value
        for name, field in asked.items()
        if field.place or name not in taken.left_out
    }


def kind_of(asked: Mapping[str, AskedField], request: Request) -> frozenset[str]:
    """Return the kind of a request: requests of one kind are taken, or refused, alike."""
    places = {f"{name}={field.value!r}" if field.place else name for name, field in asked.items()}
    return frozenset(places | ({"tools"} if request.tools else set()))


def after_refusal(
    asked: Mapping[str, AskedField],
    taken: Taken,
    refusal: str,
    parameter: object = None,
    *,
    blindly: bool = True,
) -> Taken | str | None:
    """Return what a refusal teaches.

    Args:
        asked: The fields of the request.
        taken: The knowledge with which it was sent.
        refusal: The server's response.
        parameter: Name of the refused field, where the response states it.
        blindly: Whether a refusal that names no field is answered by leaving out what most servers refuse.

    Returns:
        More knowledge, with which the request is to be sent again; the name of a refused field that the spec
        asks for; or None where the refusal is about something else.
    """
    fields = sent(asked, taken)
    named = [parameter] if isinstance(parameter, str) and parameter else _named(fields, refusal)
    other = LIMITS[1 - LIMITS.index(taken.limit)]
    if taken.limit in named and other not in taken.refused_limits:
        return taken._replace(limit=other, refused_limits=taken.refused_limits | {taken.limit})
    extras = [it for it in EXTRAS if it in fields and not asked[it].place]
    if refused := [it for it in extras if it in named]:
        return _without(taken, refused)
    if free := [it for it in named if it in fields and it in asked and not asked[it].place]:
        return _without(taken, free[:1])
    if insisted := [it for it in named if it in fields]:
        return LIMITS[0] if insisted[0] in LIMITS else insisted[0]
    return _without(taken, extras[:1]) if extras and blindly and not named else None


def _named(fields: Fields, refusal: str) -> list[str]:
    """Return the fields that a refusal names: those in quotes, where any is; none where it names all."""
    quoted = [it for it in fields if re.search(rf"[\"'`]{re.escape(it)}[\"'`]", refusal)]
    named = quoted or [it for it in fields if re.search(rf"(?<!\w){re.escape(it)}(?!\w)", refusal)]
    return [] if len(named) == len(fields) else named  # the refusal may quote the whole request


def _without(taken: Taken, names: Sequence[str]) -> Taken:
    dropped = {each for name in names for each in _TOGETHER.get(name, (name,))}
    return taken._replace(left_out=taken.left_out | dropped)


def warning_of(names: Sequence[str]) -> str:
    """Return the words of a warning about fields that are left out from now on, with their consequences."""
    costs = dict.fromkeys(_COSTS[name] for name in names if name in _COSTS)
    quoted = ", ".join(f"`{name}`" for name in names)
    return f"refuses {quoted}, left out from now on" + (f": {', '.join(costs)}" if costs else "")
