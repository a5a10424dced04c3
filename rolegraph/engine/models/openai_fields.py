"""Fields of a chat request that a server accepts, as learnt from its refusals. Pure.

The defaults of servers are not ours, so each field is sent until the server refuses it. A refused field is
left out if the spec does not ask for it: log-probabilities, a seed that the run derives, a `top_p` of 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from rolegraph.engine.models.types import Request
from rolegraph.engine.spec import Sampling

Fields = Mapping[str, Any]
_COMMON = ("max_tokens", "max_completion_tokens")
LIMITS = (
    *_COMMON, "max_output_tokens", "max_new_tokens", "max_gen_len", "num_predict", "n_predict", "maxTokens",
    "maxOutputTokens",
)  # fmt: skip
"""Names of the field that limits an answer's tokens. OpenAI's reasoning models accept only the second; the
names after it are sent only if a refusal mentions them."""
_NEUTRAL = {"top_p": 1.0, "temperature": 1.0}
"""Values with which a field has no effect; the field to leave out first comes first."""
EXTRAS: Fields = {
    "return_token_ids": True,
    "return_prompt_token_ids": True,
    # Without `top_logprobs`, llama-cpp-python's server gives null for `logprobs`, and llama.cpp's own gives
    # 20 tokens for each position, which exceeds the limits of a response after some 2,500 tokens.
    "top_logprobs": 1,
    "logprobs": True,
}
"""Fields requested beyond the answer; those that most servers refuse come first."""
_TOGETHER: Mapping[str, Sequence[str]] = {
    "return_token_ids": ("return_token_ids", "return_prompt_token_ids"),
    "return_prompt_token_ids": ("return_token_ids", "return_prompt_token_ids"),
    "logprobs": ("logprobs", "top_logprobs"),
}
"""For each field, the fields to leave out together if a server refuses it."""
STREAM: Fields = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields that request the answer as a stream."""
_UNNAMED = (*EXTRAS, "top_p", "seed", "temperature")
"""Fields to leave out after refusals that name no field, the likeliest to be refused first."""
_SUPPORTED = "(?:supported|permitted|allowed)"
_UNKNOWN = r"\bun(?:supported|known|recogni[sz]ed|expected)\b[\w ]{0,30}:? "
"""Pattern of the words that come before the name of a refused field."""
_COSTS = {
    "seed": "answers cannot be repeated",
    "top_p": "its own top_p holds",
    "temperature": "its own temperature holds",
    "max_tokens": "its own limit of an answer's length holds",
}
"""Consequence of leaving out each field, for the warning."""


class Taken(NamedTuple):
    """Fields that a server is known to accept, and fields that it is known to refuse."""

    left_out: frozenset[str] = frozenset()
    """Names of the fields that the server refuses."""
    limit: str = LIMITS[0]
    """The server's name of the field that limits an answer's tokens."""
    refused_limits: frozenset[str] = frozenset()
    """Names of this field that the server refuses."""
    streams: bool = False
    """True if the server answers only as a stream."""


class AskedField(NamedTuple):
    """Field of one request."""

    value: Any
    place: str = ""
    """Key of the spec that asks for the value; empty for a field that may be left out."""


def fields_of(request: Request, body: Fields, *, tokens: bool) -> dict[str, AskedField]:
    """Return the fields of a request beside model, messages and tools.

    Args:
        request: The request.
        body: Further fields that the spec gives the model.
        tokens: True to request log-probabilities and token ids.
    """
    sampling = request.sampling
    asked = {
        name: AskedField(value, "" if value == _NEUTRAL[name] else f"sampling.{name}")
        for name, value in (("top_p", sampling.top_p), ("temperature", sampling.temperature))
    }
    if request.seed is not None:
        asked["seed"] = AskedField(request.seed, "" if sampling.seed is None else "sampling.seed")
    is_default = sampling.max_tokens == Sampling().max_tokens
    asked[LIMITS[0]] = AskedField(sampling.max_tokens, "" if is_default else "sampling.max_tokens")
    if sampling.stop:
        asked["stop"] = AskedField([*sampling.stop], "sampling.stop")
    if tokens:
        asked = {name: AskedField(value) for name, value in EXTRAS.items()} | asked
    for name, value in body.items():
        asked.pop(LIMITS[0] if name in LIMITS else name, None)
        if value is not None:
            asked[name] = AskedField(value, "model.body")
    return asked


def sent(asked: Mapping[str, AskedField], taken: Taken) -> dict[str, Any]:
    """Return the fields to send: those that the spec asks for, and of the others those that the server
    accepts."""
    fields = {
        taken.limit if name == LIMITS[0] else name: field.value
        for name, field in asked.items()
        if field.place or name not in taken.left_out
    }
    return fields | {name: it for name, it in STREAM.items() if taken.streams and name not in taken.left_out}


