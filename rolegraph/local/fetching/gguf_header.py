"""Header of a GGUF file, read within bounds: the file may come from anybody.

The readers of `gguf` and transformers trust the counts in a file, and loop as often as one says. Here every
count is compared with the bytes that the file has, so that what they do next is bounded by the file's size.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from rolegraph.engine.errors import UsageError
from rolegraph.engine.limits.models import GGUF_HEADER, GGUF_TENSORS, GGUF_VALUES

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type, for the types of numbers and booleans."""
_DIMENSIONS = 4
_PER_BYTE = 8
"""Elements that a byte of a tensor's data can hold at most: no quantization takes less than 1 bit."""


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Texts and counts of the header of a GGUF file, within the bounds of the file."""

    texts: dict[str, str]
    """Settings that are texts, by their keys, such as `general.license`."""
    tensors: int
    elements: int
    """Elements of all tensors together."""


class _Fault(Exception):
    """Contradiction in a GGUF file."""


class _HeaderReader:
    """Reader of the values of a header, which raises _Fault at the limit or the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._values = file, 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if self._file.tell() + size > GGUF_HEADER.most:
            raise _Fault(GGUF_HEADER.exceeded("its header has"))
        taken = self._file.read(size)
        if len(taken) < size:
            raise _Fault("its header ends early")
        return taken

    def number(self, form: str) -> int:
        """Return the next number, of a little-endian form of `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        """Return the next text."""
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise _Fault("a text in its header is not UTF-8") from None

    def value(self) -> str | None:
        """Read the next value with its type, and return a text."""
        kind = self.number("I")
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            self._elements(self.number("I"), self.number("Q"))
            return None
        self._elements(kind, 1)
        return None

    def _elements(self, kind: int, count: int) -> None:
        self._values += count
        if self._values > GGUF_VALUES.most:
            raise _Fault(GGUF_VALUES.exceeded("its header has"))
        if kind == _STRING:
            for _ in range(count):
                self.take(self.number("Q"))
        elif kind in _SIZES:
            self.take(count * _SIZES[kind])
        else:
            raise _Fault(f"its header has a value of the unknown type {kind}")


def read_header(path: Path, name: str | None = None) -> GGUFHeader:
    """Read the header of a GGUF file.

    Args:
        path: The file.
        name: Name of the file in messages; by default its path.

    Raises:
        UsageError: The file is no GGUF file, or its header contradicts the file's size or exceeds a limit.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        try:
            return _read(_HeaderReader(file), path.stat().st_size)
        except _Fault as fault:
            raise UsageError(f"{name or path} is not a GGUF file that can be read: {fault}") from None


def _read(reader: _HeaderReader, size: int) -> GGUFHeader:
    if reader.take(4) != b"GGUF":
        raise _Fault("it does not begin with GGUF")
    if (version := reader.number("I")) not in _VERSIONS:
        raise _Fault(f"its version is {version}; expected {' or '.join(map(str, _VERSIONS))}")
    tensors, settings = reader.number("Q"), reader.number("Q")
    if tensors > GGUF_TENSORS.most:
        raise _Fault(GGUF_TENSORS.exceeded(f"it announces {tensors:,} tensors,"))
    texts: dict[str, str] = {}
    for _ in range(settings):  # ends at the limit of the header: each setting takes bytes
        key, value = reader.text(), reader.value()
        if value is not None:
            texts[key] = value
    elements = sum(_tensor(reader, size) for _ in range(tensors))
    if elements > size * _PER_BYTE:
        raise _Fault(f"it announces {elements:,} weights, more than its {size:,} bytes can hold")
    return GGUFHeader(texts, tensors, elements)


def _tensor(reader: _HeaderReader, size: int) -> int:
    """Return the number of elements of the next tensor."""
    reader.text()
    dimensions = reader.number("I")
    if not 0 < dimensions <= _DIMENSIONS:
        raise _Fault(f"a tensor has {dimensions} dimensions; expected 1 to {_DIMENSIONS}")
    elements = prod(reader.number("Q") for _ in range(dimensions))
    reader.number("I")
    if reader.number("Q") > size:
        raise _Fault("a tensor lies behind its end")
    return elements
