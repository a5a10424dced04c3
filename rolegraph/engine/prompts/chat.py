"""Conversion from a chat to prompt tokens and from response tokens to an answer, in one model's chat format.

Only the chat template writes markers: the same characters in the text of a message are ordinary text
(`markers.py`). The caller gives the tokenizer. This file does not know providers, the network or sampling.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby
from os.path import commonprefix
from typing import Any, NamedTuple, Protocol

from jinja2 import TemplateError

from rolegraph.engine.errors import FOREIGN_ERRORS, ModelError, UsageError, describe_error, panics_as_errors
from rolegraph.engine.json_values import rewritten
from rolegraph.engine.limits.answers import EPISODE_SIZE
from rolegraph.engine.plugins import plugin, plugin_names
from rolegraph.engine.prompts.call_forms import FORMS, IN_MESSAGES, CallForm, CallSyntax, call_syntax
from rolegraph.engine.prompts.markers import (
    Markers,
    Outline,
    Placeholders,
    renamed,
    unless_harmless,
)
from rolegraph.engine.prompts.tools import (
    TOOLS_TEXT,
    answer_message,
    call_entry,
    calls_of,
    described,
    in_messages,
)
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function, ToolCall
from rolegraph.engine.vocabulary.tool import never_called

OPEN = "<think>"
CLOSE = "</think>"
_PROBE = "rolegraph-probe"
_PROBE_ARGUMENTS = {"a": 1}
_PROBE_WRITTEN = r'\{\s*"a"\s*:\s*1\s*\}'
"""Pattern of the probe's arguments as JSON."""
_SAMPLE_TURNS = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
_PROBED = Function(_PROBE, "", {"type": "object", "properties": {"a": {"type": "integer"}}}, never_called)
_ENDS_A_CALL = "<|eom_id|>"
"""Token that ends a Llama turn with tool calls."""
_RENDERS_KEPT = 1024
_logger = logging.getLogger(__name__)

_Turns = list[dict[str, Any]]
"""Messages in the form that chat templates take."""


class Tokenizer(Protocol):
    """Methods of a `transformers` tokenizer that this package calls."""

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-text token."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, object]:
        """Added tokens by id, such as the markers of turns."""
        ...

    def get_vocab(self) -> Mapping[str, int]:
        """Return the id of each token by its text."""
        ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Render a chat that offers `tools` as text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        """Return the text of token ids."""
        ...


class ChatPrefix(NamedTuple):
    """Beginning of a chat whose exact tokens are known; the last message is the model's."""

    ids: Sequence[int]
    """Token ids of the prompt and of the sampled response."""
    messages: int
    """Number of messages that `ids` encode."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Chat rendered by a model's template and encoded as token ids."""

    ids: tuple[int, ...]
    thinking: bool
    """True where the template has already opened a `<think>` block."""


