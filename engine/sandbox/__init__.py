"""Where Python runs that a model wrote: no files, no network, no host; bounded time, memory and output."""

from engine.errors import SandboxError
from engine.sandbox.grading import run_tests
from engine.sandbox.python import Python, Ran

__all__ = ["Python", "Ran", "SandboxError", "run_tests"]
