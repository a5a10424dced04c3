"""Modules that must be imported so that registered names are known, in this process and in others.

Built-in items and those of installed packages are found by entry points. An item that a user's own file
registers is known once that file is imported; an `Import` identifies the file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from rolegraph.engine.errors import FOREIGN_ERRORS, UsageError, describe_error

P = ParamSpec("P")
T = TypeVar("T")


class Import(NamedTuple):
    """Module, and the source file that defines it; None for a module without a file."""

    module: str
    file: str | None

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Import:
        """Return the module that defines a factory."""
        file = getattr(sys.modules.get(factory.__module__), "__file__", None)
        path = Path(file).resolve() if file else None
        return cls(factory.__module__, str(path) if path and path.is_file() else None)

    def ensure(self) -> ModuleType:
        """Import the module, unless this process has already imported it; return it.

        Raises:
            UsageError: The import fails.
        """
        if self.module in sys.modules and self.module != "__main__":
            return sys.modules[self.module]
        if self.file is None or "." in self.module:
            try:
                return importlib.import_module(self.module)
            except FOREIGN_ERRORS as error:  # importing it runs its code
                raise UsageError(f"cannot import {self.module}: {describe_error(error)}") from error
        path = Path(self.file)
        return _load(path, _module_name(path) if self.module == "__main__" else self.module)

    def digest(self) -> str:
        """Return the digest of the file's bytes, without the modules that the file imports."""
        return digest_of(Path(self.file).read_bytes()) if self.file else "unknown"


class Definition(NamedTuple):
    """Place of a registered function in its source, at the time of its registration."""

    source: Import
    name: str
    line: int | None
    file_digest: str
    """Digest of the source file, to detect that the file was edited."""

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Definition:
        """Return the place of a factory, or of the function that it wraps."""
        source = Import.of(factory)
        code = getattr(inspect.unwrap(factory), "__code__", None)
        line = getattr(code, "co_firstlineno", None)
        return cls(source, getattr(factory, "__qualname__", repr(factory)), line, source.digest())

    def replaces(self, before: Definition) -> bool:
        """Return True if this definition is a reloaded version of `before`, from a changed file or a rerun
        cell.

        In an unchanged file, functions at two lines are two functions.
        """
        if (self.source, self.name) != (before.source, before.name):
            return False
        return self.source.file is None or self.file_digest != before.file_digest or self.line == before.line

    def __str__(self) -> str:
        location = self.source.file or self.source.module
        return f"{self.name} in {location}{f', line {self.line}' if self.line else ''}"


def require_library(name: str, extra: str, subject: str) -> None:
    """Check that a library of an extra is installed, without importing it.

    Args:
        name: The library's module.
        extra: The extra of Rolegraph that installs it.
        subject: Part of Rolegraph that needs the library, in the plural, for the message.

    Raises:
        UsageError: The library is not installed.
    """
    if importlib.util.find_spec(name) is None:
        library = name.replace("_", "-")
        raise UsageError(f"{subject} need the library {library}: pip install 'rolegraph[{extra}]'")


@dataclass(frozen=True)
class Loaded(Generic[P, T]):
    """Picklable wrapper of a function: unpickling it imports `library` in the worker, before a call's limits
    begin."""

    function: Callable[P, T]
    library: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the wrapped function."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_with, (self.library, self.function)


def _load_with(library: str, function: Callable[P, T]) -> Loaded[P, T]:
    importlib.import_module(library)
    return Loaded(function, library)


def import_file(path: Path) -> Import:
    """Import a user's Python file under a module name derived from its path.

    A file that has changed since its last import is imported again. The file may import its neighbours: its
    folder is appended to the module path.

    Args:
        path: The file.

    Raises:
        UsageError: The file does not exist, or importing it fails.
    """
    path = path.resolve()
    name = _module_name(path)
    _load(path, name)
    return Import(name, str(path))


def digest_of(code: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 hash of some bytes."""
    return hashlib.sha256(code).hexdigest()[:16]


_loaded: dict[str, str] = {}
"""Digest of each file that `_load` has imported, by the module's name."""


def _module_name(path: Path) -> str:
    return f"{path.stem}_{digest_of(os.fsencode(path.resolve()))[:8]}"


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"cannot import {path}: expected a Python file, such as rewards.py")
    digest = digest_of(path.read_bytes())
    module_before = sys.modules.get(name)
    if module_before is not None and _loaded.get(name) == digest:
        return module_before
    # Appended: a neighbour called random.py or types.py must not replace the standard library's.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    loaded_module = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded_module
    arguments, sys.argv = sys.argv, [str(path), *sys.argv[1:]]  # whose usage argparse prints
    try:
        spec.loader.exec_module(loaded_module)
    except BaseException as error:
        del sys.modules[name]
        if module_before is not None:
            sys.modules[name] = module_before
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"while {path} was imported")
            raise
        reason = describe_error(error)
        if isinstance(error, SystemExit):
            reason = (
                f"it ended the process ({reason}); read arguments below `if __name__ == '__main__':` only"
            )
        raise UsageError(f"importing {path} failed: {reason}") from error
    finally:
        sys.argv = arguments
    _loaded[name] = digest
    return loaded_module
