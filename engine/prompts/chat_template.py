"""Chat template of a model's folder, rendered in a process with limits, since a stranger may have written it.

The sandbox of `transformers` keeps a template from Python's attributes; it bounds neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jinja2 import TemplateError

from rolegraph.engine.limits.answers import EPISODE_SIZE
from rolegraph.engine.vocabulary.foreign import FOREIGN_ERRORS, describe_error
from rolegraph.engine.vocabulary.isolation import CallLimit, shared_isolation

SECONDS = 10.0
"""Time limit of one rendering; an honest one takes milliseconds."""


class ChatTemplate:
    """Chat template with limits; after it has exceeded one, every chat fails at once.

    Args:
        render: The function `render_jinja_template` of `transformers`.
        source: Returns the template's text for a chat with these tools, or without.
        variables: Names that the template may use, such as `eos_token`.
    """

    def __init__(
        self,
        render: Callable[..., Any],
        source: Callable[[list[dict[str, Any]] | None], str],
        variables: Mapping[str, Any],
    ) -> None:
        self._render, self._source, self._variables = render, source, dict(variables)
        self._fault: str | None = None

    def __call__(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        tokenize: bool = False,
        **options: Any,
    ) -> str:
        """Render a chat as text.

        Args:
            conversation: The messages.
            tools: The tools on offer.
            tokenize: Always False; part of the signature of `transformers`.
            options: Other variables of the template, such as `add_generation_prompt`.

        Raises:
            TemplateError: The template refuses the chat, fails or exceeds a limit.
        """
        if self._fault is not None:
            raise TemplateError(self._fault)
        written = partial(
            self._render, [conversation], tools, None, self._source(tools), **self._variables, **options
        )
        try:
            return shared_isolation().run_blocking(_first, written, limit=SECONDS)
        except TemplateError:
            raise
        except CallLimit as error:
            self._fault = f"it {error}"
            raise TemplateError(self._fault) from None
        except FOREIGN_ERRORS as error:
            raise TemplateError(describe_error(error)) from None


def _first(written: Callable[[], Any]) -> str:
    """Return the only chat; in the worker, so that a text of a gigabyte stays there."""
    (text,), _ = written()
    if len(text) > EPISODE_SIZE.most:
        raise TemplateError(EPISODE_SIZE.exceeded("the chat has"))
    return text
