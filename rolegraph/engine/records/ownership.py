"""Rules for what a command may write: into a folder that is missing, empty or marked as Rolegraph's own, and
over a file that Rolegraph wrote and that is unchanged.

Every command that writes checks them before its first byte. This file knows no kind of folder: a command
names the files that mark its own folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from rolegraph.engine.errors import UsageError, WorldError, os_errors_as
from rolegraph.engine.limits.records import WHOLE_FILE
from rolegraph.engine.records.confined import PART, write_whole
from rolegraph.engine.records.files import is_file, is_folder, read_bytes
from rolegraph.engine.records.jsonl import parse_json

LOCK_FILE = ".writer"
"""Lock of a folder's writer; left in a folder whose command ended before it wrote the folder's mark."""
STAGING = ".rolegraph-part-"
"""Prefix of the names of staging folders."""
_UNFINISHED = re.compile(rf"{re.escape(LOCK_FILE)}|{re.escape(STAGING)}.*|{PART.pattern}")
"""Pattern of the names that a killed command may leave."""
_TERMINAL = tuple(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))
"""Folders whose files are written in place, such as /dev/stdout, which is a link to a pipe."""
_STAMP = "written by rolegraph, sha256 of the above: "
_COMMENTS = {
    **dict.fromkeys(("py", "yaml"), ("# ", "")),
    "mmd": ("%% ", ""),
    **dict.fromkeys(("json", "jsonl"), (', "$comment": "', '"}')),
}
"""Beginning and end of a comment, by the form of a file; the default is the comment of XML, HTML and
Markdown."""
_STAMPED = re.compile(
    rb"(?:<!-- |# |// |%% |, \"\$comment\": \")" + _STAMP.encode() + rb"([0-9a-f]{64})(?: -->|\"})?\n\Z"
)
_TAIL_BYTES = 200
"""Number of bytes at the end of a file that hold its stamp."""
_NOTHING = re.compile(r"(?!)")
_SHOWN = 3
"""Largest number of unexpected names that a message lists."""


class FolderKind(NamedTuple):
    """Kind of a folder that a command writes, with the files by which later commands recognize it."""

    noun: str
    """Name of the kind in messages, such as `a sweep`."""
    marks: Mapping[str, Callable[[Any], object]] = {}
    """Parser of each file that marks the folder, by the file's path in it; it raises ValueError, KeyError or
    TypeError for a document of another origin. Without marks, the folder must be missing or empty."""
    begun: re.Pattern[str] = _NOTHING
    """Pattern of the subfolders that a command makes before it writes a mark."""

    def check(self, folder: Path) -> None:
        """Raise UsageError for a folder with files that no command of this kind wrote; changes nothing."""
        with os_errors_as(WorldError, f"cannot read {folder}"):
            if not is_folder(folder):
                if os.path.lexists(folder):
                    raise UsageError(f"{folder} is not a folder; choose another path")
                return
            if names := self.in_the_way(folder, begun=(folder / LOCK_FILE).exists()):
                further_names = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                missing_mark = f" and does not hold {self.noun}" if self.marks else ""
                raise UsageError(
                    f"{folder} is not empty{missing_mark}: {', '.join(names[:_SHOWN])}{further_names} "
                    f"{'is' if len(names) == 1 else 'are'} in the way; choose a new or an empty folder"
                )

    def in_the_way(self, folder: Path, *, begun: bool = False) -> list[str]:
        """Return the names in an existing folder that no command of this kind wrote, sorted; raises OSError.

        Empty for a folder with the marks of this kind. With `begun`, subfolders that a command makes before
        its mark are not listed.
        """
        marks = {folder / name: parse for name, parse in self.marks.items() if (folder / name).exists()}
        if marks and all(_parses(file, parse) for file, parse in marks.items()):
            return []
        folders = self.begun if begun else _NOTHING
        names = (path.name for path in folder.iterdir())
        return sorted(name for name in names if not (_UNFINISHED.fullmatch(name) or folders.fullmatch(name)))


NEW = FolderKind("a new folder")
"""Kind of a folder that must be missing or empty, because a command creates it in one piece."""


def stamped(data: bytes, form: str) -> bytes:
    """Return a document with a comment at its end that says that Rolegraph wrote it, with a digest.

    Args:
        data: The document; one in JSON is an object, or lines of objects.
        form: Ending of a file of this form, such as `html`; a PNG file has the comment after its image.
    """
    if form.startswith("json"):
        data = data.rstrip().removesuffix(b"}").rstrip()
    elif not data.endswith(b"\n"):
        data += b"\n"
    comment_start, comment_end = _COMMENTS.get(form, ("<!-- ", " -->"))
    return data + f"{comment_start}{_STAMP}{sha256(data).hexdigest()}{comment_end}\n".encode()


def is_own(file: Path) -> bool:
    """Return True if `stamped` made a file and the file is unchanged; raises OSError."""
    with file.open("rb") as binary_file:
        binary_file.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        stamp = _STAMPED.search(binary_file.read())
    if stamp is None:
        return False
    data = file.read_bytes()
    return sha256(data[: len(data) - len(stamp[0])]).hexdigest().encode() == stamp[1]


def write_output(file: Path, data: bytes, form: str) -> None:
    """Write a file that the user named, `stamped`; a device such as /dev/stdout gets the data without a
    stamp.

    The caller must have called `check_replaceable`. Raises WorldError.
    """
    if file.absolute().parent not in _TERMINAL:
        return write_whole(file, stamped(data, form))
    with os_errors_as(WorldError, f"cannot write {file}"):
        file.write_bytes(data)


def check_replaceable(file: Path) -> None:
    """Raise UsageError for a file that a command must not replace: Rolegraph did not write it, or it was
    changed.

    Devices and pipes, such as /dev/stdout, are accepted.
    """
    with os_errors_as(WorldError, f"cannot read {file}"):
        if is_file(file) and file.stat().st_size and not is_own(file):
            raise UsageError(
                f"{file} exists, and Rolegraph did not write it, or it was changed since; choose another "
                "file, or replace it with --force"
            )


def _parses(file: Path, parse: Callable[[Any], object]) -> bool:
    """Return True if `parse` accepts a file's JSON document, or the document in its first line."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = read_bytes(file, WHOLE_FILE)
        try:
            document = parse_json(content)
        except ValueError:  # JSON lines
            document = parse_json(content.partition(b"\n")[0])
        parse(document)
        return True
    return False
