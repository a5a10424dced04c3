"""What has to be imported for a name to be known, in this process and in any other.

Built-in items and those of installed packages are found by entry points. What a person's own file registers
is known once that file is imported: an `Import` says which, and `Import.ensure` sees to it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from engine.errors import UsageError


class Import(NamedTuple):
    """A module, and the file that it lies in, if it lies in one."""

    module: str
    file: str | None

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Import:
        """Where a factory was defined."""
        file = getattr(sys.modules.get(factory.__module__), "__file__", None)
        return cls(factory.__module__, str(Path(file).resolve()) if file else None)

    def ensure(self) -> ModuleType:
        """Import it, unless it has been; raises UsageError where it cannot be."""
        if self.module in sys.modules and self.module != "__main__":
            return sys.modules[self.module]
        if self.file is None or "." in self.module:
            try:
                return importlib.import_module(self.module)
            except ImportError as error:
                raise UsageError(f"cannot import {self.module}: {error}") from error
        return import_file(Path(self.file), None if self.module == "__main__" else self.module)


def import_file(path: Path, module: str | None = None) -> ModuleType:
    """Import a Python file once, as `module` or under a name that follows from its path.

    Raises UsageError for a file that is not there or that fails.
    """
    path = path.resolve()
    name = module or f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"cannot import {path}: expected a Python file, such as rewards.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise UsageError(f"importing {path} failed: {type(error).__name__}: {error}") from error
    return loaded
