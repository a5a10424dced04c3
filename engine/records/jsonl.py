"""JSONL files: the one reader and the one writer of them, and files that appear whole.

A line counts once its newline is on disk. What stands after the last newline is the rest of a write that a
kill cut: the reader passes over it, and the writer takes it off before it appends. Knows no record.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import Any, BinaryIO, Generic, NamedTuple, NoReturn, Self, TypeVar

from pydantic_core import PydanticSerializationError, ValidationError, from_json, to_json

from rolegraph.engine.errors import DataError, WorldError
from rolegraph.engine.limits.records import RECORD_LINE, RECORD_MEMORY, WHOLE_FILE
from rolegraph.engine.records.files import read_bytes

T = TypeVar("T")
_CHUNK = 1 << 16
_LONG = 1 << 20
"""Bytes of a line that is measured before it is held."""


class JsonLine(NamedTuple, Generic[T]):
    """One line of a file, and what it says."""

    number: int
    """From 1."""
    start: int
    """The offset of its first byte."""
    text: bytes
    """With its newline."""
    value: T


def refuse(fault: DataError) -> NoReturn:
    """What becomes of a broken line unless the caller says otherwise: it ends the reading."""
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
    """The lines of a file, each read by `parse`; empty ones and a last one that was cut are passed over.

    A line that `parse` refuses (ValueError, TypeError, KeyError or AttributeError) is not `what` says, such
    as "an episode": that is a DataError with the line's place, raised unless `broken` takes it, and then the
    line is passed over. `start` is the offset of the first line to read, `number` its number. Raises
    DataError where the file is missing or unreadable.
    """
    try:
        if not _is_file(path):  # a device never ends, and a pipe may never begin
            raise DataError(f"cannot read {path}: not a file that holds lines")
        with path.open("rb") as file:
            file.seek(start)
            for at, text in enumerate(iter(partial(_next, file), b""), number):
                if len(text) > RECORD_LINE.most:
                    raise DataError(f"{path}:{at}: {RECORD_LINE.exceeded('the line has')}")
                if not text.endswith(b"\n"):
                    return
                if not text.isspace():
                    try:
                        line = JsonLine(at, start, text, parse(text))
                    except (ValueError, TypeError, KeyError, AttributeError) as error:
                        fault = DataError(f"{path}:{at}: not {what}: {reason(error)}")
                        fault.__cause__ = error
                        broken(fault)
                    else:
                        yield line
                        del line  # or it would be held while the next one is read
                start += len(text)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _next(file: BinaryIO) -> bytes:
    """The next line, up to one byte more than there may be."""
    begin = file.tell()
    text = file.readline(_LONG)
    if len(text) < _LONG or text.endswith(b"\n"):
        return text
    length = len(text)
    del text
    # `readline` would hold a long line twice.
    while length <= RECORD_LINE.most and (more := file.readline(_LONG)):
        length += len(more)
        if more.endswith(b"\n"):
            break
    file.seek(begin)
    return file.read(min(length, RECORD_LINE.most + 1))


def _is_file(path: Path) -> bool:
    try:
        return S_ISREG(path.stat().st_mode)
    except ValueError:  # a NUL
        return False


def is_cut(path: Path) -> bool:
    """Whether a file ends in a line without its newline, as `read_jsonl` passes over; raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        return size > _whole(file.fileno(), size)


class TooLarge(ValueError):
    """A line of JSON that would take more memory than there may be."""


def check_size(text: bytes) -> None:
    """Raise TooLarge for a line of JSON that would take too much memory, before it is read."""
    if len(text) > RECORD_LINE.most:
        raise TooLarge(RECORD_LINE.exceeded("the line has"))
    if len(text) * _PER_BYTE > RECORD_MEMORY.most and memory_of(text) > RECORD_MEMORY.most:
        raise TooLarge(RECORD_MEMORY.exceeded("once it is read, it takes"))


