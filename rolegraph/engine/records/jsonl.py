"""Reader and writer of JSON and JSONL files.

A line counts once its newline is on disk. Bytes after the last newline are the rest of a write that was
killed: the reader skips them, and the writer truncates them before it appends. This file knows no record
type.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, ValidationError, from_json, to_json

from rolegraph.engine.errors import DataError, WorldError, os_errors_as
from rolegraph.engine.limits.records import RECORD_LINE, RECORD_VALUES, WHOLE_FILE
from rolegraph.engine.records.confined import (
    open_file,
    open_to_read,
    open_to_write,
    part_of,
    remove,
    replace,
    write_whole,
)
from rolegraph.engine.records.files import is_no_file, read_bytes

T = TypeVar("T")
_CHUNK = 1 << 16


class JsonLine(NamedTuple, Generic[T]):
    """Line of a file, with the value parsed from it."""

    number: int
    """Line number, from 1."""
    start: int
    """Offset of the first byte."""
    text: bytes
    """Bytes of the line, with the newline."""
    value: T
    """Value that the parser returned."""


def refuse(fault: DataError) -> NoReturn:
    """Raise the error of a damaged line; the default of every `broken` argument."""
    raise fault


def read_jsonl(
    path: Path,
    parse: Callable[[bytes], T],
    what: str,
    broken: Callable[[DataError], object] = refuse,
    *,
    start: int = 0,
    number: int = 1,
) -> Iterator[JsonLine[T]]:
    """Yield the lines of a file; skip empty lines and a last line without a newline.

    Args:
        path: The file.
        parse: Parser of a line; raises ValueError or KeyError for a damaged line.
        what: Noun for a line in messages, such as "an episode".
        broken: Function called with a DataError that names file, line and reason for each line that `parse`
            rejects; if it returns, the line is skipped.
        start: Offset of the first line to read.
        number: Number of the first line to read, from 1.

    Raises:
        DataError: The file is missing, unreadable, no regular file, or has a line beyond `record_line`.
    """
    with os_errors_as(DataError, f"cannot read {path}"):
        # Reading a device may never end, and opening a pipe may never return.
        if is_no_file(path) or "\0" in str(path):
            raise DataError(f"cannot read {path}: not a regular file")
        with open_to_read(path) as file:
            file.seek(start)
            lines = iter(partial(file.readline, RECORD_LINE.most + 1), b"")
            for line_number, text in enumerate(lines, number):
                if len(text) > RECORD_LINE.most:
                    raise DataError(f"{path}:{line_number}: {RECORD_LINE.exceeded('the line has')}")
                if not text.endswith(b"\n"):
                    return
                if not text.isspace():
                    try:
                        line = JsonLine(line_number, start, text, parse(text))
                    except (ValueError, KeyError) as error:
                        fault = DataError(f"{path}:{line_number}: not {what}: {reason(error)}")
                        fault.__cause__ = error
                        broken(fault)
                    else:
                        yield line
                        del line  # else two lines of up to 200 MB would be in memory at once
                start += len(text)


def is_cut(path: Path) -> bool:
    """Return True if a file ends in a line without a newline, which `read_jsonl` skips; raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        return size > _whole(file.fileno(), size)


def check_size(text: bytes) -> None:
    """Raise ValueError if a JSON text exceeds `record_line` or `record_values`; does not parse it."""
    if len(text) > RECORD_LINE.most:
        raise ValueError(RECORD_LINE.exceeded("the line has"))
    if len(text) > RECORD_VALUES.most and text.count(b",") + parts_of(text) > RECORD_VALUES.most:
        raise ValueError(RECORD_VALUES.exceeded("the line has"))


def parts_of(text: bytes) -> int:
    """Return an upper bound of the number of lists, mappings and strings in a JSON text, by counting brackets
    and quotes."""
    quotes = text.count(b'"') - text.count(b'\\"')
    return text.count(b"[") + text.count(b"{") + quotes // 2


def read_json(path: Path) -> Any:
    """Parse a JSON file; raises OSError, and ValueError as `parse_json` does."""
    return parse_json(read_bytes(path, WHOLE_FILE))


def read_record(path: Path, validate: Callable[[Any], T], what: str) -> T:
    """Read a JSON file and validate it.

    Args:
        path: The file.
        validate: Function from the JSON value to the record; raises ValueError.
        what: Noun for the record in messages, such as "a valid run file".

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such file.
        DataError: The file is unreadable or damaged.
    """
    try:
        return validate(read_json(path))
    except (FileNotFoundError, NotADirectoryError, WorldError):
        raise
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not {what}: {reason(error)}") from error


