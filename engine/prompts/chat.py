"""A chat to prompt tokens, and response tokens to an answer, in one model's own chat format.

The tokenizer comes from the caller. This file knows no provider, no network and no sampling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from jinja2 import TemplateError

from rolegraph.engine.errors import ModelError
from rolegraph.engine.prompts.call_forms import FORMS, CallForm, id_of
from rolegraph.engine.prompts.tools import answer_message, calls_of, described
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function, ToolCall

OPEN = "<think>"
CLOSE = "</think>"
_PROBE = "rolegraph-probe"
_KNOWN = ", ".join(dict.fromkeys(form.name for form in FORMS))
_ENDS_A_CALL = "<|eom_id|>"
"""How a turn of Llama's may end that calls a tool."""
_RENDERS_KEPT = 1024

_Turns = tuple[tuple[str, ...], ...]
"""Messages that a cache can know: role and content, and what else there is as JSON."""


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
        self,
        conversation: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The text of a chat, in which the model is told of `tools`."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text."""
        ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        """The text of tokens."""
        ...


class ChatPrefix(NamedTuple):
    """What a chat goes on from: its first `messages`, the last of them the model's, are `ids`."""

    ids: Sequence[int]
    """Prompt and sampled response, token for token."""
    messages: int


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
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
        self._render = lru_cache(maxsize=_RENDERS_KEPT)(self._render_whole)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Function] = ()) -> TokenizedPrompt:
        """Render `messages` and the opening of the model's turn; raises ModelError if the template cannot."""
        return self._render(tuple(map(_turn, messages)), self._told(tools) if tools else "")

    def pieces(self, ids: Sequence[int]) -> list[tuple[str, bool]]:
        """The text of tokens in parts, each with whether it is one of the tokens beside those learnt from
        text: a marker of a turn, say."""
        added = self._tokenizer.added_tokens_decoder
        parts: list[tuple[str, bool]] = []
        for special, group in groupby(ids, lambda token: token in added):
            tokens = [*group]
            runs = [[token] for token in tokens] if special else [tokens]
            parts += [(self._decode(run), special) for run in runs]
        return parts

    def extended(
        self, continued: ChatPrefix, messages: Sequence[Message], tools: Sequence[Function] = ()
    ) -> TokenizedPrompt:
        """As `prompt`, but what the model has seen and said stays as it is, token for token.

        A template that writes an earlier turn otherwise once more follows, or leaves out its reasoning, has
        its way: then all is rendered anew, and the prompt begins otherwise than `continued`.
        """
        added = self._added(continued, messages, self._told(tools) if tools else "")
        if added is None:
            return self.prompt(messages, tools)
        ids = self._tokenizer.encode(added, add_special_tokens=False)
        return TokenizedPrompt((*continued.ids, *ids), thinking=_opens(added))

    def answer(self, ids: Sequence[int], *, stop: Sequence[str], thinking: bool) -> tuple[str, str]:
        """`(thought, text)` of response `ids`, without the token or the stop text that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return split_reasoning(cut_at_stop(self._decode(kept), stop), opened=thinking)

    def calls(self, text: str, tools: Sequence[Function]) -> tuple[str, Sequence[ToolCall]]:
        """What an answer says beside its calls of `tools`, and the calls; without tools it has none."""
        return self._form.find(text, tools) if tools and self._form else (text, ())

    def turn(self, text: str) -> tuple[int, ...]:
        """The tokens of a turn that the model should give, with the one that ends it."""
        return (*self._tokenizer.encode(text, add_special_tokens=False), *self.end_ids[:1])

    def same_tokens(self, other: ChatFormat) -> bool:
        """Whether both models mean the same by every token id."""
        return self._tokenizer.get_vocab() == other._tokenizer.get_vocab()

    def _render_whole(self, turns: _Turns, told: str) -> TokenizedPrompt:
        try:
            text = self._text(turns, told, add_generation_prompt=True)
        except TemplateError as error:
            raise ModelError(f"The chat template of {self._name} refuses these messages: {error}") from error
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return TokenizedPrompt(ids=tuple(ids), thinking=_opens(text))

    def _added(self, continued: ChatPrefix, messages: Sequence[Message], told: str) -> str | None:
        """What follows the response that ends `continued`; None where the template does not keep that."""
        turns, last = tuple(map(_turn, messages)), continued.messages - 1
        try:
            asked = self._text(turns[:last], told, add_generation_prompt=True)
            answered = self._text(turns[: last + 1], told, add_generation_prompt=False)
            whole = self._text(turns, told, add_generation_prompt=True)
        except TemplateError:
            return None
        said = [str(messages[last].get(part, "")).strip() for part in ("reasoning", "content")]
        ending = self._ending
        if not (answered.startswith(asked) and answered.endswith(ending) and whole.startswith(answered)):
            return None
        if not all(part in answered[len(asked) :] for part in said):
            return None
        if self.end_ids and continued.ids[-1] == self.end_ids[0]:
            ending = ending.removeprefix(self.end_texts[0])
        return ending + whole[len(answered) :]

    @cached_property
    def _ending(self) -> str:
        """What the template writes after an answer."""
        return _after_answer(self._tokenizer)

    def _told(self, tools: Sequence[Function]) -> str:
        """What the model is told of tools, as JSON; raises ModelError where the template cannot say it."""
        if self._form is None:
            raise ModelError(
                f"The chat template of {self._name} cannot say which tools there are, or not how they are "
                f"called: give the role a model whose template can, such as Qwen's (known are the forms of "
                f"{_KNOWN}), or one behind an OpenAI-compatible endpoint"
            )
        return json.dumps(described(tools))

    @cached_property
    def _form(self) -> CallForm | None:
        """The form in which a call comes back from the template's own text as it went in."""
        function = Function(
            _PROBE, "", {"type": "object", "properties": {"a": {"type": "integer"}}}, _unanswered
        )
        told = json.dumps(described([function]))
        for form in FORMS:
            call = ToolCall(_PROBE, {"a": 1}, id_of(1) if form.ids else "")
            turns = (("user", "?"), _turn(answer_message("", calls=[call])))
            render = partial(_render_text, self._tokenizer, tools=json.loads(told), form=form)
            try:
                asked = render(turns[:1], add_generation_prompt=True)
                answered = render(turns, add_generation_prompt=False)
            except (TemplateError, TypeError):  # no tools, or calls that look otherwise
                continue
            said = answered.removeprefix(asked).removesuffix(self._ending)
            if _PROBE in asked and form.find(said, [function])[1] == (call,):
                return form
        return None

    def _text(self, turns: _Turns, told: str, *, add_generation_prompt: bool) -> str:
        return _render_text(
            self._tokenizer,
            turns,
            add_generation_prompt=add_generation_prompt,
            tools=json.loads(told) if told else None,
            form=self._form if told else None,
        )

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
    after = tokenizer.encode(_after_answer(tokenizer), add_special_tokens=False)
    if after and after[0] in tokenizer.added_tokens_decoder:
        ids.append(after[0])
    for end in (tokenizer.eos_token_id, tokenizer.get_vocab().get(_ENDS_A_CALL)):
        if end is not None and end not in ids:
            ids.append(end)
    return tuple(ids)


