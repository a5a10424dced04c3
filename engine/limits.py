"""Every limit on what a stranger's input may cost: its name, its size, and why it stands where it does.

A limit is data, so that a message can name the one that was hit and a person can read them all. Sizes are
chosen to let the largest honest input through several times over.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """The most that there may be of something."""

    name: str
    most: int
    unit: str
    why: str

    def past(self, what: str) -> str:
        """What is said where the limit is hit: `what` ends before "more than …"."""
        return f"{what} more than {self}"

    def __str__(self) -> str:
        """The limit as the end of a sentence, with its name."""
        return f"{self.most:,} {self.unit} (limit: {self.name})"


PROMPT_SOURCE = Limit(
    "prompt_source",
    64_000,
    "characters",
    "a template is written by a person; its time to compile grows with it",
)
PROMPT_PARTS = Limit(
    "prompt_parts",
    2_000,
    "parts",
    "names, operations and tags of one template; its time to compile grows with them, and faster",
)
PROMPT_DEPTH = Limit(
    "prompt_depth",
    32,
    "levels",
    "brackets and operations inside one another; beyond some 90 Python cannot compile them",
)
PROMPT_BLOCKS = Limit(
    "prompt_blocks",
    12,
    "levels",
    "`for`, `if` and `with` inside one another; beyond 20 Python cannot compile them",
)
PROMPT_DIGITS = Limit(
    "prompt_digits", 300, "digits", "a number in a template; longer ones are no numbers that anything counts"
)
PROMPT_TEXT = Limit(
    "prompt_text",
    1_000_000,
    "characters",
    "a rendered prompt and every text made on the way to it; some 250,000 tokens",
)
PROMPT_ITEMS = Limit(
    "prompt_items", 100_000, "items", "a list made in a template; as many as `range` may count"
)
PROMPT_BITS = Limit("prompt_bits", 4_096, "bits", "a whole number made in a template; some 1,200 digits")
PROMPT_WORK = Limit(
    "prompt_work",
    20_000_000,
    "units of work",
    "one rendering: a unit is about 5 ns and at most 6 bytes, so it ends within 0.1 s and 120 MB or so; "
    "100,000 turns of a loop with ten operations fit",
)
SPEC_BYTES = Limit(
    "spec_bytes", 1_000_000, "bytes", "a spec's file is written by a person; all of it is held at once"
)
SPEC_DEPTH = Limit("spec_depth", 40, "levels", "mappings and lists of a spec inside one another")
SPEC_VALUES = Limit(
    "spec_values",
    50_000,
    "values",
    "the values of a spec once its aliases are followed, which multiply them",
)
