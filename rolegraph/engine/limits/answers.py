"""Limits on a model's answer, and on the work of a parser or reward that reads it."""

from rolegraph.engine.limits import Limit

COMPLETION_BYTES = Limit("completion_bytes", 8_000_000, "bytes")
"""Response of an endpoint; 40,000 tokens with the log-probabilities of two each have some 8 MB."""
COMPLETION_PARTS = Limit("completion_parts", 800_000, "parts")
"""JSON values of a response; one may take 100 times its bytes in memory."""
COMPLETION_SECONDS = Limit("completion_seconds", 3_600, "seconds")
"""Time for a whole response of an endpoint, where the role has no `timeout`."""
ANSWER_TEXT = Limit("answer_text", 400_000, "characters")
"""Answer given to parsers and rewards; some 100,000 tokens."""
EPISODE_SIZE = Limit("episode_size", 40_000_000, "characters and tokens")
"""Answers, results and prompts' tokens of an episode; 300 calls of 100,000 tokens have 30 million."""
FAILURE_TEXT = Limit("failure_text", 1_000, "characters")
"""Recorded part of a failure's message, which may quote a server or a tool."""
ANSWER_CALLS = Limit("answer_calls", 64, "calls")
"""Tool calls of one answer, which run at the same time."""
ANSWER_WORDS = Limit("answer_words", 200, "words")
"""Words of `one_of`; each is tried at every place of an answer."""
PATTERN_TEXT = Limit("pattern_text", 1_000, "characters")
"""Regular expression of a spec."""
PATTERN_GROUPS = Limit("pattern_groups", 20, "groups")
"""Groups of a pattern; each is kept for every match."""
PATTERN_BYTES = Limit("pattern_bytes", 1 << 20, "bytes")
"""Compiled pattern; RE2 rejects a larger one."""
# RE2 takes up to 17 ns a unit: 100 steps, which are many, search 120,000 characters, and 2,000 steps, as
# (a{0,30}){0,30} has, 6,000.
PATTERN_WORK = Limit("pattern_work", 12_000_000, "units of work")
"""Work of one search: the steps of the pattern times the bytes of the text."""
JSON_DEPTH = Limit("json_depth", 64, "levels")
"""Nested objects and lists of an answer, which are walked recursively."""
JSON_DIGITS = Limit("json_digits", 4_300, "digits")
"""Digits of a whole number in an answer or a result; Python reads no longer number."""
JSON_STARTS = Limit("json_starts", 64, "brackets")
"""Places of an answer tried as the beginning of its JSON."""
JSON_READ = Limit("json_read", 1_000_000, "characters")
"""Text read in failed attempts to find the JSON of an answer."""
# A unit takes at most some 2 µs (benchmarks/holding.py): a check takes about a third of a second at most, and
# 4,000 records of three fields do.
SCHEMA_WORK = Limit("schema_work", 160_000, "units of work")
"""Work of one check against a JSON Schema: keywords, items, names and faults."""
COUNTDOWN_TEXT = Limit("countdown_text", 200, "characters")
"""Expression of countdown; bounds the size of its numbers."""
COUNTDOWN_DEPTH = Limit("countdown_depth", 40, "levels")
"""Nested operators and signs of an expression of countdown."""
