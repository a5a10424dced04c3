"""Gaps of Monty: whether a program may have failed because Monty lacks a part of Python.

If in doubt, the interpreter is blamed, so that no right program earns 0. No part of a program runs here.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
import threading
import warnings
from functools import cache
from operator import attrgetter

MODULES = frozenset(
    "asyncio base64 binascii bisect collections copy csv dataclasses datetime decimal functools hashlib "
    "itertools json math os pathlib posixpath random re sys time tomllib typing unicodedata".split()
)
"""Modules of the standard library that Monty has."""
SILENT = frozenset(
    "bool format getattribute setattr delattr delitem new missing del init_subclass "
    "class_getitem set_name".split()
)
"""Special methods, without their underscores, that Monty ignores in a class without an error."""
LOUD = frozenset(
    "lt le gt ge len abs reversed bytes getattr iadd isub imul itruediv ifloordiv imod ipow iand ior ixor "
    "ilshift irshift imatmul".split()
)
"""Special methods, without their underscores, for which Monty raises an error that names the class."""
WHOLE = frozenset("sum list tuple set frozenset dict sorted min max join Counter deque".split())
"""Functions that read all items of a generator expression; Monty makes every generator expression a list at
once."""
LAZY = frozenset("map filter zip enumerate reversed".split())
"""Functions whose results are iterators in CPython, and lists in Monty."""


def needs_cpython(error: str, code: str) -> bool:
    """Return True if a program's error in Monty may come from a part of Python that Monty lacks, so that
    CPython should run the program.

    Args:
        error: Message of the SandboxError, such as `AttributeError: type object 'str' has … (line 2)`.
        code: The program, with the test that it failed.
    """
    kind, _, text = error.partition(": ")
    if kind == "NotImplementedError" and "not yet support" in text:  # syntax newer than this Python, too
        return True
    tree = parse_program(code, strictly=kind == "SyntaxError")
    if tree is None:
        return False
    line = re.search(r" \(line (\d+)\)$", error)
    return (
        _lacks(kind, text, tree)
        or any(_is_unlike(node, text) for node in ast.walk(tree))
        or (kind != "AssertionError" and _reads_ahead(tree, int(line[1]) if line else None))
    )


_PARSING = threading.Lock()
"""Lock for `catch_warnings`, which changes the filters of all threads."""


def parse_program(code: str, *, strictly: bool = False) -> ast.Module | None:
    """Parse a program; None if it is not valid Python.

    Args:
        code: The program.
        strictly: True to refuse also programs that CPython parses but does not compile, such as a `return`
            outside a function.
    """
    try:
        with _PARSING, warnings.catch_warnings(action="ignore"):
            if strictly:
                compile(code, "program", "exec", dont_inherit=True)
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _lacks(kind: str, text: str, tree: ast.Module) -> bool:
    """Return True if an error comes from a name, option or syntax of CPython that Monty lacks."""
    match kind, re.findall(r"'([^']*)'", text):
        case "RuntimeError", _:
            return "not supported in this environment" in text
        case "SyntaxError", _:  # a program's own `eval` may have raised it
            return not {"eval", "exec"} & _called(tree)
        case "ModuleNotFoundError", [module, *_]:
            return module.partition(".")[0] in sys.stdlib_module_names
        case "ImportError", [name, module, *_]:
            return module in sys.stdlib_module_names and (module not in MODULES or _has(module, name))
        case "NameError", [name, *_]:
            return hasattr(builtins, name)
        case "AttributeError", [owner, name, *_]:
            return _lacks_attribute(owner, name, tree)
        case "TypeError", ["list", *_] if text.startswith("'list' object is not an iterator"):
            return not LAZY.isdisjoint(_called(tree)) or any(
                isinstance(node, ast.GeneratorExp) for node in ast.walk(tree)
            )
        case "TypeError", ["list" | "tuple" | "set" | "range", *_]:
            return "object to bytes" in text
        case _:
            return False


def _lacks_attribute(owner: str, name: str, tree: ast.Module) -> bool:
    """Return True if CPython's type or module `owner` has the attribute `name`, or if the program may have
    set it."""
    if owner == "function":
        return any(
            isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
            for node in ast.walk(tree)
        )
    if any(isinstance(node, ast.ClassDef) and node.name == owner for node in ast.walk(tree)):
        return hasattr(object, name) or name in ("__dict__", "__module__", "__mro__", "__bases__")
    module, _, type_name = owner.rpartition(".")
    return _has(owner, name) if owner in MODULES else _has(module or "builtins", type_name, name)


@cache
def _has(module: str, *path: str) -> bool:
    """Return True if a module that both CPython and Monty have has, in CPython, the attribute at a dotted
    path."""
    if module not in MODULES | {"builtins"}:
        return False
    try:
        attrgetter(".".join(path))(importlib.import_module(module))
    except AttributeError:
        return False
    return True


def _is_unlike(node: ast.AST, text: str) -> bool:
    """Return True if a node of a program uses a part of Python that Monty lacks or ignores, given an error's
    text."""
    match node:
        case ast.ClassDef():
            missing_methods = SILENT | LOUD if f"'{node.name}'" in text else SILENT
            methods = (statement.name for statement in node.body if isinstance(statement, ast.FunctionDef))
            return any(name.startswith("__") and name[2:-2] in missing_methods for name in methods)
        case ast.Import():
            return any(_is_missing(alias.name) for alias in node.names)
        case ast.ImportFrom(module=str(module)):
            return _is_missing(module)
        case _:
            return False


def _is_missing(module: str) -> bool:
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names and root not in MODULES | {"__future__"}


def _reads_ahead(tree: ast.Module, line: int | None) -> bool:
    """Return True if an error may come from items that Monty computed ahead and CPython would never compute.

    Args:
        tree: The program.
        line: The line that failed; None for a program that exceeded a limit.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _callee(node) not in WHOLE:
            for argument in node.args:
                lines = range(argument.lineno, (argument.end_lineno or argument.lineno) + 1)
                is_lazy = isinstance(argument, ast.GeneratorExp) or _callee(argument) in LAZY
                if is_lazy and (line is None or line in lines):
                    return True
    return False


def _called(tree: ast.Module) -> set[str]:
    """Return the names of the functions that a program calls."""
    return {_callee(node) for node in ast.walk(tree)}


def _callee(node: ast.AST) -> str:
    """Return the name of the function that a node calls; empty for a node that is no call."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
