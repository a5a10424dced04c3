"""Process that reads a Parquet file: it writes rows as lines of JSON, and a fault as a JSON text.

A file of some hundred bytes may unpack to gigabytes, whatever its own sizes say, and pyarrow has no limit.
So this process may take little more memory than pyarrow itself; where that is not enough it exits with
`MEMORY`. It is run as a file, imports nothing of the engine, and ends when nobody reads its output.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import PydanticSerializationError, to_json

MEMORY = 3
"""Exit code where there is no memory for the next rows."""
BATCH = 64
"""Largest number of rows in memory."""
BATCH_BYTES = 4 << 20
"""Largest size of these rows, by the file's own figures."""
BUFFER = 1 << 16


def write_rows(path: str, most: int, out: BinaryIO) -> None:
    """Write the rows of a file; where reading fails, write the reason as a text after them.

    Args:
        path: The file.
        most: The memory limit in bytes, beyond what the process has taken already.
        out: The output.

    Raises:
        MemoryError: The limit is not enough.
    """
    pyarrow: Any = importlib.import_module("pyarrow")  # it has no type stubs
    parquet: Any = importlib.import_module("pyarrow.parquet")
    pyarrow.set_cpu_count(1)
    _limit_memory(most)
    name, number = Path(path).name, 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER) as file:
            for batch in file.iter_batches(_batch(file.metadata), use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    out.write(to_json(row, inf_nan_mode="constants") + b"\n")
    except MemoryError:
        raise
    except UnicodeDecodeError as error:
        out.write(to_json(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}"))
    except OSError as error:
        out.write(to_json(f"cannot read {name}: {error.strerror or str(error).strip()}"))
    except pyarrow.ArrowException as error:
        out.write(to_json(f"{name} is not a parquet file: {error}"))
    except PydanticSerializationError as error:  # such as bytes that are no text
        why = str(error).removeprefix("Error serializing to JSON: ")
        out.write(to_json(f"{name}:{number}: a value is neither text, number, list nor mapping: {why}"))
    except (ValueError, OverflowError) as error:  # such as a date that Python does not have
        out.write(to_json(f"{name}: cannot read a value soon after row {number}: {error}"))


def _batch(metadata: Any) -> int:
    """Return the number of rows to read at once: fewer where the file says that they are large."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return min(BATCH, max(1, BATCH_BYTES // max(largest, 1)))


def _limit_memory(most: int) -> None:
    if sys.platform == "linux":  # other systems do not enforce the limit
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit, hard = taken + most, resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Write the rows of the file in the first argument, in as many bytes as the second one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends the process when the parent closes the pipe
    code = 0
    with os.fdopen(1, "wb", BUFFER) as out:
        try:
            write_rows(sys.argv[1], int(sys.argv[2]), out)
        except MemoryError:
            code = MEMORY
    os._exit(code)  # the exit handlers of libraries may need memory, too


if __name__ == "__main__":
    main()
