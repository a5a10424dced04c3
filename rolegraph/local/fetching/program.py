"""A program that writes a model's folder for `fetch`: how it states the size, its result and its errors."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rolegraph.engine.errors import RolegraphError, WorldError
from rolegraph.local.service.parent import exit_with_parent


def announce(size: int, folder: Path) -> None:
    """Print the number of bytes that a folder will have.

    Raises:
        WorldError: The disk has less free space.
    """
    free_bytes = shutil.disk_usage(folder).free
    if size > free_bytes:
        shortage = f"{free_bytes / 1e9:.1f} GB free, and the model needs {size / 1e9:.1f} GB"
        raise WorldError(f"{folder.parent} has {shortage}")
    sys.stdout.write(f"{size}\n")
    sys.stdout.flush()


def main(write: Callable[..., str]) -> None:
    """Run a program: call `write` with the arguments of the command line, print the result, and exit.

    The program ends with its parent, whose end of standard input closes then.
    """
    exit_with_parent(stays=lambda: False, clean_up=lambda: None)
    try:
        sys.stdout.write(write(*sys.argv[1:]))
    except RolegraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
