"""What a file of records may hold, and how much of anything a message shows."""

from __future__ import annotations

from rolegraph.engine.limits.limit import Limit

RECORD_LINE = Limit(
    "record_line",
    64_000_000,
    "bytes",
    "a line of a file of records, such as an episode; no more of it is read",
)
RECORD_MEMORY = Limit(
    "record_memory",
    125_000_000,
    "bytes",
    "what such a line may take while it is read, with the line itself, beside what the one before it said: "
    "40 bytes for a number, 120 for a list, a mapping or a text, and its characters, as wide as the widest; "
    "an episode of 800 turns fits, each with 900 tokens asked and 900 answered, with ids, log-probabilities "
    "and texts; a larger one is written without its token ids",
)
RECORD_PARTS = Limit(
    "record_parts",
    1_000_000,
    "parts",
    "of a line of tasks or passages: brackets, braces and texts, each of which takes up to 100 times its "
    "bytes when it is read",
)
WHOLE_FILE = Limit(
    "whole_file",
    16_000_000,
    "bytes",
    "a file of a run's or a model's folder that is read whole, such as run.json or config.json",
)
ROW_TEXT = Limit(
    "row_text",
    10_000_000,
    "characters",
    "a line of a file of tasks or passages; what a prompt shows of it is far less",
)
PARQUET_MEMORY = Limit(
    "parquet_memory",
    150_000_000,
    "bytes",
    "that the process takes which unpacks a Parquet file's rows, beyond what its library does; a file of 600 "
    "bytes may hold gigabytes, and pages of a megabyte in each of 50 columns fit",
)
PARQUET_ROWS = Limit(
    "parquet_rows",
    150_000_000,
    "bytes",
    "that a Parquet file's rows may come to, with 1,000 for each, beyond a hundred times what the file has; "
    "text is packed to a third, and what repeats itself to nothing",
)
MESSAGE_TEXT = Limit("message_text", 600, "characters", "a part of a message; a person reads no more of it")
LINE_SHOWN = Limit("line_shown", 160, "characters", "as much of a faulty line as is shown around the fault")
VALUE_SHOWN = Limit("value_shown", 60, "characters", "as much of a faulty value as a message shows")
CALL_SHOWN = Limit("call_shown", 200, "characters", "as much of a faulty call as the model is shown again")
