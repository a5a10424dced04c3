"""What a template or a condition may cost, when it is compiled and when it is rendered."""

from __future__ import annotations

from rolegraph.engine.limits.limit import Limit

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
    "prompt_digits", 300, "digits", "a number in a template, and what `round` keeps; a float has no more"
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
PROMPT_INDENT = Limit(
    "prompt_indent", 16, "columns", "by which `tojson` indents each level: it makes every line longer"
)
PROMPT_WORK = Limit(
    "prompt_work",
    15_000_000,
    "units of work",
    "one rendering: a unit is at most some 8 ns and 6 bytes (benchmarks/metering.py), so that none takes "
    "longer than what fills `prompt_text` with JSON, or 80 MB; a table of 7,000 rows of five columns fits",
)
