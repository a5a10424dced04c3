"""Writing of files in a folder that already existed, and may come from another user.

Such a folder can hold a link under any name that a command writes: opened as usual, the link would let the
command change another file of the user. Here every path is opened relative to the descriptor of its folder,
one directory after the other and without following links; hard links, pipes and devices are refused as well.
Links that lead to the folder itself are the user's, and are followed. This file knows no record, and no file
of a run.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG

from rolegraph.engine.errors import WorldError, os_errors_as

# Windows has neither flags nor descriptors of folders; names are checked there before they are opened.
_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_FOLDER = os.O_RDONLY | _SAFE | getattr(os, "O_DIRECTORY", 0)
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd
PART = re.compile(r"\.[0-9a-f]{16}(\.index)?\.part")
"""Pattern of the names of incomplete files."""
_held: dict[Path, int | None] = {}
"""Descriptors of the folders in which this process writes, by absolute path; None on Windows."""


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Within a block, open every path below a folder relative to the folder's descriptor.

    Directories on the way to such a path may not be links. If folders are nested, the outermost is used.

    Args:
        folder: An existing folder; links on the way to it are followed.

    Raises:
        OSError: The folder cannot be opened.
    """
    path = folder.absolute()
    if path in _held:
        yield
        return
    descriptor = os.open(path, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)) if _HAS_DESCRIPTORS else None
    _held[path] = descriptor
    try:
        yield
    finally:
        del _held[path]
        if descriptor is not None:
            os.close(descriptor)


def open_file(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file and return its descriptor.

    Args:
        path: The file.
        flags: Flags of `os.open`, without O_TRUNC.
        mode: Permissions of a new file, before the umask.

    Raises:
        OSError: The file cannot be opened; a WorldError if it is a link, has hard links or is no regular
            file.
    """
    with _parent(path) as (name, folder):
        _refuse_odd(name, folder, path)
        file = os.open(name, flags | _SAFE, mode, dir_fd=folder)
        if os.fstat(file).st_nlink > 1 or not S_ISREG(os.fstat(file).st_mode):  # exchanged meanwhile
            os.close(file)
            raise WorldError(f"cannot write {path}: it is no file of its own")
        return file


def open_to_read(path: Path) -> BufferedReader:
    """Open a file to read; in a folder in which this process writes, without following links. Raises
    OSError."""
    if _root(path.absolute()) is None:
        return path.open("rb")
    return os.fdopen(open_file(path, os.O_RDONLY), "rb")


def open_to_write(path: Path) -> BufferedWriter:
    """Open a file to overwrite it; raises the errors of `open_file`."""
    file = open_file(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(file, 0)
    return os.fdopen(file, "wb")


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet, completely or not at all; raises OSError."""
    file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(file, "wb") as file_object:
            file_object.write(data)
    except BaseException:
        with suppress(OSError):
            remove(path)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file completely or not at all, by a rename; raises WorldError if the write fails."""
    part_path = part_of(path)
    with os_errors_as(WorldError, f"cannot write {path}"):
        try:
            write_new(part_path, data)
            replace(part_path, path)
        except BaseException:
            with suppress(OSError):
                remove(part_path)
            raise


def part_of(path: Path) -> Path:
    """Return a random path in the folder of `path`, for a new content of the file until it is complete."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


def replace(source: Path, target: Path) -> None:
    """Rename a file to `target` in the same folder, replacing an existing file; raises OSError."""
    with _parent(target) as (name, folder):
        _refuse_odd(name, folder, target)
        source_name = source if folder is None else source.name
        os.replace(source_name, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(path: Path) -> None:
    """Delete a file if it exists; of a link, only the link. Raises OSError."""
    with suppress(FileNotFoundError), _parent(path) as (name, folder):
        os.unlink(name, dir_fd=folder)


def remove_parts(folder: Path) -> None:
    """Delete the incomplete files (`PART`) that a killed process left in a folder; raises OSError."""
    with suppress(FileNotFoundError):
        for file in folder.iterdir():
            if PART.fullmatch(file.name):
                remove(file)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents; raises WorldError if that fails."""
    with os_errors_as(WorldError, f"cannot write to the output folder {path}"):
        if _root(path.absolute()) is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            with _parent(path / "_", make=True):
                pass


def check(paths: Iterable[Path]) -> None:
    """Raise WorldError for the first path that is a link, a hard link, a pipe or a device.

    Args:
        paths: Files and folders that are to be written; those that do not exist are skipped.
    """
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError), _parent(path) as (name, folder):
            _refuse_odd(name, folder, path)


def below(folder: Path) -> Iterator[Path]:
    """Yield a folder and everything in it, for `check`; links are not followed.

    Other libraries, such as safetensors, open paths themselves, so the paths are checked before.
    """
    yield folder
    for path, folders, files in os.walk(folder):
        yield from (Path(path, name) for name in (*folders, *files))


def _root(path: Path) -> Path | None:
    """Return the outermost folder of `held` that contains or is an absolute path; None without one."""
    return next((ancestor for ancestor in (*reversed(path.parents), path) if ancestor in _held), None)


@contextmanager
def _parent(path: Path, *, make: bool = False) -> Generator[tuple[str | Path, int | None]]:
    """Open the folder of a path; yield (name of the path in the folder, descriptor of the folder).

    On Windows the descriptor is None, and the name is the whole path.
    """
    absolute_path = path.absolute()
    root = _root(absolute_path.parent) or absolute_path.parent
    *folders, name = absolute_path.relative_to(root).parts
    if ".." in (*folders, name):
        raise WorldError(f"cannot write {path}: it leads out of {root}")
    descriptor: int | None = None
    try:
        if _HAS_DESCRIPTORS:
            flags = _FOLDER & ~getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(root, flags) if (held_root := _held.get(root)) is None else os.dup(held_root)
        for depth, folder in enumerate(folders, 1):
            step = root.joinpath(*folders[:depth])
            directory = step if descriptor is None else folder
            if make:
                with suppress(FileExistsError):
                    os.mkdir(directory, dir_fd=descriptor)
            _refuse_odd(directory, descriptor, step)
            if descriptor is not None:
                outer, descriptor = descriptor, os.open(directory, _FOLDER, dir_fd=descriptor)
                os.close(outer)
        yield (absolute_path if descriptor is None else name), descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _refuse_odd(name: str | Path, folder: int | None, path: Path) -> None:
    """Raise WorldError if a name exists in a folder and is a link, has hard links, or is neither a file nor a
    folder."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if S_ISLNK(status.st_mode):
        kind = "a symbolic link"
    elif not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode)):
        kind = "no regular file"
    elif S_ISREG(status.st_mode) and status.st_nlink > 1:
        kind = "a hard link, one of several names of a file"
    else:
        return
    raise WorldError(f"cannot write {path}: it is {kind}; remove it, or choose another folder")
