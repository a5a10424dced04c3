"""Sandbox for Python programs that a model wrote: no files, no network; limited time, memory and output."""

from rolegraph.engine.errors import SandboxError, WorldError
from rolegraph.sandbox.grading import run_tests
from rolegraph.sandbox.python import ProgramResult, PythonSandbox, evaluate, require_interpreter

__all__ = [
    "ProgramResult",
    "PythonSandbox",
    "SandboxError",
    "WorldError",
    "evaluate",
    "require_interpreter",
    "run_tests",
]
