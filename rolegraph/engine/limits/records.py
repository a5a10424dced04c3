"""Limits on files of records and tasks, and on the excerpts that messages show."""

from rolegraph.engine.limits import Limit

# The first two hold the memory of a hostile line below 200 MB, which tests/attack measures. The largest
# episodes that fit have 800 turns, each with 900 prompt tokens and 900 response tokens.
RECORD_LINE = Limit("record_line", 35_000_000, "bytes")
"""A line of a file of records, such as an episode."""
RECORD_VALUES = Limit("record_values", 3_000_000, "values")
"""Commas, brackets, braces and texts of a line of records, or of a JSON file."""
RECORD_PARTS = Limit("record_parts", 1_000_000, "parts")
"""Brackets, braces and texts of a line of tasks or passages."""
DIGESTED_ROWS = Limit("digested_rows", 4_000_000, "rows")
"""Rows of a data file with a digest each in a run's folder; digests of columns are of all rows."""
WHOLE_FILE = Limit("whole_file", 16_000_000, "bytes")
"""A JSON file of a run's or a model's folder."""
ROW_TEXT = Limit("row_text", 10_000_000, "characters")
"""A line of a file of tasks or passages."""
PARQUET_MEMORY = Limit("parquet_memory", 150_000_000, "bytes")
"""Memory of the process that unpacks a Parquet file, beyond its library's; 600 bytes may hold gigabytes."""
PARQUET_ROWS = Limit("parquet_rows", 150_000_000, "bytes")
"""Decoded size of a Parquet file's rows plus 1,000 bytes per row, allowed beyond 100 times the file's
size."""
MESSAGE_TEXT = Limit("message_text", 600, "characters")
"""Excerpt of a text that a message quotes."""
LINE_SHOWN = Limit("line_shown", 160, "characters")
"""Excerpt of a faulty line, around the fault."""
VALUE_SHOWN = Limit("value_shown", 60, "characters")
"""Excerpt of a faulty value."""
CALL_SHOWN = Limit("call_shown", 200, "characters")
"""Excerpt of a faulty call that the model sees again."""
