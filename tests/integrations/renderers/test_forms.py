"""Tests of tool calls in the forms of the package renderers: exact tokens, calls, ends of turns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts.chat import ChatFormat
from rolegraph.engine.prompts.tools import answer_message, described, result_message
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary import Function, ToolCall
from rolegraph.local.launcher import BASE_MODEL
from tests.integrations.renderers.families import chat_of

PIECES = ("<tool_call>", "</tool_call>", "<arg_key>", "<|tool_call>", "calculator", "{", "\n", "7", "é", " ")


async def _unanswered(arguments: Mapping[str, Any]) -> None: ...


SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}, "digits": {"type": "integer"}}}
TOOL = Function("calculator", "What an expression comes to.", SCHEMA, _unanswered)
ARGUMENTS = {"expression": "3 + 4", "digits": 2}
FORMS = {
    "deepseek-v4": "deepseek-v4",
    "gemma4": "gemma4",
    "glm-4.5": "glm-4.5",
    "glm-5": "glm-4.5",
    "glm-5.1": "glm-4.5",
    "glm-5.3": "glm-4.5",
    "hy3": "hy3",
    "inkling": "inkling",
    "kimi-k2": "kimi-k2",
    "kimi-k2.5": "kimi-k2.5",
    "laguna-m.1": "laguna-m.1",
    "laguna-s-2.1": "laguna-m.1",
    "laguna-xs-2.1": "laguna-m.1",
    "laguna-xs.2": "laguna-m.1",
    "llama-3": "Llama",
    "minimax-m2": "minimax-m2",
    "nemotron-3": "Qwen Coder",
    "prime-qwen3": "Qwen Coder",
    "qwen3": "Qwen",
    "qwen3-vl": "Qwen",
    "qwen3.5": "Qwen Coder",
}
"""Form that reads the calls of each family; forms of this package have capitals and go first."""
FOREIGN = [family for family, form in FORMS.items() if form == form.lower()]
QUESTION: Message = {"role": "user", "content": "What is 3 + 4?"}


def called(chat: ChatFormat) -> ToolCall:
    """Return the call of the calculator, with an id where the form has one."""
    ids = chat.call_form.ids
    return ToolCall(TOOL.name, ARGUMENTS, ids(TOOL.name, 1) if ids else "")


@pytest.mark.parametrize("family", FORMS)
def test_tokens_of_a_chat_with_tools_are_those_of_the_family(family: str) -> None:
    chat, tokenizer = chat_of(family)
    assert chat.call_form.name == FORMS[family]
    call, tools = called(chat), described([TOOL])
    turns: list[Message] = [QUESTION, answer_message("", calls=[call]), result_message(call, "7")]
    assert chat.prompt(turns[:1], [TOOL]).ids == tokenizer.ids(turns[:1], tools)
    entries = [*turns]
    entries[1] = {**turns[1], "tool_calls": [_as_mapping(entry) for entry in turns[1]["tool_calls"]]}
    assert chat.prompt(turns, [TOOL]).ids == tokenizer.ids(entries, tools)


def _as_mapping(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's entry with its arguments as a mapping, as chat templates take them."""
    return {**entry, "function": {**entry["function"], "arguments": ARGUMENTS}}


@pytest.mark.parametrize("family", FOREIGN)
def test_a_sampled_call_is_read_and_ends_its_turn(family: str) -> None:
    chat, tokenizer = chat_of(family)
    call, tools = called(chat), described([TOOL])
    turn = {**answer_message("Let me see.", calls=[call])}
    turn["tool_calls"] = [_as_mapping(entry) for entry in turn["tool_calls"]]
    written = tokenizer.renderer.render([QUESTION, turn], tools=tools)
    sampled = [token for token, mine in zip(written.token_ids, written.sampled_mask, strict=True) if mine]
    assert sampled
    is_thinking = chat.prompt([QUESTION], [TOOL]).thinking
    if is_thinking and not chat.answer(sampled, stop=(), thinking=True)[1]:
        sampled = [*chat.text_ids("What is it?"), *tokenizer.encode("</think>"), *sampled]
    _, text = chat.answer(sampled, stop=(), thinking=is_thinking)
    said, (found,) = chat.calls(text, [TOOL])
    assert (said.removeprefix("</think>").strip(), found) == ("Let me see.", call)
    assert {*tokenizer.renderer.get_stop_token_ids()} <= {*chat.end_ids}


@pytest.mark.parametrize("family", FOREIGN)
@settings(max_examples=30)
@given(pieces=st.lists(st.sampled_from(PIECES)))
def test_whatever_a_model_writes_is_text_and_calls(family: str, pieces: list[str]) -> None:
    chat, _ = chat_of(family)
    text = "".join(pieces)
    rest, calls = chat.calls(text, [TOOL])
    assert calls or rest == text


GLM = """{% if tools %}<|system|>
{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }}
{% for key, value in c.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
"""A chat template of our own whose calls look like GLM's."""
MARKERS = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"),
)


def glm_tokenizer() -> Any:
    """Return the shipped tokenizer with GLM's markers and a template that writes GLM's calls."""
    tokenizer: Any = load_tokenizer(BASE_MODEL)
    tokenizer.add_tokens([*MARKERS], special_tokens=True)
    tokenizer.chat_template = GLM
    return tokenizer


def test_the_form_is_found_by_what_a_template_writes() -> None:
    chat = ChatFormat(glm_tokenizer(), "mine")
    text = (
        "Let me see.\n<tool_call>calculator\n<arg_key>expression</arg_key>\n<arg_value>3 + 4</arg_value>\n"
        "<arg_key>digits</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    )
    assert chat.calls(text, [TOOL]) == ("Let me see.", (ToolCall("calculator", ARGUMENTS),))
    cut = text.removesuffix("</tool_call>")
    rest, calls = chat.calls(cut, [TOOL])
    assert calls == () or all(call.malformed or call.name == "calculator" for call in calls)
    assert "Let me see." in rest


def test_without_the_package_calls_are_texts_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "renderers", None)
    chat = ChatFormat(glm_tokenizer(), "mine")
    assert chat.call_form.in_messages
