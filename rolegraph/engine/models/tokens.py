"""Requests as prompt tokens, and sampled tokens as answers, for every model with token ids in and out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from rolegraph.engine.errors import ContextFull, ModelError
from rolegraph.engine.models.types import Completion, Request
from rolegraph.engine.prompts import ChatFormat, TokenizedPrompt
from rolegraph.engine.records.schema import TOKEN_IDS


class SampledTokens(NamedTuple):
    """Sampled response of T tokens, as a server gives it."""

    ids: Sequence[int]
    """Token ids, unchecked."""
    logprobs: Sequence[Any]
    """Log-probability of each token at the sampling temperature, [T], unchecked; empty if the server gives
    none."""
    finish_reason: str
    """`length` where the answer was cut off."""


LONG_CHAT = 50_000
"""Number of characters from which a chat is tokenized in a thread; 100,000 emoji take half a second."""


async def tokenize(chat: ChatFormat, request: Request) -> TokenizedPrompt:
    """Render a request's messages as tokens; the tokens of an earlier turn are kept. Raises ModelError."""
    if sum(len(message["content"]) for message in request.messages) < LONG_CHAT:
        return _tokenized(chat, request)
    # The tokenizer lets other threads run, so that the calls of other episodes go on.
    return await asyncio.to_thread(_tokenized, chat, request)


def _tokenized(chat: ChatFormat, request: Request) -> TokenizedPrompt:
    if request.continues is None:
        return chat.prompt(request.messages, request.tools)
    return chat.extended(request.continues, request.messages, request.tools)


def answer_limit(prompt: TokenizedPrompt, most: int, context: int | None) -> int:
    """Return the largest number of tokens of an answer.

    Args:
        prompt: The prompt.
        most: Limit that the sampling settings set.
        context: Largest number of tokens of prompt and answer together; None where unknown.

    Raises:
        ContextFull: The prompt leaves no room.
    """
    if context is None:
        return most
    tokens_left = context - len(prompt.ids)
    if tokens_left < 1:
        raise ContextFull(
            f"The prompt does not fit: it has {len(prompt.ids)} tokens, and the model's context is "
            f"{context} tokens, prompt and answer together."
        )
    return min(most, tokens_left)


def completion(
    chat: ChatFormat,
    request: Request,
    prompt: TokenizedPrompt,
    sampled: SampledTokens,
    url: str,
    weight_version: int | None = None,
) -> Completion:
    """Return the Completion that sampled tokens form; raises ModelError for a token id out of range.

    Args:
        chat: Chat format of the model.
        request: The request.
        prompt: The prompt that was sent for the request.
        sampled: The tokens.
        url: URL of the server, for messages.
        weight_version: Number of updates of the weights.
    """
    ids = sampled.ids
    if not TOKEN_IDS.holds(ids):
        raise ModelError(f"{url} answers with token ids out of range; expected 0 to {TOKEN_IDS.high}")
    thought, text = chat.answer(ids, stop=request.sampling.stop, thinking=prompt.thinking)
    text, calls = chat.calls(text, request.tools)
    call_values = [[call.name, call.malformed or call.arguments] for call in calls]
    strange_tokens = chat.strange_tokens(ids, json.dumps([thought, text, call_values], ensure_ascii=False))
    if strange_tokens:  # the answer fails
        thought, text, calls = without(thought, strange_tokens), without(text, strange_tokens), ()
    return Completion(
        text=text,
        thought=thought,
        prompt_ids=prompt.ids,
        response_ids=ids,
        logprobs=sampled.logprobs,
        finish_reason=sampled.finish_reason,
        weight_version=weight_version,
        calls=calls,
        special_tokens=strange_tokens,
    )


def without(text: str, tokens: Sequence[str]) -> str:
    """Return `text` without any occurrence of the `tokens`, which are texts of special tokens."""
    for token in tokens:
        text = text.replace(token, "")
    return text
