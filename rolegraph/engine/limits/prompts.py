"""Limits on compiling and rendering a template or a condition."""

from rolegraph.engine.limits import Limit

PROMPT_SOURCE = Limit("prompt_source", 64_000, "characters")
"""Text of a template; compile time grows with it."""
PROMPT_PARTS = Limit("prompt_parts", 2_000, "parts")
"""Names, operations and tags of a template; compile time grows faster than their number."""
PROMPT_DEPTH = Limit("prompt_depth", 32, "levels")
"""Nested brackets and operations; Python compiles some 90."""
PROMPT_BLOCKS = Limit("prompt_blocks", 12, "levels")
"""Nested `for`, `if` and `with`; Python compiles 20."""
PROMPT_DIGITS = Limit("prompt_digits", 300, "digits")
"""Number in a template, and precision of `round`; a float's range."""
PROMPT_TEXT = Limit("prompt_text", 1_000_000, "characters")
"""Rendered prompt and each string made on the way; some 250,000 tokens."""
PROMPT_ITEMS = Limit("prompt_items", 100_000, "items")
"""List made in a template, and the largest `range`."""
PROMPT_BITS = Limit("prompt_bits", 4_096, "bits")
"""Whole number made in a template; some 1,200 digits."""
PROMPT_INDENT = Limit("prompt_indent", 16, "columns")
"""Indentation of each level by `tojson`, which lengthens every line."""
# A unit takes at most some 8 ns and 6 bytes (benchmarks/metering.py): a rendering takes as long as filling
# `prompt_text` with JSON, or 80 MB, at most. A table of 7,000 rows of five columns fits.
PROMPT_WORK = Limit("prompt_work", 15_000_000, "units of work")
"""Work of one rendering of a template."""
