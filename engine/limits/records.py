"""What a file of records may hold, and how much of anything a message shows."""

from __future__ import annotations

from engine.limits.limit import Limit

RECORD_LINE = Limit(
    "record_line",
    256_000_000,
    "bytes",
    "a line of a file of records, such as an episode, which is held as a whole; one of 300 calls with 32,000 "
    "tokens each has some 100 MB",
)
ROW_TEXT = Limit(
    "row_text",
    10_000_000,
    "characters",
    "a line of a file of tasks or passages; what a prompt shows of it is far less",
)
MESSAGE_TEXT = Limit("message_text", 600, "characters", "a part of a message; a person reads no more of it")
LINE_SHOWN = Limit("line_shown", 160, "characters", "as much of a faulty line as is shown around the fault")
VALUE_SHOWN = Limit("value_shown", 60, "characters", "as much of a faulty value as a message shows")
CALL_SHOWN = Limit("call_shown", 200, "characters", "as much of a faulty call as the model is shown again")