class ChatFormat:
    """Chat format of one model.

    Args:
        tokenizer: The model's tokenizer, with its chat template.
        name: The model's name, for messages.
    """

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self._has_warned = False
        try:
            self._opening, self._ending = self._around_answer()
            """Texts that the template writes before an answer, behind the prompt, and after it."""
            form, self._sample_answer = self._found_form
            template = str(getattr(tokenizer, "chat_template", "")) + TOOLS_TEXT * form.in_messages
            self._markers = Markers(tokenizer.added_tokens_decoder, self._sample_chat, template)
            self.end_ids = (*dict.fromkeys((*_end_of_turn_ids(tokenizer, self._ending), *form.ends)),)
            """Token ids that end the model's turn, the template's own first."""
            self.end_texts = tuple(self._decode([token]) for token in self.end_ids)
        except ModelError as error:
            raise UsageError(f"Cannot chat with {name!r}: {error}") from error
        # The instances of a role and the K rollouts of a task often have the same prompt.
        self._render = lru_cache(maxsize=_RENDERS_KEPT)(self._render_whole)
        self._outline = lru_cache(maxsize=_RENDERS_KEPT)(self._outline_of)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Function] = ()) -> TokenizedPrompt:
        """Render messages and the opening of the model's turn; raises ModelError if the template fails."""
        return self._render(json.dumps([messages, described(tools)]))

    def pieces(self, ids: Sequence[int]) -> list[tuple[str, bool]]:
        """Split tokens into (text, True for an added token, such as the marker of a turn)."""
        added_tokens = self._tokenizer.added_tokens_decoder
        pieces: list[tuple[str, bool]] = []
        for is_special, group in groupby(ids, lambda token: token in added_tokens):
            tokens = [*group]
            runs = [[token] for token in tokens] if is_special else [tokens]
            pieces += [(self._decode(run), is_special) for run in runs]
        return pieces

    def extended(
        self, continued: ChatPrefix, messages: Sequence[Message], tools: Sequence[Function] = ()
    ) -> TokenizedPrompt:
        """Render a chat whose first messages are already tokens: those tokens stay, only later messages are
        encoded.

        Some templates rewrite earlier turns when more follow, or drop their reasoning. Then the whole chat is
        rendered again, and the prompt does not start with `continued`.
        """
        added_text = self._added(continued, messages, described(tools))
        if added_text is None:
            return self.prompt(messages, tools)
        return TokenizedPrompt((*continued.ids, *self._encode(added_text)), thinking=self._opens(added_text))

    def answer(self, ids: Sequence[int], *, stop: Sequence[str], thinking: bool) -> tuple[str, str]:
        """Decode response `ids`; return `(thought, text)` without the end token or the stop text."""
        answer_ids = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return split_reasoning(cut_at_stop(self._decode(answer_ids), stop), opened=thinking)

    def strange_tokens(self, ids: Sequence[int], text: str) -> tuple[str, ...]:
        """Return the special tokens that a model sampled inside its answer and that its final `text`
        contains.

        Tokens that the template writes before an answer, and tags of reasoning, are not among them.
        """
        answer_ids = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return tuple(marker for marker in self._markers.strange(answer_ids, self._opening) if marker in text)

    def calls(self, text: str, tools: Sequence[Function]) -> tuple[str, Sequence[ToolCall]]:
        """Return (text without calls, calls of `tools`) of an answer."""
        return self.call_form.find(text, tools) if tools else (text, ())

    def turn(self, text: str) -> tuple[int, ...]:
        """Return the tokens of an assistant's answer that the model did not sample, with the end-of-turn
        token."""
        return (*self.text_ids(text), *self.end_ids[:1])

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the tokens of an answer outside of a chat. Its markers of tool calls become special tokens,
        other markers plain text."""
        return self._encode(self._markers.named(text, among=self._sample_answer))

    def same_tokens(self, other: ChatFormat) -> bool:
        """Return True if both tokenizers have the same vocabulary, so that a token id means the same text in
        both."""
        return self._tokenizer.get_vocab() == other._tokenizer.get_vocab()

    def _render_whole(self, chat: str) -> TokenizedPrompt:
        """Render and encode a chat; `chat` is JSON of messages and tools, which can be a key of the cache."""
        messages, tools = json.loads(chat)
        try:
            text = self._named(messages, tools, add_generation_prompt=True)
        except TemplateError as error:
            raise ModelError(f"The chat template of {self._name} refuses these messages: {error}") from error
        return TokenizedPrompt(self._encode(text), thinking=self._opens(text))

    def _added(
        self, continued: ChatPrefix, messages: Sequence[Message], tools: list[dict[str, Any]]
    ) -> str | None:
        """Return the rendered text of the messages after `continued`, with names in place of the template's
        markers.

        Return None if the template would change the messages of `continued`.
        """
        last_message = continued.messages - 1
        try:
            asked_chat = self._named(messages[:last_message], tools, add_generation_prompt=True)
            answered = self._named(messages[: last_message + 1], tools, add_generation_prompt=False)
            whole = self._named(messages, tools, add_generation_prompt=True)
        except TemplateError:
            return None
        parts = [
            self._markers.escaped_tags(str(messages[last_message].get(part, "")).strip())
            for part in ("reasoning", "content")
        ]
        ending = self._ending
        named_ending = self._markers.named(ending)
        if not (
            answered.startswith(asked_chat) and answered.endswith(named_ending) and whole.startswith(answered)
        ):
            return None
        if not all(part in answered[len(asked_chat) :] for part in parts):
            return None
        if self.end_ids and continued.ids[-1] == self.end_ids[0]:
            ending = ending.removeprefix(self.end_texts[0])
        return self._markers.named(ending) + whole[len(answered) :]

    def _named(self, messages: Sequence[Message], tools: _Turns, *, add_generation_prompt: bool) -> str:
        """Render a chat, with names in place of the markers that the template itself writes.

        The names keep these markers distinct from markers that a message spells.

        Raises:
            TemplateError: The template refuses the messages.
            ModelError: The template makes markers of a text without any.
        """
        render = partial(self._text, add_generation_prompt=add_generation_prompt)
        placeholders = Placeholders()
        turns, shown_tools = _turns(messages, placeholders), rewritten(tools, unless_harmless(placeholders))
        outline = self._outline(json.dumps([turns, shown_tools]), add_generation_prompt)
        text, texts = render(_turns(messages), tools), placeholders.texts
        if outline is not None and (named_text := outline.named(text, texts, self._markers)) is not None:
            return named_text
        # The template changes texts, so that they cannot be found in the chat.
        if any(self._markers.escaped(part) != part for part in texts):
            self._warn_of_escapes("has a chat template that changes texts")
            write = self._markers.escaped
            text = render(_turns(messages, write), rewritten(tools, write))
        if outline is not None and self._markers.counts(text) - self._markers.counts(outline.template_text):
            raise ModelError(f"The chat template of {self._name} makes special tokens of a message's text.")
        return self._markers.named(text)

    def _outline_of(self, chat: str, add_generation_prompt: bool) -> Outline | None:
        """Render a chat (JSON of turns with placeholders, and tools) to an Outline; None where the template
        fails."""
        turns, tools = json.loads(chat)
        try:
            return Outline.of(self._text(turns, tools, add_generation_prompt=add_generation_prompt))
        except TemplateError:
            return None

    def _encode(self, named: str) -> tuple[int, ...]:
        """Return the token ids of a text in which names stand for markers.

        Each name becomes its marker's token; a marker that the text spells becomes plain text.
        """
        ids = encode(self._tokenizer, self._markers.plain(named))
        if self._markers.among(ids) == self._markers.named_ids(named):
            return ids
        if self._renamed is None:
            self._warn_of_escapes("has no tokenizer.json")
            return encode(self._tokenizer, self._markers.plain(self._markers.escaped(named)))
        tokenizer, own_ids = self._renamed
        return tuple(own_ids.get(id, id) for id in encode(tokenizer, named))

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, Mapping[int, int]] | None:
        """(Copy of the tokenizer in which special tokens have other texts, model's id by id of the copy where
        they differ). None without a tokenizer.json in which to rename them."""
        return renamed(self._tokenizer, self._markers.names)

    def _warn_of_escapes(self, reason: str) -> None:
        """Log a warning, once per chat format, that a space is put into markers that messages spell; `reason`
        says why."""
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s %s, so markers that a message spells get a space: <|im_end|> becomes < |im_end|>",
                self._name,
                reason,
            )

    @cached_property
    def call_form(self) -> CallForm:
        """Form in which the template writes tool calls; `IN_MESSAGES` if the template has no form that is
        known."""
        form, _ = self._found_form
        if form.in_messages:
            _logger.warning(
                "The chat template of %s has no list of tools, or an unknown form of their calls (the extra "
                "`renderers` knows more): the first message lists the tools, and a call is "
                "<tool_call>{…}</tool_call> in the answer's text",
                self._name,
            )
        return form

    @cached_property
    def _found_form(self) -> tuple[CallForm, str]:
        """(Form in which the chat template writes tool calls, a call that it rendered)."""
        for form in self._forms():
            try:
                answer = self._rendered_calls(form, 1)
            except TemplateError:  # no tools, or calls that look otherwise
                continue
            if answer is None:
                break  # a template without tools
            call = ToolCall(_PROBE, _PROBE_ARGUMENTS, form.ids(_PROBE, 1) if form.ids else "")
            if form.find(answer, [_PROBED])[1] == (call,):
                return form, answer
        return IN_MESSAGES, TOOLS_TEXT

    def _rendered_calls(self, form: CallForm, count: int) -> str | None:
        """Render an answer with `count` calls of the probe; None if the template does not list its tools.

        Raises:
            TemplateError: The template refuses the tools or the calls.
        """
        ids = [form.ids(_PROBE, ordinal) if form.ids else "" for ordinal in range(1, count + 1)]
        calls = [ToolCall(_PROBE, _PROBE_ARGUMENTS, id) for id in ids]
        turns = _turns([{"role": "user", "content": "?"}, answer_message("", calls=calls)])
        render = partial(self._text, tools=described([_PROBED]), form=form)
        asked_text = render(turns[:1], add_generation_prompt=True)
        if _PROBE not in asked_text:
            return None
        answered_text = render(turns, add_generation_prompt=False)
        # A prompt may open a thought that the answer of an earlier turn does not have.
        shared = len(commonprefix([asked_text, answered_text]))  # noqa: RUF071  # of texts, not of paths
        return answered_text[shared:].removesuffix(self._ending)

    @cached_property
    def call_syntax(self) -> CallSyntax | None:
        """Texts around the name and the arguments of a call; None where arguments are not written as JSON."""
        form, answers = self.call_form, ["", ""]
        with suppress(TemplateError):
            for index in (0, 1):
                answer = self._rendered_calls(form, index + 1) or ""
                if len(form.find(answer, [_PROBED])[1]) == index + 1:
                    answers[index] = answer.rpartition(CLOSE)[2]  # without an empty thought
        return call_syntax(answers[0], answers[1], _PROBE, _PROBE_WRITTEN)

    def _forms(self) -> Iterator[CallForm]:
        """Yield the forms of calls to try: forms of this package, then forms of other packages."""
        yield from FORMS
        for name in plugin_names("call_forms"):
            yield from plugin("call_forms", name)(self._tokenizer)

    def _text(
        self, turns: _Turns, tools: _Turns, form: CallForm | None = None, *, add_generation_prompt: bool
    ) -> str:
        conversation = deepcopy(turns)  # a template may change its messages
        form = form or (self.call_form if tools else None)
        if form is not None and form.in_messages:
            conversation, tools = in_messages(conversation, tools), []
        if form is not None and form.text_arguments:
            for call in [call for turn in conversation for call in turn.get("tool_calls", ())]:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        options: dict[str, Any] = {"tools": tools} if tools else {}
        try:
            with panics_as_errors():
                text = self._tokenizer.apply_chat_template(
                    conversation, add_generation_prompt=add_generation_prompt, tokenize=False, **options
                )
        except TemplateError:
            raise
        except FOREIGN_ERRORS as error:  # a template may raise any, such as TypeError
            raise TemplateError(describe_error(error)) from error
        if len(text) > EPISODE_SIZE.most:
            raise TemplateError(EPISODE_SIZE.exceeded("the chat has"))
        return text

    def _around_answer(self) -> tuple[str, str]:
        """Return (text that the template writes between a prompt and its answer, text after the answer)."""
        text_before, probe, text_after = self._sample_chat.rpartition(_PROBE)
        if not probe:
            return "", ""
        try:
            asked_text = self._text(_SAMPLE_TURNS[:1], [], add_generation_prompt=True)
        except TemplateError:
            return "", text_after
        return text_before.removeprefix(asked_text) if text_before.startswith(asked_text) else "", text_after

    @cached_property
    def _sample_chat(self) -> str:
        """Rendered chat of a sample question and answer; empty where the template refuses it."""
        try:
            return self._text(_SAMPLE_TURNS, [], add_generation_prompt=False)
        except TemplateError:
            return ""  # the end-of-text token has to do

    def _opens(self, named: str) -> bool:
        """Return True if a rendered prompt ends inside a `<think>` block that the template opened."""
        return self._markers.plain(named).rstrip().endswith(OPEN)

    def _decode(self, ids: Sequence[int]) -> str:
        with _errors_of_tokenizer():
            return self._tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )


def split_reasoning(text: str, *, opened: bool = False) -> tuple[str, str]:
    """Split a text into `(thought, answer)`: the `<think>…</think>` block at its start, and the text after
    it.

    If the block is not closed, the answer is empty. A text without a block is returned unchanged as the
    answer.

    Args:
        text: A decoded response.
        opened: True where the prompt already opened the block.
    """
    body = text.lstrip()
    if body.startswith(OPEN):
        body = body.removeprefix(OPEN)
    elif not opened:
        return "", text
    thought, _, answer = body.partition(CLOSE)
    return thought.strip(), answer.lstrip()


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first occurrence of any of the `stop` texts."""
    stop_positions = [position for position in (text.find(mark) for mark in stop if mark) if position >= 0]
    return text[: min(stop_positions)] if stop_positions else text


