"""Sandbox for Python programs of a model: no files, no network; bounded time, memory and output."""

from rolegraph.engine.errors import SandboxError
from rolegraph.engine.sandbox.grading import run_tests
from rolegraph.engine.sandbox.process import require_monty
from rolegraph.engine.sandbox.python import ProgramResult, PythonSandbox, evaluate

__all__ = ["ProgramResult", "PythonSandbox", "SandboxError", "evaluate", "require_monty", "run_tests"]
