"""Sampling of the next token: temperature, top_p, top_k, and the conditions that end a sequence.

Each sequence has a random generator with its own seed, so its tokens do not depend on the other sequences of
the batch. Knows the tokenizer's decoder and no model.

Axes: B sequences, V vocabulary.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from rolegraph.local.service.local_model import TopTokens
from rolegraph.local.service.lora import LoraAdapter

Decode = Callable[[list[list[int]]], list[str]]
"""Function that returns the texts of token sequences."""

_BLOCK = 256
"""Number of tokens of the vocabulary whose probabilities are summed at a time."""
_SLACK = 8
"""Number of tokens to decode beyond those that a stop text can span, since some tokens have no text."""


class Constraint(Protocol):
    """Restriction of the tokens of one sequence, such as a grammar, with its state."""

    def allowed(self) -> Tensor:
        """Return a bool for each token [V]: True if the token may come next; at least one is True."""
        ...

    def advance(self, token: int) -> None:
        """Move on by the next token, which must be allowed."""
        ...

    def restart(self) -> None:
        """Return to the state before the first token."""
        ...


@dataclass(slots=True, eq=False)
class SampleRequest:
    """One sequence to sample, with the tokens sampled so far.

    `logprobs` are natural logarithms at the sampling temperature (1 for temperature 0, which takes the
    likeliest token) over the whole vocabulary, or over the tokens that the constraint allows: top_p and top_k
    restrict the choice and do not renormalise.
    """

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: tuple[int, int] | None = None
    """The request's seed (not negative) and the sequence's number in it; None draws a random seed."""
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    top: int = 0
    """Number of likeliest tokens to return at each position."""
    adapter: LoraAdapter | None = None
    """The adapter to sample with; None for the model itself."""
    constraint: Constraint | None = None
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top_tokens: list[TopTokens] = field(default_factory=list[TopTokens])
    reason: Literal["stop", "length"] | None = None
    error: Exception | None = None
    """Error of the constraint. No token is appended after it, and only this sequence's job fails."""
    random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.seed is None:
            self.seed = secrets.randbits(64), 0
        self.restart()

    def restart(self) -> None:
        """Discard the tokens and reset the generator, so that the same tokens are sampled again."""
        self.tokens, self.logprobs, self.top_tokens, self.error = [], [], [], None
        self.reason = None if self.max_tokens else "length"
        self.random = np.random.default_rng(self.seed)
        if self.constraint is not None:
            self.constraint.restart()

    @property
    def length(self) -> int:
        """Number of tokens, those of the prompt included."""
        return len(self.prompt) + len(self.tokens)


def sample_next(logits: Tensor, requests: Sequence[SampleRequest], decode: Decode) -> Tensor:
    """Sample each request's next token from its row of logits [B, V], and append it; return all tokens [B].

    An error of a request's constraint becomes the request's `error`; its token is not appended.
    """
    tokens, logprobs = _choose(logits, requests)
    if largest_top := max(request.top for request in requests):
        _append_top(logprobs, largest_top, requests)
    chosen_logprobs = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    for request, token, logprob in zip(requests, tokens.tolist(), chosen_logprobs.tolist(), strict=True):
        _advance(request, token)
        if request.error is not None:
            continue
        request.tokens.append(token)
        request.logprobs.append(logprob)
        if token in request.stop_ids:
            request.reason = "stop"
    _stop_at_texts([request for request in requests if request.stop_texts and request.reason is None], decode)
    for request in requests:
        if request.reason is None and len(request.tokens) >= request.max_tokens:
            request.reason = "length"
    return tokens


def _choose(logits: Tensor, requests: Sequence[SampleRequest]) -> tuple[Tensor, Tensor]:
    """Return the next tokens [B] and the log-probabilities [B, V] from logits [B, V]."""
    device = logits.device
    if any(request.constraint is not None for request in requests):
        logits = _constrain(logits, requests)
    heat = torch.tensor([request.temperature or 1.0 for request in requests], device=device).unsqueeze(-1)
    logprobs = (logits.float() / heat).log_softmax(-1)
    allowed = _restrict(logprobs, requests) if any(r.top_p < 1 or r.top_k > 0 for r in requests) else logprobs
    uniforms = torch.tensor(
        [request.random.random() for request in requests], dtype=torch.float64, device=device
    )
    tokens = _draw(allowed.exp(), uniforms)
    is_greedy = [request.temperature == 0 for request in requests]
    if any(is_greedy):
        tokens = torch.where(torch.tensor(is_greedy, device=device), logits.argmax(-1), tokens)
    return tokens, logprobs


