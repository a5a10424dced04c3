"""What has to be imported for a name to be known, in this process and in any other.

Built-in items and those of installed packages are found by entry points. What a person's own file registers
is known once that file is imported: an `Import` says which, and `Import.ensure` sees to it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rolegraph.engine.errors import UsageError
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error


class Import(NamedTuple):
    """A module, and the file that it lies in, if it lies in one."""

    module: str
    file: str | None

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Import:
        """Where a factory was defined."""
        file = getattr(sys.modules.get(factory.__module__), "__file__", None)
        path = Path(file).resolve() if file else None
        return cls(factory.__module__, str(path) if path and path.is_file() else None)

    def ensure(self) -> ModuleType:
        """Import it, unless it has been; raises UsageError where it cannot be."""
        if self.module in sys.modules and self.module != "__main__":
            return sys.modules[self.module]
        if self.file is None or "." in self.module:
            try:
                return importlib.import_module(self.module)
            except FOREIGN_ERRORS as error:  # importing it runs its code
                said = describe_error(error)
                raise UsageError(f"cannot import {self.module}: {said}") from error
        return _load(
            Path(self.file), _module_name(Path(self.file)) if self.module == "__main__" else self.module
        )

    def digest(self) -> str:
        """Identifies the code: of the file alone, not of what it imports in turn."""
        return digest_of(Path(self.file).read_bytes()) if self.file else "unknown"


class Definition(NamedTuple):
    """A function that was registered, and where it was written then."""

    source: Import
    name: str
    line: int | None
    code: str
    """Identifies what the file held."""

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Definition:
        """That of a factory, or of the function that it wraps."""
        source = Import.of(factory)
        code = getattr(inspect.unwrap(factory), "__code__", None)
        line = getattr(code, "co_firstlineno", None)
        return cls(source, getattr(factory, "__qualname__", repr(factory)), line, source.digest())

    def again(self, before: Definition) -> bool:
        """Whether that was this function, whose notebook's cell or whose file was run again since.

        Where the file has not changed, two lines are two functions.
        """
        if (self.source, self.name) != (before.source, before.name):
            return False
        return self.source.file is None or self.code != before.code or self.line == before.line

    def __str__(self) -> str:
        where = self.source.file or self.source.module
        return f"{self.name} in {where}{f', line {self.line}' if self.line else ''}"


def import_file(path: Path) -> Import:
    """Import a Python file that a person named, under a name that follows from its path.

    What lies beside it can be imported by it. A file that has changed since is imported anew. Raises
    UsageError for a file that is not there or that fails.
    """
    path = path.resolve()
    name = _module_name(path)
    _load(path, name)
    return Import(name, str(path))


def digest_of(code: bytes) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(code).hexdigest()[:16]


_loaded: dict[str, str] = {}
"""The digest of each file that was imported, by module."""


def _module_name(path: Path) -> str:
    return f"{path.stem}_{digest_of(str(path.resolve()).encode())[:8]}"


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"cannot import {path}: expected a Python file, such as rewards.py")
    digest = digest_of(path.read_bytes())
    if name in sys.modules and _loaded.get(name) == digest:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    loaded = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        if not isinstance(error, Exception):
            raise
        raise UsageError(f"importing {path} failed: {describe_error(error)}") from error
    _loaded[name] = digest
    return loaded
