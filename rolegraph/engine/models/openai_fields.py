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
    """Name by which the server knows the field that limits an answer's tokens."""
    refused_limits: frozenset[str] = frozenset()
    """Names of the token-limit field (`LIMITS`) that the server refuses."""
    streams: bool = False
    """True if the server answers only as a stream."""


class AskedField(NamedTuple):
    """Field of a request with its value."""

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
    asked_fields = {
        name: AskedField(value, "" if value == _NEUTRAL[name] else f"sampling.{name}")
        for name, value in (("top_p", sampling.top_p), ("temperature", sampling.temperature))
    }
    if request.seed is not None:
        asked_fields["seed"] = AskedField(request.seed, "" if sampling.seed is None else "sampling.seed")
    is_default = sampling.max_tokens == Sampling().max_tokens
    asked_fields[LIMITS[0]] = AskedField(sampling.max_tokens, "" if is_default else "sampling.max_tokens")
    if sampling.stop:
        asked_fields["stop"] = AskedField([*sampling.stop], "sampling.stop")
    if tokens:
        asked_fields = {name: AskedField(value) for name, value in EXTRAS.items()} | asked_fields
    for name, value in body.items():
        asked_fields.pop(LIMITS[0] if name in LIMITS else name, None)
        if value is not None:
            asked_fields[name] = AskedField(value, "model.body")
    return asked_fields


def sent(asked: Mapping[str, AskedField], taken: Taken) -> dict[str, Any]:
    """Return the fields to send: every field that the spec asks for, and the optional fields that the server
    accepts."""
    fields = {
        taken.limit if name == LIMITS[0] else name: field.value
        for name, field in asked.items()
        if field.place or name not in taken.left_out
    }
    return fields | {name: v for name, v in STREAM.items() if taken.streams and name not in taken.left_out}


def kind_of(asked: Mapping[str, AskedField], request: Request) -> frozenset[str]:
    """Return the kind of a request: its field names, the values that the spec asks for, and whether it has
    tools.

    A server accepts or refuses all requests of one kind.
    """
    described = {f"{name}={field.value!r}" if field.place else name for name, field in asked.items()}
    return frozenset(described | ({"tools"} if request.tools else set()))


def after_refusal(
    asked: Mapping[str, AskedField],
    taken: Taken,
    refusal: str,
    parameter: object = None,
    *,
    is_certain: bool = True,
) -> Taken | str | None:
    """Return the accepted fields as learnt from a refusal of a request.

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
    named_fields = _named({**fields, "stream": True}, refusal, is_certain=is_certain)
    if isinstance(parameter, str) and parameter:
        named_fields = [parameter.rpartition(".")[2]]
    if "stream" in named_fields and is_certain and not taken.streams and "stream" not in taken.left_out:
        return taken._replace(streams=True)
    limits = [key for key in LIMITS if key != taken.limit and key not in taken.refused_limits]
    mentioned = [key for key in limits if re.search(rf"(?<!\w){key}(?!\w)", refusal)]
    candidates = mentioned or [key for key in limits if key in _COMMON]
    if candidates and (taken.limit in named_fields or (mentioned and not named_fields and is_certain)):
        new_limit = candidates[0]
        return taken._replace(limit=new_limit, refused_limits=taken.refused_limits | {taken.limit})
    keys = {name: LIMITS[0] if name in LIMITS and name not in asked else name for name in fields}
    refused = [keys[key] for key in named_fields if key in keys]
    optional = [key for key in refused if key == "stream_options" or (key in asked and not asked[key].place)]
    if optional and optional[0] in EXTRAS:
        return _without(taken, [key for key in optional if key in EXTRAS])
    return _without(taken, optional[:1]) if optional else refused[0] if refused else None


def after_unclear_refusal(asked: Mapping[str, AskedField], taken: Taken) -> Taken | None:
    """Return the accepted fields with one optional field less, to repeat a request after a refusal that names
    no field.

    It leaves out one more field; None if no such field remains.
    """
    fields = sent(asked, taken)
    optional = [name for name in _UNNAMED if name in fields and not asked[name].place]
    return _without(taken, optional[:1]) if optional else None


def _named(fields: Collection[str], refusal: str, *, is_certain: bool) -> list[str]:
    """Return the fields that a refusal names, in the order of the names in its text; if it quotes any name,
    only quoted ones.

    Empty if it names all fields, since it may quote the whole request. If it is not certain that the failure
    is a refusal, names count only in quotes or as unknown: "seed node unreachable" names no field.
    """
    # `topP` and "top p" are names of top_p, and a server without answers at once says "streaming".
    words = {f: re.escape(f).replace("_", "[_ -]?") + "(?:ing|ed)?" * (f == "stream") for f in fields}
    quoted_patterns = {f: rf"[\"'`]{word}[\"'`]" for f, word in words.items()}
    word_patterns = {f: rf"(?<!\w){word}(?!\w)" for f, word in words.items()}
    if not is_certain:
        word_patterns = {
            f: rf"{_UNKNOWN}{word}|{word} (?:is|are) not {_SUPPORTED}" for f, word in word_patterns.items()
        }
    positions = _places(quoted_patterns, refusal) or _places(word_patterns, refusal)
    if len({*positions} - {"stream"}) == len({*fields} - {"stream"}) > 1:
        return []
    if {*_NEUTRAL} <= {*positions}:  # of a pair of which the server takes one, top_p is the one to leave out
        positions["top_p"] = min(positions["top_p"], positions["temperature"])
    return sorted(positions, key=lambda f: (positions[f], [*_NEUTRAL, f].index(f)))


def _places(patterns: Mapping[str, str], text: str) -> dict[str, int]:
    """Return the position of the first match of each pattern that matches a text, by name."""
    matches = {name: re.search(pattern, text, re.IGNORECASE) for name, pattern in patterns.items()}
    return {name: match.start() for name, match in matches.items() if match}


def _without(taken: Taken, names: Sequence[str]) -> Taken:
    dropped_names = {dropped_name for name in names for dropped_name in _TOGETHER.get(name, (name,))}
    return taken._replace(left_out=taken.left_out | dropped_names)


def warning_of(names: Sequence[str]) -> str:
    """Return the text of a warning that fields are left out from now on, with the consequences."""
    costs = dict.fromkeys(_COSTS[name] for name in names if name in _COSTS)
    quoted_names = ", ".join(f"`{name}`" for name in names)
    return f"refuses {quoted_names}, left out from now on" + (f": {', '.join(costs)}" if costs else "")
