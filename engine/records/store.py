"""A run's folder: the resolved spec and one line of JSON for each finished episode.

An episode is on disk when `append` returns, in one write of a whole line, so that a killed run loses none
that was counted. `read_episodes` reads them back and names the line that is broken.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic_core import PydanticSerializationError, from_json, to_json

from engine.errors import DataError, UsageError, WorldError
from engine.records import Episode

EPISODES = "episodes.jsonl"
SPEC = "spec.yaml"


class RunFolder:
    """The folder of one run. Raises UsageError if it holds one, WorldError if it cannot be written."""

    def __init__(self, path: Path, resolved_spec: str) -> None:
        self.path = path
        self.episodes = path / EPISODES
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self.episodes.exists() and self.episodes.stat().st_size:
                raise UsageError(f"{path} already holds a run; choose another folder with --out")
            (path / SPEC).write_text(resolved_spec, encoding="utf-8")
            self._file = os.open(self.episodes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WorldError(f"cannot write to the output folder {path}: {error.strerror}") from error

    def append(self, episode: Episode) -> None:
        """Write one episode; raises WorldError when the disk does not take it."""
        line = episode_line(episode)
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, start)
            message = f"cannot write episode {episode.id} to {self.episodes}: {error.strerror}"
            raise WorldError(f"{message}; the episodes before it are safe") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all; raises WorldError when the disk does not take it."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WorldError(f"cannot write {path}: {error.strerror}") from error


def episode_line(episode: Episode) -> bytes:
    """An episode as one line of JSON."""
    data = episode.to_dict()
    try:
        return to_json(data) + b"\n"
    except PydanticSerializationError:  # half a character in a model's text: written as a question mark
        return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def read_episodes(path: Path) -> Iterator[Episode]:
    """The episodes of a file, in order; a last line cut short by a crash is passed over. Raises DataError."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield Episode.from_dict(from_json(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(f"{path}:{number}: not an episode: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
