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
        return f"{self.most:,} {self.unit}".rstrip() + f" (limit: {self.name})"


PROMPT_SOURCE = Limit(
    "prompt_source",
    64_000,
    "characters",
    "a template is written by a person; its time to compile grows with it",
)
TEMPLATE_BYTES = Limit(
    "template_bytes",
    256_000,
    "bytes",
    "a template's file: its characters, were all of the longest",
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
    "one rendering: a unit is some 5 to 20 ns and at most 6 bytes; 100,000 turns of a loop with ten "
    "operations fit, and nothing takes longer or more than 120 MB",
)
SPEC_BYTES = Limit("spec_bytes", 1_000_000, "bytes", "a spec is written by a person; all of it is held")
SPEC_DEPTH = Limit("spec_depth", 40, "levels", "mappings and lists of a spec inside one another")
SPEC_VALUES = Limit(
    "spec_values", 10_000, "values", "the values of a spec once its aliases are followed, which multiply them"
)
SPEC_DIGITS = Limit("spec_digits", 300, "characters", "a number in a spec; a float has no more")
SPEC_EXTENDS = Limit("spec_extends", 16, "specs", "specs that extend one another; each is read and merged")
SPEC_FAULTS = Limit(
    "spec_faults", 100, "faults", "faults of a spec that are told at once; who mends those sees the next"
)
SPEC_COUNT = Limit(
    "spec_count", 1_000_000_000, "", "numbers of a spec that count something; larger ones are slips"
)
SPEC_ROLES = Limit("spec_roles", 200, "roles", "checks hold each role against every other")
SPEC_TEMPLATES = Limit(
    "spec_templates",
    20_000,
    "parts",
    "those of all templates and conditions, once for each use; each takes some 50 µs to compile",
)
SPEC_TURNS = Limit(
    "spec_turns", 40_000, "turns", "the turns of one episode; each is some 1,500 bytes of a plan"
)
SPEC_EDGES = Limit("spec_edges", 200_000, "edges", "who waits for whom in one episode")
SPEC_LINEAGES = Limit(
    "spec_lineages",
    500_000,
    "ancestors",
    "of every instance, the roles that it comes from; each is some 100 bytes while a spec is compiled",
)
ANSWER_TEXT = Limit(
    "answer_text",
    400_000,
    "characters",
    "an answer that a parser reads, and hands to rewards; some 100,000 tokens",
)
ANSWER_CALLS = Limit(
    "answer_calls", 64, "calls", "tools that one answer asks for, which are called at once; more is no plan"
)
TOOL_TEXT = Limit(
    "tool_text",
    400_000,
    "characters",
    "what tools give for one answer, or a tool that a role runs, as text or JSON: it is sent with every call "
    "that follows, and kept with each",
)
RECORD_LINE = Limit(
    "record_line",
    256_000_000,
    "bytes",
    "a line of a file of records, such as an episode, which is held as a whole; one of 300 calls with 32,000 "
    "tokens each has some 100 MB",
)
MESSAGE_TEXT = Limit("message_text", 600, "characters", "a part of a message; a person reads no more of it")
LINE_SHOWN = Limit("line_shown", 160, "characters", "as much of a faulty line as is shown around the fault")

LIMITS: tuple[Limit, ...] = tuple(value for value in globals().values() if isinstance(value, Limit))
"""All of them, in the order of this file."""
