"""Tokenizers with a renderer of the package as chat template: it writes the tokens of the model's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from renderers import config_from_name, create_renderer

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts.chat import ChatFormat
from rolegraph.local.launcher import BASE_MODEL

MOST_MARKERS = 100


class RenderedTokenizer:
    """The shipped model's tokenizer with a renderer in place of its chat template.

    Args:
        family: Name of the renderer.
    """

    chat_template = "a renderer"

    def __init__(self, family: str) -> None:
        self._tokenizer: Any = load_tokenizer(BASE_MODEL)
        self.renderer: Any = self._renderer(family)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the tokenizer."""
        return getattr(self._tokenizer, name)

    def _renderer(self, family: str) -> Any:
        """Make the renderer, with each marker that it misses as a token."""
        for _ in range(MOST_MARKERS):
            try:
                return create_renderer(self._tokenizer, config_from_name(family))
            except (AssertionError, ValueError) as error:
                missing = re.search(r"'([^']+)'", str(error))
                if missing is None:
                    raise
                self._tokenizer.add_tokens([missing[1]], special_tokens=True)
        raise AssertionError(f"{family} asks for over {MOST_MARKERS} markers")

    def ids(
        self,
        chat: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> tuple[int, ...]:
        """Return the tokens of a chat as the renderer writes it."""
        return tuple(self.renderer.render_ids(chat, tools=tools, add_generation_prompt=add_generation_prompt))

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Render a chat as text."""
        ids = self.ids(conversation, tools or [], add_generation_prompt=add_generation_prompt)
        return self._tokenizer.decode(ids, skip_special_tokens=False)


@cache
def chat_of(family: str) -> tuple[ChatFormat, RenderedTokenizer]:
    """Return the chat format of a family of models, and its tokenizer."""
    tokenizer = RenderedTokenizer(family)
    return ChatFormat(tokenizer, family), tokenizer
