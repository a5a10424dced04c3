"""Packages whose names are imported on first use, which keeps `import rolegraph` and `rolegraph --help` fast.

The stub beside the package's `__init__.py` lists each name with its module, for type checkers and for this
file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make a package import its public names on first use; its `.pyi` stub lists them as imports.

    Returns:
        The package's `__getattr__`, `__dir__` and `__all__`.

    Raises:
        OSError: The package has no stub.
    """
    module = sys.modules[package]
    stub = Path(str(module.__file__)).with_suffix(".pyi").read_text("utf-8")
    homes = {
        alias.name: statement.module
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    names = sorted(homes)

    def find(name: str) -> Any:
        if name not in homes:
            from difflib import get_close_matches  # slow to import

            near_names = [] if name.startswith("_") else get_close_matches(name, names, 1)
            hint = f"; did you mean {near_names[0]!r}?" if near_names else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        home = import_module(homes[name])
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{homes[name]}.{name}")
        setattr(module, name, value)
        return value

    return find, lambda: names, names
