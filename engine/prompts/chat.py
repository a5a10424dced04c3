"""A chat to prompt tokens, and response tokens to an answer, in one model's own chat format.

The tokenizer comes from the caller. This file knows no provider, no network and no sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from jinja2 import TemplateError

from engine.errors import ModelError
from engine.records import Message

OPEN = "<think>"
CLOSE = "</think>"
_PROBE = "rolegraph-probe"
_RENDERS_KEPT = 1024


class Tokenizer(Protocol):
    """What is used of a `transformers` tokenizer."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, object]:
        """The tokens beside the ones learnt from text, by id: markers of turns among them."""
        ...

    def get_vocab(self) -> Mapping[str, int]:
        """Every token's text and id."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        """The text of a chat."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text."""
        ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        """The text of tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered chat: its token ids, and whether the template has already opened a block of reasoning."""

    ids: tuple[int, ...]
    thinking: bool


class ChatFormat:
    """How one model writes a chat as tokens. `name` is for messages to the person."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self.end_ids = end_of_turn_ids(tokenizer)
        """Token ids that end the model's turn; the template's own comes first."""
        self.end_texts = tuple(self._decode([token]) for token in self.end_ids)
        # Solvers of one task, and its K rollouts, ask the same thing.
        self._render = lru_cache(maxsize=_RENDERS_KEPT)(self._render_pairs)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Render `messages` and the opening of the model's turn; raises ModelError if the template cannot."""
        return self._render(tuple((message["role"], message["content"]) for message in messages))

    def answer(self, ids: Sequence[int], *, stop: Sequence[str], thinking: bool) -> tuple[str, str]:
        """`(thought, text)` of response `ids`, without the token or the stop text that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return split_reasoning(cut_at_stop(self._decode(kept), stop), opened=thinking)

    def turn(self, text: str) -> tuple[int, ...]:
        """The tokens of a turn that the model should give, with the one that ends it."""
        return (*self._tokenizer.encode(text, add_special_tokens=False), *self.end_ids[:1])

    def same_tokens(self, other: ChatFormat) -> bool:
        """Whether both models mean the same by every token id."""
        return self._tokenizer.get_vocab() == other._tokenizer.get_vocab()

    def _render_pairs(self, pairs: tuple[tuple[str, str], ...]) -> Prompt:
        try:
            text = _render_text(self._tokenizer, pairs, add_generation_prompt=True)
        except TemplateError as error:
            raise ModelError(f"The chat template of {self._name} refuses these messages: {error}") from error
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return Prompt(ids=tuple(ids), thinking=text.rstrip().endswith(OPEN))

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


def split_reasoning(text: str, *, opened: bool = False) -> tuple[str, str]:
    """`(thought, answer)`: the `<think>…</think>` block at the start, and the rest.

    `opened` says that the prompt already opened the block. A block that never closes leaves no answer. A
    text that starts with no block is all answer, to the letter.
    """
    body = text.lstrip()
    if body.startswith(OPEN):
        body = body.removeprefix(OPEN)
    elif not opened:
        return "", text
    thought, _, answer = body.partition(CLOSE)
    return thought.strip(), answer.lstrip()


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the `stop` texts."""
    ends = [at for at in (text.find(mark) for mark in stop if mark) if at >= 0]
    return text[: min(ends)] if ends else text


def end_of_turn_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What ends an assistant's turn: the added token that the template writes after it, then end-of-text.

    They differ for models whose end-of-text token is not the one that their template writes.
    """
    ids: list[int] = []
    try:
        text = _render_text(tokenizer, (("user", "?"), ("assistant", _PROBE)), add_generation_prompt=False)
    except TemplateError:
        text = ""  # a template with other roles: the end-of-text token has to do
    after = tokenizer.encode(text.rpartition(_PROBE)[2], add_special_tokens=False) if _PROBE in text else []
    if after and after[0] in tokenizer.added_tokens_decoder:
        ids.append(after[0])
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in ids:
        ids.append(tokenizer.eos_token_id)
    return tuple(ids)


def _render_text(
    tokenizer: Tokenizer, pairs: tuple[tuple[str, str], ...], *, add_generation_prompt: bool
) -> str:
    conversation = [{"role": role, "content": content} for role, content in pairs]
    return tokenizer.apply_chat_template(
        conversation, add_generation_prompt=add_generation_prompt, tokenize=False
    )
