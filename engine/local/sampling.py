"""Draws answers for a batch of prompts from one policy.

Each sequence draws from a stream of its own seed, so what it says does not depend on which others happen to
be in the batch. Sequences that end leave the batch at once. Knows no HTTP and no training.

Axes: B sequences still running, T tokens so far (left-padded), V vocabulary.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from engine.local.policy import Policy

_TAIL = 48
"""Tokens at the end of an answer in which a stop text is looked for."""


@dataclass(slots=True)
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
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    reason: Literal["stop", "length"] | None = None


@torch.inference_mode()
def draw_all(policy: Policy, adapter: str | None, draws: Sequence[Draw]) -> None:
    """Draw every sequence to its end; the results are in the draws."""
    live = list(draws)
    longest = max(len(draw.prompt) for draw in live)
    ids = torch.zeros(len(live), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, draw in enumerate(live):
        ids[row, longest - len(draw.prompt) :] = torch.tensor(draw.prompt)
        mask[row, longest - len(draw.prompt) :] = 1
    ids, mask = ids.to(policy.device), mask.to(policy.device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    numbers = [_uniforms(draw) for draw in live]
    cache = DynamicCache()
    with policy.using(adapter) as model:
        while live:
            out: Any = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            uniforms = torch.tensor([n[len(d.tokens)] for n, d in zip(numbers, live, strict=True)])
            tokens, logprobs = _draw_next(out.logits[:, -1, :].float(), live, uniforms.to(policy.device))
            for draw, token, logprob in zip(live, tokens.tolist(), logprobs.tolist(), strict=True):
                draw.tokens.append(token)
                draw.logprobs.append(logprob)
                draw.reason = _ended(draw, policy)
            kept = [row for row, draw in enumerate(live) if draw.reason is None]
            if len(kept) < len(live):
                live, numbers = [live[row] for row in kept], [numbers[row] for row in kept]
                if not live:
                    return
                rows = torch.tensor(kept, device=policy.device)
                cache.batch_select_indices(rows)
                mask, positions, tokens = mask[rows], positions[rows], tokens[rows]
            ids = tokens.unsqueeze(-1)
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=-1)
            positions = positions[:, -1:] + 1


def _uniforms(draw: Draw) -> list[float]:
    generator = torch.Generator()
    if draw.seed is None:
        generator.seed()
    else:
        generator.manual_seed(draw.seed)
    return torch.rand(draw.max_tokens, generator=generator, dtype=torch.float64).tolist()


def _draw_next(logits: Tensor, draws: Sequence[Draw], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Next tokens [B] and their log-probabilities [B] from logits [B, V]."""
    heat = torch.tensor([draw.temperature or 1.0 for draw in draws], device=logits.device).unsqueeze(-1)
    logprobs = (logits / heat).log_softmax(-1)
    allowed = _restrict(logprobs, draws) if any(d.top_p < 1 or d.top_k > 0 for d in draws) else logprobs
    # The first token at which the cumulative probability passes a uniform number: one number, one token.
    cumulative = allowed.double().exp().cumsum(-1)
    threshold = uniforms.unsqueeze(-1) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
    greedy = torch.tensor([draw.temperature == 0 for draw in draws], device=logits.device)
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens, logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _restrict(logprobs: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Keep, of each row, the top_k likeliest tokens and the fewest whose probability reaches top_p."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    top_p = torch.tensor([draw.top_p for draw in draws], device=logprobs.device).unsqueeze(-1)
    size = logprobs.shape[-1]
    top_k = torch.tensor([d.top_k if d.top_k > 0 else size for d in draws], device=logprobs.device).unsqueeze(
        -1
    )
    rank = torch.arange(size, device=logprobs.device)
    out = ((before >= top_p) & (top_p < 1)) | (rank >= top_k)
    return logprobs.masked_fill(out.scatter(-1, order, out), -math.inf)


def _ended(draw: Draw, policy: Policy) -> Literal["stop", "length"] | None:
    if draw.tokens[-1] in draw.stop_ids:
        return "stop"
    if draw.stop_texts:
        tail = policy.tokenizer.decode(draw.tokens[-_TAIL:], skip_special_tokens=False)
        if any(text in tail for text in draw.stop_texts):
            return "stop"
    return "length" if len(draw.tokens) >= draw.max_tokens else None
