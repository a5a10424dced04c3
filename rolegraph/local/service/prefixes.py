"""Prefix sharing: sequences with a common beginning are laid out in one row, which computes it once.

Rollouts of a task repeat its prompt and often the start of an answer. In a `TokenTree` each token attends
only to the earlier tokens of its own sequence, so log-probabilities equal those of each sequence alone. Pure:
token ids in, layout out.

Axes: B rows, N tokens of a row (padded).
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

SMALL_ROW = 256
"""Number of tokens of a row up to which any sequence is added to it: attention costs little there."""
MAX_ROW = 4096
"""Number of tokens of a row beyond which no sequence is added to it: the mask's size is quadratic in them."""


@dataclass(slots=True)
class TokenTree:
    """Row of tokens in which several sequences share common prefixes, with each token's position."""

    tokens: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    numbers: list[int] = field(default_factory=list[int])
    """Numbers of the sequences in the row."""
    paths: list[list[int]] = field(default_factory=list[list[int]])
    """Positions in the row of each sequence's tokens."""

    def add(self, number: int, tokens: Sequence[int], shared: int) -> None:
        """Append a sequence to the row; its first `shared` tokens are those of the sequence added last."""
        start = len(self.tokens)
        self.tokens += tokens[shared:]
        self.positions += range(shared, len(tokens))
        shared_path = self.paths[-1][:shared] if shared else []
        self.paths.append([*shared_path, *range(start, len(self.tokens))])
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.tokens)


def rows_of(sequences: Sequence[Sequence[int]], *, share: bool, most: int = MAX_ROW) -> list[TokenTree]:
    """Distribute token sequences over rows of a batch, and return the rows.

    Args:
        sequences: Token ids of each sequence.
        share: True to put sequences with a common prefix into one row where this does not make attention more
            expensive.
        most: Number of tokens of a row beyond which no sequence is added.
    """
    rows: list[TokenTree] = []
    last: Sequence[int] = ()
    # In lexicographic order, neighbours share the longest prefixes.
    for number in sorted(range(len(sequences)), key=lambda number: list(sequences[number])):
        tokens = sequences[number]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(last, tokens, strict=False)))
        if not (share and rows and _is_cheaper(len(rows[-1]), len(tokens), shared, most)):
            rows.append(TokenTree())
            shared = 0
        rows[-1].add(number, tokens, shared)
        last = tokens
    return rows


def _is_cheaper(row: int, sequence: int, shared: int, most: int) -> bool:
    """Return True if a sequence costs no more in a row of `row` tokens than in a row of its own.

    Args:
        row: Number of tokens of the row.
        sequence: Number of tokens of the sequence.
        shared: Number of tokens that the sequence shares with the row.
        most: Largest number of tokens of a row.
    """
    new_length = row + sequence - shared
    return new_length <= most and (new_length <= SMALL_ROW or new_length**2 <= row**2 + sequence**2)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Input tensors of a model for B rows of at most N tokens; entries past a row's end are padding."""

    ids: Tensor
    """Token ids, [B, N]."""
    positions: Tensor
    """Position of each token in its sequence, [B, N]."""
    mask: Tensor
    """Attention mask: [B, N], or where sequences share a row [B, 1, N, N], which is added to the scores."""
    numbers: list[int]
    """Numbers of the sequences, in the order of `places`."""
    places: Tensor
    """Index into [B · N] of each token of each sequence, concatenated."""


def layout(rows: Sequence[TokenTree], dtype: torch.dtype, device: torch.device) -> RowLayout:
    """Pad rows to the longest and return their tensors: ids, positions and attention mask."""
    width = max(map(len, rows))

    def padded(values: Iterable[Sequence[int]]) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in values], batch_first=True).to(device)

    if all(len(row.numbers) == 1 for row in rows):
        mask = padded([1] * len(row) for row in rows)
    else:
        mask = _tree_mask(rows, width, dtype).to(device)
    return RowLayout(
        ids=padded(row.tokens for row in rows),
        positions=padded(row.positions for row in rows),
        mask=mask,
        numbers=[number for row in rows for number in row.numbers],
        places=torch.tensor(
            [width * index + place for index, row in enumerate(rows) for path in row.paths for place in path],
            device=device,
        ),
    )


def _tree_mask(rows: Sequence[TokenTree], width: int, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask [B, 1, N, N] that hides the tokens of other sequences."""
    mask = torch.full((len(rows), 1, width, width), torch.finfo(dtype).min, dtype=dtype)
    for row_index, row in enumerate(rows):
        end = 0
        for path in row.paths:
            first_column, end = end, max(end, path[-1] + 1)
            new_tokens, prefix = end - first_column, len(path) - (end - first_column)
            block = torch.full((new_tokens, len(path)), torch.finfo(dtype).min, dtype=dtype).triu(prefix + 1)
            mask[row_index, 0, first_column:end, torch.tensor(path)] = block
    return mask
