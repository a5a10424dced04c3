"""The context of one rendering, which filters, tests and operations are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment
from jinja2.nodes import EvalContext
from jinja2.sandbox import safe_range
from jinja2.utils import missing

from rolegraph.engine.prompts.meter import Meter

GLOBALS: dict[str, Any] = {"range": safe_range}
"""What a prompt may call."""


class RenderScope(Meter):
    """What one rendering sees and may spend: Jinja2's Context, with a meter on it, less the inheritance and
    exports that prompts cannot use."""

    __slots__ = ("exported_vars", "vars")
    environment: Environment
    eval_ctx: EvalContext
    name = None

    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__()
        self.vars = {**GLOBALS, **variables}
        self.exported_vars: set[str] = set()

    def resolve_or_missing(self, key: str) -> Any:
        """A variable's value, or Jinja2's mark for one that is not there."""
        return self.vars.get(key, missing)

    def call(
        self, function: Any, *args: Any, _loop_vars: Any = None, _block_vars: Any = None, **kwargs: Any
    ) -> Any:
        """Call what the sandbox lets through, without the variables that Jinja2 adds in a loop."""
        return function(*args, **kwargs)
