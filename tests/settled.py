"""Files of a folder that a running service changes."""

from __future__ import annotations

import os
from pathlib import Path


def settled(folder: Path) -> list[Path]:
    """Return the files and folders below a folder, without temporary ones.

    A service writes into folders whose names start with a dot, and deletes them at any time; `Path.rglob`
    raises where a folder is gone before it is listed.
    """
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in (*folders, *files)]
    return found
