"""What a model's answer may be, and what a parser or a reward may spend on reading it."""

from __future__ import annotations

from rolegraph.engine.limits.limit import Limit

COMPLETION_BYTES = Limit(
    "completion_bytes",
    8_000_000,
    "bytes",
    "what an OpenAI-compatible endpoint answers to a call; one of 32,000 tokens with their log-probabilities "
    "has some 4 MB",
)
COMPLETION_PARTS = Limit(
    "completion_parts",
    500_000,
    "parts",
    "of it: brackets, braces and texts, each of which takes up to 100 times its bytes when it is read; a "
    "token with its log-probability has some 8",
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
ANSWER_WORDS = Limit(
    "answer_words", 200, "words", "that `one_of` looks for: each is tried at every place of an answer"
)
PATTERN_TEXT = Limit("pattern_text", 1_000, "characters", "a spec's own regular expression")
PATTERN_GROUPS = Limit("pattern_groups", 20, "groups", "of a pattern: each is kept for every match")
PATTERN_BYTES = Limit("pattern_bytes", 1 << 20, "bytes", "a compiled pattern; RE2 refuses a larger one")
PATTERN_WORK = Limit(
    "pattern_work",
    12_000_000,
    "units of work",
    "one search, or the searches of one check against a schema: a pattern's steps for each byte of the text, "
    "of which RE2 takes up to 17 ns each; so 100 steps, which are many, search 120,000 characters, and 2,000 "
    "steps, as (a{0,30}){0,30} has, 6,000",
)
JSON_DEPTH = Limit(
    "json_depth",
    64,
    "levels",
    "objects and lists of an answer inside one another: it is walked, written and read level by level",
)
JSON_DIGITS = Limit(
    "json_digits",
    4_300,
    "digits",
    "a whole number of an answer or a result; Python reads no longer one",
)
JSON_STARTS = Limit(
    "json_starts", 64, "brackets", "and fences that are tried as the beginning of an answer's JSON"
)
JSON_READ = Limit(
    "json_read", 1_000_000, "characters", "that are read in vain for an answer's JSON, start by start"
)
SCHEMA_WORK = Limit(
    "schema_work",
    160_000,
    "units of work",
    "one check of a value against a JSON Schema: each keyword asked of a part of it, each item or name that "
    "the keyword looks through, each fault; a unit is some 2 µs at most (benchmarks/holding.py), so that "
    "none takes much more than a third of a second: 4,000 records of three fields do",
)
COUNTDOWN_TEXT = Limit(
    "countdown_text", 200, "characters", "an expression of countdown: it bounds the numbers' size, too"
)
COUNTDOWN_DEPTH = Limit("countdown_depth", 40, "levels", "operators and signs of one inside one another")
