"""Where Python runs that a model wrote: no files, no network, no host; bounded time, memory and output."""

from engine.errors import SandboxError
from engine.sandbox.grading import run_tests
from engine.sandbox.process import require_monty
from engine.sandbox.python import Python, Ran, evaluate

__all__ = ["Python", "Ran", "SandboxError", "evaluate", "require_monty", "run_tests"]