def memory_of(text: bytes) -> int:
    """Bytes that a line of JSON takes at most while it is read, with the line itself; past the limit, perhaps
    not all of them."""
    wide = not text.isascii() or b"\\u" in text
    widest = wide and (b"\\ud" in text or b"\\uD" in text or text.translate(None, _NARROW))
    width = 4 if widest else 2 if wide else 1
    characters = len(text.translate(None, b"0123456789+-.eE, []{}"))  # with those of one text once more
    commas = text.count(b",")
    numbers = 40 * commas - 8 * min(text.count(b"."), commas)
    taken = len(text) + (3 * width // 2 + 1) * characters + numbers + 120 * parts_of(text)
    # Where lists alone are too many, none is looked at.
    return taken if taken > RECORD_MEMORY.most else taken + 24 * _longest_list(text)


_PER_BYTE = 124
"""That a byte of JSON may come to."""


def _longest_list(text: bytes) -> int:
    """Commas before a bracket closes, at most: a list takes more while it grows."""
    longest = begin = 0
    left = text.count(b",")
    while longest < left:
        end = text.find(b"]", begin)
        here = text.count(b",", begin, end if end >= 0 else len(text))
        longest, left, begin = max(longest, here), left - here, end + 1
        if end < 0:
            break
    return longest


_NARROW = bytes(range(0xF0))
"""Bytes of UTF-8 that begin no character beyond two bytes of memory."""


def parts_of(text: bytes) -> int:
    """The lists, mappings and texts of a line of JSON, or more: those that a text of it shows count, too."""
    quotes = text.count(b'"') - text.count(b'\\"')
    return text.count(b"[") + text.count(b"{") + quotes // 2


def read_json(path: Path) -> Any:
    """What a file of JSON says that is read whole; raises OSError, and ValueError where it is none."""
    return parse_json(read_bytes(path, WHOLE_FILE))


def parse_json(text: bytes) -> Any:
    """What a line of JSON says, or a file; raises ValueError where it is none, TooLarge before it is read."""
    check_size(text)
    try:
        return from_json(text)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise ValueError("it is nested too deeply") from error
        if len(text) > WHOLE_FILE.most:  # it would be held as bytes and as text, too
            raise
        try:
            # This takes half a character too, as other programs write it.
            return json.loads(text.decode())
        except UnicodeDecodeError as wrong:
            raise ValueError(f"it is not UTF-8 text: {wrong.reason} at byte {wrong.start}") from wrong
        except RecursionError as deep:
            raise ValueError("it is nested too deeply") from deep


def json_line(value: object) -> bytes:
    """A value as one line of JSON."""
    try:
        return to_json(value) + b"\n"
    except PydanticSerializationError:  # half a character in a model's text: written as a question mark
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def reason(error: Exception) -> str:
    """Why something was not read, in one line."""
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        return f"{place}: {fault['msg']}" if place else fault["msg"]
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


class JsonlWriter:
    """Appends to a file whose every line is whole. `holds` says in messages what the lines are."""

    def __init__(self, path: Path, holds: str = "lines") -> None:
        """Open or create the file, and take off what a kill left of a line; raises WorldError."""
        self.path, self._holds = path, holds
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            whole = _whole(self._file, size)
            if whole < size:
                os.ftruncate(self._file, whole)
        except OSError as error:
            raise WorldError(f"cannot write to {path}: {error.strerror}") from error

    def append(self, line: bytes, what: str = "a line", *, sync: bool = False) -> int:
        """Write one line and return its offset; `sync` waits until the disk has it.

        It is one write: either all of the line is in the file when this returns, or none of it is and a
        WorldError says so, calling the line `what`.
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
        """Let go of the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _whole(file: int, size: int) -> int:
    """How many bytes of an open file are whole lines."""
    end = size
    while end:
        start = max(0, end - _CHUNK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all; raises WorldError when the disk does not take it."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WorldError(f"cannot write {path}: {error.strerror}") from error
