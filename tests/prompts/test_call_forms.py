"""Tests of tool calls in the syntax of each family of chat templates."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts.call_forms import FORMS, CallForm
from rolegraph.engine.prompts.chat import ChatFormat
from rolegraph.engine.prompts.tools import answer_message, result_message
from rolegraph.engine.vocabulary import Function, ToolCall
from rolegraph.local.launcher import BASE_MODEL
from tests.prompts.templates import CALLS_BY_FORM


async def _unanswered(arguments: Mapping[str, Any]) -> None: ...


SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}, "digits": {"type": "integer"}}}
TOOL = Function("calculator", "What an expression comes to.", SCHEMA, _unanswered)
ARGUMENTS = {"expression": "3 + 4", "digits": 2}


def chat_of(family: str) -> ChatFormat:
    tokenizer: Any = load_tokenizer(BASE_MODEL)
    tokenizer.chat_template = CALLS_BY_FORM[family]
    return ChatFormat(tokenizer, family)


WRITTEN = {
    "Hermes": '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 4", "digits": 2}}\n'
    "</tool_call>",
    "Qwen Coder": "<tool_call>\n<function=calculator>\n<parameter=expression>\n3 + 4\n</parameter>\n"
    "<parameter=digits>\n2\n</parameter>\n</function>\n</tool_call>",
    "Llama": '{"name": "calculator", "parameters": {"expression": "3 + 4", "digits": 2}}',
    "Mistral": '[TOOL_CALLS] [{"name": "calculator", "arguments": {"expression": "3 + 4", "digits": 2}}]',
    "Mistral, later": '[TOOL_CALLS]calculator[ARGS]{"expression": "3 + 4", "digits": 2}',
    "DeepSeek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>calculator<｜tool▁sep｜>"
    '{"expression": "3 + 4", "digits": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
}
"""Text of a call as a model of each family writes it."""


@pytest.mark.parametrize("family", WRITTEN)
def test_a_call_is_read_and_shown_again_in_the_model_s_own_form(family: str) -> None:
    chat = chat_of(family)
    text, (call,) = chat.calls(WRITTEN[family], [TOOL])
    assert (text, call.name, call.arguments) == ("", "calculator", ARGUMENTS)
    asked = [{"role": "user", "content": "?"}, answer_message(text, calls=[call]), result_message(call, "7")]
    shown = "".join(text for text, _ in chat.pieces(chat.prompt(asked, [TOOL]).ids))
    assert "What an expression comes to." in shown and '"7"' in shown
    answered = shown.split("SAID|")[1].split("ENDED")[0]
    assert chat.calls(answered, [TOOL])[1] == (call,), "it reads its own call as it was"


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("Hermes", "<tool_call>calculator 3 + 4</tool_call>"),
        ("Qwen Coder", "<tool_call><function=calculator></tool_call>"),
        ("Llama", '{"name": "calculator", "parameters": {"expression": '),
        ("Mistral", "[TOOL_CALLS] [3]"),
        ("Mistral, later", "[TOOL_CALLS]calculator[ARGS]3 + 4"),
        ("DeepSeek", "<｜tool▁call▁begin｜>calculator<｜tool▁sep｜>3 + 4<｜tool▁call▁end｜>"),
    ],
)
def test_a_call_that_cannot_be_read_is_one_all_the_same(family: str, text: str) -> None:
    chat = chat_of(family)
    _, (call,) = chat.calls(text, [TOOL])
    assert call.malformed and not call.arguments


@pytest.mark.parametrize("family", WRITTEN)
def test_an_answer_without_a_call_stays_as_it_is(family: str) -> None:
    chat = chat_of(family)
    for text in (' {"answer": 7} ', "The name is 7.", "[1, 2]", '{"name": "Bob"}', ""):
        assert chat.calls(text, [TOOL]) == (text, ())


def test_several_calls_keep_their_order_and_what_is_said_beside_them() -> None:
    form = next(form for form in FORMS if form.name == "Mistral")
    calls = [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}, "id": "123456789"}]
    text, found = form.find(f"Let me see. [TOOL_CALLS]{json.dumps(calls)}")
    assert text == "Let me see."
    assert found == (ToolCall("a", {}, "call00001"), ToolCall("b", {"x": 1}, "123456789"))


LONG = 50_000
"""Characters of a hostile answer; a search that is quadratic in them takes some 2 s, a linear one 0.003 s."""


@pytest.mark.parametrize("family", WRITTEN)
def test_the_search_for_calls_is_linear_in_an_answer_that_repeats_itself(family: str) -> None:
    written = WRITTEN[family]
    form = next(form for form in FORMS if any(call.name for call in form.find(written, [TOOL])[1]))
    marks = [*dict.fromkeys(re.findall(r"<[^<>]*>|\[\w+\]|\"\w+\"", written))]
    # The part that is repeated stands before each piece of a call, and in the place of the rest of it.
    places = [match.start() for match in re.finditer(r"\w+|[^\w\s]+|\s+", written)]
    for at in places:
        for part in (" ", "\n", "a", "<", "{", *marks):
            for rest in (written[at:], *marks, ""):
                answer = written[:at] + part * (LONG // len(part)) + rest
                began = time.process_time()
                form.find(answer, [TOOL])
                assert time.process_time() - began < 1, (written[:at], part, rest)


MARKS = (
    *("<tool_call>", "</tool_call>", "<function=a>", "</function>", "<parameter=x>", "</parameter>", "\n"),
    *(
        '{"name": "a", ',
        '"parameters": {}}',
        '"arguments": {}}',
        "[TOOL_CALLS]",
        "[ARGS]",
        "[",
        "]",
        "{}",
        "a",
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "\ud800",
        "1e999",
    ),
)


@given(st.sampled_from(FORMS), st.lists(st.one_of(st.sampled_from(MARKS), st.text(max_size=3))).map("".join))
def test_whatever_a_model_writes_is_text_and_calls(form: CallForm, text: str) -> None:
    rest, calls = form.find(text, [TOOL])
    assert calls or rest == text
    for call in calls:
        assert call.name or call.malformed
        if not call.malformed:
            json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode()