def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
    """Return the token ids of a text; raises ModelError where the tokenizer fails."""
    with _errors_of_tokenizer():
        return tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens))


@contextmanager
def _errors_of_tokenizer() -> Generator[None]:
    """Convert any error of a tokenizer within a block to ModelError."""
    try:
        with panics_as_errors():
            yield
    except FOREIGN_ERRORS as error:
        raise ModelError(f"The model's tokenizer fails: {describe_error(error)}") from error


def _end_of_turn_ids(tokenizer: Tokenizer, ending: str) -> tuple[int, ...]:
    """Return the ids of the tokens that end an assistant's turn: the template's own first, then end-of-text.

    Some models have an end-of-text token that their template does not write.

    Args:
        tokenizer: The model's tokenizer.
        ending: Text that the template writes after an answer.
    """
    tokens_after = encode(tokenizer, ending)[:1]
    end_ids = [token for token in tokens_after if token in tokenizer.added_tokens_decoder]
    further_ids = (tokenizer.eos_token_id, tokenizer.get_vocab().get(_ENDS_A_CALL))
    return tuple(dict.fromkeys([*end_ids, *(end for end in further_ids if end is not None)]))


def _turns(messages: Sequence[Message], write: Callable[[str], str] = str) -> _Turns:
    """Convert messages for a chat template: calls' arguments as mappings, reasoning in a `<think>` block.

    Args:
        messages: The messages.
        write: Function from a text of a message to the text in its turn.
    """
    return [_turn(message, write) for message in messages]


def _turn(message: Message, write: Callable[[str], str]) -> dict[str, Any]:
    write_name = unless_harmless(write)
    writers = {"role": write_name, "content": write, "name": write_name, "tool_call_id": write_name}
    turn: dict[str, Any] = {key: one(message[key]) for key, one in writers.items() if key in message}
    # A malformed call is in the content as text.
    if calls := [call_entry(call, call.arguments) for call in calls_of(message) if call.name]:
        turn["tool_calls"] = rewritten(calls, write_name)
    if message.get("reasoning"):
        turn["content"] = f"{OPEN}\n{write(message['reasoning'])}\n{CLOSE}\n\n{turn['content']}"
    return turn