def kind_of(asked: Mapping[str, AskedField], request: Request) -> frozenset[str]:
    """Return the kind of a request: its fields, with the values that the spec asks for, and if it has tools.

    A server accepts or refuses all requests of one kind.
    """
    places = {f"{name}={field.value!r}" if field.place else name for name, field in asked.items()}
    return frozenset(places | ({"tools"} if request.tools else set()))


def after_refusal(
    asked: Mapping[str, AskedField],
    taken: Taken,
    refusal: str,
    parameter: object = None,
    *,
    is_certain: bool = True,
) -> Taken | str | None:
    """Return the knowledge that follows from a refusal of a request.

    Args:
        asked: The fields of the request.
        taken: The knowledge with which the request was sent.
        refusal: The server's response.
        parameter: Name of the refused field, if the response states it.
        is_certain: True if the response is a refusal by its status or code. For a mere failure, a stream is
            never requested, even if it names one, such as a proxy's "stream timeout"; and a field's name
            counts only in quotes, or if it is said to be unknown or not supported.

    Returns:
        New knowledge, with which to send the request again; the name of a refused field that the spec asks
        for; or None if the refusal is about something else.
    """
    fields = sent(asked, taken)
    refusal = refusal.replace("\\", "")  # quotes of a JSON text within another
    named = _named({**fields, "stream": True}, refusal, is_certain=is_certain)
    if isinstance(parameter, str) and parameter:
        named = [parameter.rpartition(".")[2]]
    if "stream" in named and is_certain and not taken.streams and "stream" not in taken.left_out:
        return taken._replace(streams=True)
    limits = [it for it in LIMITS if it != taken.limit and it not in taken.refused_limits]
    given = [it for it in limits if re.search(rf"(?<!\w){it}(?!\w)", refusal)]
    others = given or [it for it in limits if it in _COMMON]
    if others and (taken.limit in named or (given and not named and is_certain)):
        other = others[0]
        return taken._replace(limit=other, refused_limits=taken.refused_limits | {taken.limit})
    keys = {name: LIMITS[0] if name in LIMITS and name not in asked else name for name in fields}
    refused = [keys[it] for it in named if it in keys]
    free = [it for it in refused if it == "stream_options" or (it in asked and not asked[it].place)]
    if free and free[0] in EXTRAS:
        return _without(taken, [it for it in free if it in EXTRAS])
    return _without(taken, free[:1]) if free else refused[0] if refused else None


def after_unclear_refusal(asked: Mapping[str, AskedField], taken: Taken) -> Taken | None:
    """Return the knowledge with which to repeat a request after a refusal that names no field.

    It leaves out one more field; None if no such field remains.
    """
    fields = sent(asked, taken)
    free = [it for it in _UNNAMED if it in fields and not asked[it].place]
    return _without(taken, free[:1]) if free else None


def _named(fields: Collection[str], refusal: str, *, is_certain: bool) -> list[str]:
    """Return the fields that a refusal names, in its order; if it names any in quotes, only those.

    Empty if it names all fields, since it may quote the whole request. If it is not certain that the failure
    is a refusal, names count only in quotes or as unknown: "seed node unreachable" names no field.
    """
    # `topP` and "top p" are names of top_p, and a server without answers at once says "streaming".
    words = {it: re.escape(it).replace("_", "[_ -]?") + "(?:ing|ed)?" * (it == "stream") for it in fields}
    quoted = {it: rf"[\"'`]{word}[\"'`]" for it, word in words.items()}
    plain = {it: rf"(?<!\w){word}(?!\w)" for it, word in words.items()}
    if not is_certain:
        plain = {it: rf"{_UNKNOWN}{word}|{word} (?:is|are) not {_SUPPORTED}" for it, word in plain.items()}
    places = _places(quoted, refusal) or _places(plain, refusal)
    if len({*places} - {"stream"}) == len({*fields} - {"stream"}) > 1:
        return []
    if {*_NEUTRAL} <= {*places}:  # of a pair of which the server takes one, top_p is the one to leave out
        places["top_p"] = min(places["top_p"], places["temperature"])
    return sorted(places, key=lambda it: (places[it], [*_NEUTRAL, it].index(it)))


def _places(patterns: Mapping[str, str], text: str) -> dict[str, int]:
    """Return the position of the first match of each pattern that matches a text, by name."""
    matches = {name: re.search(pattern, text, re.IGNORECASE) for name, pattern in patterns.items()}
    return {name: match.start() for name, match in matches.items() if match}


def _without(taken: Taken, names: Sequence[str]) -> Taken:
    dropped = {each for name in names for each in _TOGETHER.get(name, (name,))}
    return taken._replace(left_out=taken.left_out | dropped)


def warning_of(names: Sequence[str]) -> str:
    """Return the text of a warning that fields are left out from now on, with the consequences."""
    costs = dict.fromkeys(_COSTS[name] for name in names if name in _COSTS)
    quoted = ", ".join(f"`{name}`" for name in names)
    return f"refuses {quoted}, left out from now on" + (f": {', '.join(costs)}" if costs else "")