def _after_answer(tokenizer: Tokenizer) -> str:
    """What the template writes after an assistant's turn."""
    try:
        text = _render_text(tokenizer, (("user", "?"), ("assistant", _PROBE)), add_generation_prompt=False)
    except TemplateError:
        return ""  # a template with other roles: the end-of-text token has to do
    return text.rpartition(_PROBE)[2] if _PROBE in text else ""


def _turn(message: Message) -> tuple[str, ...]:
    role, content = message["role"], message["content"]
    if len(message) == 2:
        return role, content
    more = {name: message[name] for name in ("name", "tool_call_id") if name in message}
    # The text of a call that cannot be read stands in the content.
    calls = [
        {
            **({"id": call.id} if call.id else {}),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls_of(message)
        if call.name
    ]
    if calls:
        more["tool_calls"] = calls
    if message.get("reasoning"):
        content = f"{OPEN}\n{message['reasoning']}\n{CLOSE}\n\n{content}"
    return (role, content, json.dumps(more)) if more else (role, content)


def _opens(text: str) -> bool:
    """Whether a prompt ends in a block of reasoning that it has opened."""
    return text.rstrip().endswith(OPEN)


async def _unanswered(arguments: Mapping[str, Any]) -> None:
    """What a function does that nobody calls."""


def _render_text(
    tokenizer: Tokenizer,
    turns: _Turns,
    *,
    add_generation_prompt: bool,
    tools: list[dict[str, Any]] | None = None,
    form: CallForm | None = None,
) -> str:
    conversation: list[dict[str, Any]] = []
    for role, content, *more in turns:
        conversation.append({"role": role, "content": content, **(json.loads(more[0]) if more else {})})
    if form is not None and form.text_arguments:
        for call in [call for message in conversation for call in message.get("tool_calls", ())]:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    options: dict[str, Any] = {"tools": tools} if tools else {}
    return tokenizer.apply_chat_template(
        conversation, add_generation_prompt=add_generation_prompt, tokenize=False, **options
    )