def parse_json(text: bytes) -> Any:
    """Parse one JSON value; raises ValueError for broken JSON, deep nesting, or a value beyond the limits."""
    check_size(text)
    try:
        return from_json(text)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise ValueError("it is nested too deeply") from error
        if len(text) > WHOLE_FILE.most:  # `json` would need bytes and text in memory at once
            raise
        try:
            # Other programs escape unpaired surrogates, which pydantic rejects.
            return json.loads(text.decode())
        except UnicodeDecodeError as fault:
            raise ValueError(f"it is not UTF-8 text: {fault.reason} at byte {fault.start}") from fault
        except RecursionError as recursion_error:
            raise ValueError("it is nested too deeply") from recursion_error


def json_line(value: object) -> bytes:
    """Return a value or a dataclass as one line of JSON; an unpaired surrogate becomes a question mark."""
    try:
        return to_json(value) + b"\n"
    except PydanticSerializationError:  # of an unpaired surrogate in a model's text
        text = json.dumps(value, ensure_ascii=False, default=asdict)
        return text.encode("utf-8", "replace") + b"\n"


def reason(error: Exception) -> str:
    """Describe an error of parsing or validation in one line, with the field and the kind of value."""
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        path = ".".join(str(step) for step in fault["loc"])
        got_text = "" if fault["type"] in _NOT_OF_A_KIND else f", got {_kind(fault['input'])}"
        return f"{path}: {fault['msg']}{got_text}" if path else fault["msg"] + got_text
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


_NOT_OF_A_KIND = ("missing", "value_error", "extra_forbidden")
"""Types of pydantic's errors whose message should not name the kind of the value."""


def _kind(value: object) -> str:
    """Describe a JSON value: a short number itself, any other value only by its kind, since it may be long or
    secret."""
    if isinstance(value, str | list | dict):
        return "a string" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value, default=str)
    return text if len(text) < 20 else "a long number"


def drop_damaged(path: Path, parse: Callable[[bytes], object]) -> Path | None:
    """Rewrite a file without the lines that cannot be parsed, and keep a copy of the original file.

    Args:
        path: The file; it may be missing.
        parse: Parser of a line, as for `read_jsonl`.

    Returns:
        Path of the copy, `NAME.damaged` or `NAME.damaged-2` and so on; None if no line is damaged.

    Raises:
        DataError: The file is unreadable.
        WorldError: A file cannot be written.
    """
    faults: list[DataError] = []
    for _ in read_jsonl(path, parse, "a record", faults.append) if path.exists() else ():
        pass
    if not faults:
        return None
    copies = (path.with_name(f"{path.name}.damaged{f'-{n}' if n > 1 else ''}") for n in count(1))
    copy, part_path = next(candidate for candidate in copies if not os.path.lexists(candidate)), part_of(path)
    with os_errors_as(WorldError, f"cannot write {copy}"):
        with open_to_read(path) as original, open_to_write(copy) as copy_file:
            shutil.copyfileobj(original, copy_file)
        try:
            with JsonlWriter(part_path, new=True) as writer:
                for line in read_jsonl(path, parse, "a record", lambda _: None):
                    writer.append(line.text)
            replace(part_path, path)
        finally:
            remove(part_path)
    return copy


class JsonlWriter(AbstractContextManager["JsonlWriter"]):
    """Writer that appends complete lines to a file. `holds` is the plural noun for the lines in messages."""

    def __init__(self, path: Path, holds: str = "lines", *, new: bool = False) -> None:
        """Open or create the file, and truncate an incomplete last line; raises WorldError.

        With `new`, an existing file is an error.
        """
        self.path, self._holds = path, holds
        with os_errors_as(WorldError, f"cannot write to {path}"):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_EXCL if new else 0)
            self._file = open_file(path, flags, 0o644)
            size = os.fstat(self._file).st_size
            whole_size = _whole(self._file, size)
            if whole_size < size:
                os.ftruncate(self._file, whole_size)

    def append(self, line: bytes, what: str = "a line", *, sync: bool = False) -> int:
        """Write one line, newline included, and return its offset.

        Args:
            line: Bytes to append, in one write.
            what: Noun for the line in messages.
            sync: True to wait until the line is on disk (fsync).

        Raises:
            WorldError: The write failed; the file is as it was before.
        """
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, start)
            message = f"cannot write {what} to {self.path}: {error.strerror}"
            raise WorldError(f"{message}; the {self._holds} before it are safe") from error
        return start

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole(file: int, size: int) -> int:
    """Return the offset after the last newline in the first `size` bytes of a file descriptor; 0 without a
    newline."""
    end = size
    while end:
        start = max(0, end - _CHUNK)
        newline_at = os.pread(file, end - start, start).rfind(b"\n")
        if newline_at >= 0:
            return start + newline_at + 1
        end = start
    return 0


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record as a JSON file, completely or not at all; raises WorldError if the write fails.

    An unpaired surrogate becomes a question mark, as in `json_line`.
    """
    try:
        text = record.model_dump_json(indent=1)
    except PydanticSerializationError:
        text = json.dumps(record.model_dump(mode="json"), ensure_ascii=False, indent=1)
    write_whole(path, text.encode("utf-8", "replace"))