def _append_top(logprobs: Tensor, most: int, requests: Sequence[SampleRequest]) -> None:
    """Append to each request its likeliest tokens at this position, at most `most`, from log-probabilities
    [B, V].

    Tokens that the request's constraint excludes are left out.
    """
    values, ids = logprobs.topk(min(most, logprobs.shape[-1]))
    for request, row, scores in zip(requests, ids.tolist(), values.tolist(), strict=True):
        if request.top:
            count = len([score for score in scores[: request.top] if score > -math.inf])
            request.top_tokens.append(TopTokens(row[:count], scores[:count]))


def _constrain(logits: Tensor, requests: Sequence[SampleRequest]) -> Tensor:
    """Return logits [B, V] that are -inf for tokens which a row's constraint excludes."""
    logits = logits.clone()
    for row, request in zip(logits, requests, strict=True):
        if request.constraint is None:
            continue
        try:
            row.masked_fill_(~request.constraint.allowed().to(row.device), -math.inf)
        except Exception as error:  # reported to the client of this request
            request.error = error
    return logits


def _advance(request: SampleRequest, token: int) -> None:
    """Advance a request's constraint by the next token; an error becomes the request's `error`, after which
    nothing is done."""
    if request.constraint is None or request.error is not None:
        return
    try:
        request.constraint.advance(token)
    except Exception as error:  # reported to the client of this request
        request.error = error


def _draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first token [B] whose cumulative probability exceeds the row's uniform number (inverse
    transform sampling), from probabilities [B, V].

    Sums of blocks find a token's block first: float64 sums over the whole vocabulary of a real model take a
    tenth of the time of a step.
    """
    size = probabilities.shape[-1]
    blocks = pad(probabilities, (0, -size % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    starts = pad(blocks.sum(-1, dtype=torch.float64).cumsum(-1), (1, 0))
    threshold = uniforms.unsqueeze(-1) * starts[:, -1:]
    block = (torch.searchsorted(starts, threshold, right=True) - 1).clamp(max=blocks.shape[1] - 1)
    rows = torch.arange(len(blocks), device=block.device)
    block_sums = blocks[rows, block.squeeze(-1)].cumsum(-1, dtype=torch.float64)
    index_in_block = torch.searchsorted(block_sums, threshold - starts.gather(-1, block), right=True)
    return (block * _BLOCK + index_in_block.clamp(max=_BLOCK - 1)).clamp(max=size - 1).squeeze(-1)


def _restrict(logprobs: Tensor, requests: Sequence[SampleRequest]) -> Tensor:
    """Return log-probabilities [B, V] that are -inf for excluded tokens.

    A row keeps its top_k likeliest tokens, and of these the fewest that reach probability top_p.
    """
    size, device = logprobs.shape[-1], logprobs.device
    sorted_logprobs, order = logprobs.sort(-1, descending=True)
    mass_before = sorted_logprobs.exp().cumsum(-1) - sorted_logprobs.exp()
    top_p = torch.tensor([request.top_p for request in requests], device=device).unsqueeze(-1)
    top_k = torch.tensor([r.top_k if r.top_k > 0 else size for r in requests], device=device).unsqueeze(-1)
    rank = torch.arange(size, device=device)
    excluded = ((mass_before >= top_p) & (top_p < 1)) | (rank >= top_k)
    return logprobs.masked_fill(excluded.scatter(-1, order, excluded), -math.inf)


def _stop_at_texts(requests: Sequence[SampleRequest], decode: Decode) -> None:
    """End the requests whose last token completes one of their stop texts."""
    if not requests:
        return
    token_counts = [max(len(text.encode()) for text in request.stop_texts) + _SLACK for request in requests]
    tails = decode([request.tokens[-window:] for request, window in zip(requests, token_counts, strict=True)])
    for request, tail in zip(requests, tails, strict=True):
        if any(text in tail for text in request.stop_texts):
            request.reason = "stop"
