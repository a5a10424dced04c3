"""Sequences that begin alike, laid out so that what they share is computed once.

The rollouts of a task repeat its prompt and often the start of an answer. A `TokenTree` holds several
sequences: each token attends to the tokens before it in its own sequence and to no others, so the numbers
equal those of each sequence alone. Pure: token ids in, layout out.

Axes: B rows, N tokens of a row (padded).
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor

SMALL_ROW = 256
"""Tokens up to which a row takes on any sequence: attention costs little there."""
MAX_ROW = 4096
"""Tokens beyond which a row takes on no other sequence: the mask is quadratic in them."""


@dataclass(slots=True)
class TokenTree:
    """A tree of tokens."""

    tokens: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    numbers: list[int] = field(default_factory=list[int])
    """Which sequences it holds."""
    paths: list[list[int]] = field(default_factory=list[list[int]])
    """Where in the row the tokens of each of them are."""

    def add(self, number: int, tokens: Sequence[int], shared: int) -> None:
        """Take on a sequence that shares that many tokens with the one added last."""
        start = len(self.tokens)
        self.tokens += tokens[shared:]
        self.positions += range(shared, len(tokens))
        kept = self.paths[-1][:shared] if shared else []
        self.paths.append([*kept, *range(start, len(self.tokens))])
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.tokens)


def rows_of(sequences: Sequence[Sequence[int]], *, share: bool) -> list[TokenTree]:
    """The rows that hold sequences: where they may share, as many in a row as makes attention no dearer."""
    rows: list[TokenTree] = []
    last: Sequence[int] = ()
    # In this order, the one before is the one that shares most.
    for number in sorted(range(len(sequences)), key=lambda number: list(sequences[number])):
        tokens = sequences[number]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(last, tokens, strict=False)))
        if not (share and rows and _worthwhile(len(rows[-1]), len(tokens), same)):
            rows.append(TokenTree())
            same = 0
        rows[-1].add(number, tokens, same)
        last = tokens
    return rows


def _worthwhile(row: int, sequence: int, shared: int) -> bool:
    grown = row + sequence - shared
    return grown <= SMALL_ROW or (grown <= MAX_ROW and grown**2 <= row**2 + sequence**2)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Rows as a model takes them. Entries past a row's end mean nothing."""

    ids: Tensor
    """[B, N]"""
    positions: Tensor
    """[B, N]"""
    mask: Tensor
    """[B, N], or [B, 1, N, N] to be added to the scores where sequences share a row."""
    numbers: list[int]
    """Which sequences there are, in the order of `places`."""
    places: Tensor
    """For each token of each sequence, one after the other, where it is in [B · N]."""


def layout(rows: Sequence[TokenTree], dtype: torch.dtype, device: torch.device) -> RowLayout:
    """Lay out rows of similar length."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions, plain = torch.zeros_like(ids), torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row.tokens)
        positions[number, : len(row)] = torch.tensor(row.positions)
        plain[number, : len(row)] = 1
    alone = all(len(row.numbers) == 1 for row in rows)
    return RowLayout(
        ids=ids.to(device),
        positions=positions.to(device),
        mask=(plain if alone else _tree_mask(rows, width, dtype)).to(device),
        numbers=[number for row in rows for number in row.numbers],
        places=torch.tensor(
            [width * n + place for n, row in enumerate(rows) for path in row.paths for place in path],
            device=device,
        ),
    )


def _tree_mask(rows: Sequence[TokenTree], width: int, dtype: torch.dtype) -> Tensor:
    mask = torch.full((len(rows), 1, width, width), torch.finfo(dtype).min, dtype=dtype)
    for number, row in enumerate(rows):
        end = 0
        for path in row.paths:
            first, end = end, max(end, path[-1] + 1)
            new, shared = end - first, len(path) - (end - first)
            hidden = torch.full((new, len(path)), torch.finfo(dtype).min, dtype=dtype).triu(shared + 1)
            mask[number, 0, first:end, torch.tensor(path)] = hidden
    return mask
