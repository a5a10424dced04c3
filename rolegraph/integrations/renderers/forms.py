"""Syntaxes of tool calls (`CallForm`) from the package renderers, for chat templates that the engine does not
know.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from rolegraph.engine.errors import FOREIGN_ERRORS
from rolegraph.engine.prompts.call_forms import CallForm, tool_call
from rolegraph.engine.prompts.tools import described
from rolegraph.engine.vocabulary import Function, ToolCall

_HARMONY, _CHANNEL = "gpt-oss", "<|channel|>"
"""Name of a renderer that downloads a vocabulary when it is made, and a token that only its models have."""


def call_forms(tokenizer: Any) -> Iterator[CallForm]:
    """Yield the syntaxes of tool calls whose markers are tokens of a tokenizer; nothing if the package is not
    installed.

    Args:
        tokenizer: A tokenizer of `transformers`.
    """
    try:
        library: Any = importlib.import_module("renderers")
        names: Iterable[str] = importlib.import_module("renderers.base").MODEL_RENDERER_MAP.values()
    except ImportError:
        return
    forms: list[CallForm] = []
    for name in sorted({*names}):
        if name == _HARMONY and _CHANNEL not in tokenizer.get_vocab():
            continue
        try:
            renderer = library.create_renderer(tokenizer, library.config_from_name(name))
            ends = tuple(renderer.get_stop_token_ids())
        except FOREIGN_ERRORS:  # a marker is no token of this tokenizer
            continue
        split = partial(_split, renderer, tokenizer)
        forms += [CallForm(name, split, ids=ids, ends=ends) for ids in (None, _numbered)]
    # Versions of a family share a form; the version with more ends of a turn goes first.
    yield from sorted(forms, key=lambda form: -len(form.ends))


def _numbered(name: str, number: int) -> str:
    """Return the id of a tool call in Kimi's syntax, such as `functions.search:0`."""
    return f"functions.{name}:{number - 1}"


def _split(
    renderer: Any, tokenizer: Any, text: str, functions: Sequence[Function]
) -> tuple[str, Sequence[ToolCall]]:
    """Parse an answer with a renderer, and return (text without calls, calls)."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    try:
        answer = renderer.parse_response(tokens, tools=described(functions))
    except FOREIGN_ERRORS:
        return text, ()
    calls = [_call(parsed_call) for parsed_call in answer.tool_calls]
    malformed_calls = [call.malformed for call in calls if not call.name]
    # The thought was taken from the answer before, so that all that is left is text.
    texts = (answer.reasoning_content, answer.content, *malformed_calls)
    return "\n".join(part.strip() for part in texts if part), calls


def _call(parsed: Any) -> ToolCall:
    """Convert a call that a renderer parsed; a malformed call gets no name."""
    if not parsed.name or parsed.arguments is None:
        return ToolCall("", {}, malformed=parsed.raw.strip() or "nothing")
    arguments = parsed.arguments if isinstance(parsed.arguments, str) else json.dumps(parsed.arguments)
    call = tool_call(parsed.name, arguments, parsed.id or "")
    return ToolCall("", {}, malformed=parsed.raw) if call.malformed else call
