"""One sequence to draw, how its next token is chosen, and when it ends.

Each sequence draws from a stream of its own seed, so what it says does not depend on which others happen to
be in the batch. Knows the tokenizer's decoder and no model.

Axes: B sequences, V vocabulary.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Decode = Callable[[list[list[int]]], list[str]]
"""Texts of several token sequences."""

_SLACK = 8
"""Tokens looked at beyond those that a stop text can span: some stand for no text of their own."""


@dataclass(slots=True, eq=False)
class Draw:
    """One sequence to draw, and what came of it.

    `logprobs` are natural logs at the sampling temperature (1 for temperature 0, where the likeliest token is
    taken), over the whole vocabulary: top_p and top_k restrict what is drawn and do not renormalise.
    """

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: tuple[int, int] | None = None
    """The request's seed and which of its samples this is; None for one that nobody else has."""
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    reason: Literal["stop", "length"] | None = None
    random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    @property
    def length(self) -> int:
        """Tokens so far, with the prompt's."""
        return len(self.prompt) + len(self.tokens)


def draw_next(logits: Tensor, draws: Sequence[Draw], decode: Decode) -> Tensor:
    """Choose the next token of each draw from logits [B, V], note it there, and return all [B]."""
    tokens, logprobs = _choose(logits, draws)
    for draw, token, logprob in zip(draws, tokens.tolist(), logprobs.tolist(), strict=True):
        draw.tokens.append(token)
        draw.logprobs.append(logprob)
        if token in draw.stop_ids:
            draw.reason = "stop"
    _stop_at_texts([draw for draw in draws if draw.stop_texts and draw.reason is None], decode)
    for draw in draws:
        if draw.reason is None and len(draw.tokens) >= draw.max_tokens:
            draw.reason = "length"
    return tokens


def _choose(logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """Next tokens [B] and their log-probabilities [B] from logits [B, V]."""
    device = logits.device
    heat = torch.tensor([draw.temperature or 1.0 for draw in draws], device=device).unsqueeze(-1)
    logprobs = (logits.float() / heat).log_softmax(-1)
    allowed = _restrict(logprobs, draws) if any(d.top_p < 1 or d.top_k > 0 for d in draws) else logprobs
    # The first token at which the cumulative probability passes a uniform number: one number, one token.
    cumulative = allowed.double().exp().cumsum(-1)
    uniforms = torch.tensor([draw.random.random() for draw in draws], dtype=torch.float64, device=device)
    threshold = uniforms.unsqueeze(-1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
    greedy = torch.tensor([draw.temperature == 0 for draw in draws], device=device)
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens, logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _restrict(logprobs: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Keep, of each row, the top_k likeliest tokens and the fewest whose probability reaches top_p."""
    size, device = logprobs.shape[-1], logprobs.device
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    top_p = torch.tensor([draw.top_p for draw in draws], device=device).unsqueeze(-1)
    top_k = torch.tensor([d.top_k if d.top_k > 0 else size for d in draws], device=device).unsqueeze(-1)
    rank = torch.arange(size, device=device)
    out = ((before >= top_p) & (top_p < 1)) | (rank >= top_k)
    return logprobs.masked_fill(out.scatter(-1, order, out), -math.inf)


def _stop_at_texts(draws: Sequence[Draw], decode: Decode) -> None:
    """End the draws whose last token completed one of their stop texts."""
    if not draws:
        return
    spans = [max(len(text.encode()) for text in draw.stop_texts) + _SLACK for draw in draws]
    tails = decode([draw.tokens[-span:] for draw, span in zip(draws, spans, strict=True)])
    for draw, tail in zip(draws, tails, strict=True):
        if any(text in tail for text in draw.stop_texts):
            draw.reason = "stop"
