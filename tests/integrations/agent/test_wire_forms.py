"""The APIs of an agent's endpoint as functions: what a request says, and what becomes of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolegraph.engine.vocabulary import AgentAnswer, ToolCall
from rolegraph.integrations.agent.endpoint import WIRES
from rolegraph.integrations.agent.messages import MESSAGES, estimate
from rolegraph.integrations.agent.responses import RESPONSES
from rolegraph.integrations.agent.wire import Wire

BY_NAME = [wire.path.rpartition("/")[2] for wire in WIRES]
EACH = pytest.mark.parametrize("wire", WIRES, ids=BY_NAME)
TEXT = AgentAnswer("Seven.", (), False, 5, 2)
CUT = TEXT._replace(is_cut=True)
CALLS = (ToolCall("add", {"a": 1.0}, "c1"), ToolCall("add", {}, "c2", malformed="{a"), ToolCall("", {}, "c3"))
CALLING = TEXT._replace(calls=CALLS)
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}
CALL = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}


def body(wire: Wire, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"model": "any", "input" if wire is RESPONSES else "messages": messages, **fields}


def told(wire: Wire, answer: AgentAnswer) -> list[dict[str, Any]]:
    """Return the data of a stream's events."""
    request = wire.read(body(wire, [{"role": "user", "content": "?"}], stream=True))
    assert request.streams
    parts = "".join(wire.events(answer, request)).split("\n\n")[:-1]
    return [json.loads(part.partition("data: ")[2]) for part in parts if not part.endswith("[DONE]")]


@EACH
def test_a_text_and_a_list_of_parts_are_the_same_message(wire: Wire) -> None:
    part = {"type": "input_text" if wire is RESPONSES else "text", "text": "3 + 4?"}
    for content in ("3 + 4?", [part]):
        request = wire.read(body(wire, [{"role": "user", "content": content}], temperature=0.3))
        assert request == ([{"role": "user", "content": "3 + 4?"}], [], False, wire is not WIRES[0])


def test_blocks_of_anthropic_become_messages() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": id, "content": id, "is_error": True} for id in ("c1", "c2")
    ]
    request = MESSAGES.read(
        body(
            MESSAGES,
            [
                {"role": "user", "content": [{"type": "text", "text": "?", "cache_control": {"type": "x"}}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "Wait."},
                        CALL,
                        {**CALL, "id": "c2"},
                    ],
                },
                {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
            ],
            system=[
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=2;"},
                {"type": "text", "text": "Be brief."},
                {"type": "text", "text": "Be right."},
            ],
            tools=[
                {"name": "add", "input_schema": SCHEMA},
                {"type": "web_search_20250305", "name": "search"},
            ],
        )
    )
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert request.messages == [
        {"role": "system", "content": "Be brief.\n\nBe right."},
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}],
        },
        {"role": "tool", "content": "c1", "tool_call_id": "c1"},
        {"role": "tool", "content": "c2", "tool_call_id": "c2"},
        {"role": "user", "content": "Go on."},
    ]
    assert [(function.name, function.parameters) for function in request.functions] == [("add", SCHEMA)]


def test_items_of_responses_become_messages() -> None:
    called = [
        {"type": "function_call", "call_id": id, "id": "f", "name": "add", "arguments": '{"a":1.0}'}
        for id in ("c1", "c2")
    ]
    request = RESPONSES.read(
        body(
            RESPONSES,
            [
                {"role": "developer", "content": "Be right."},
                {"role": "user", "content": "?"},
                {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
                {
                    "type": "message",
                    "id": "m",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Wait.", "annotations": []}],
                },
                *called,
                {"type": "function_call_output", "call_id": "c1", "output": "7"},
                {
                    "type": "function_call_output",
                    "call_id": "c2",
                    "output": [{"type": "input_text", "text": "8"}],
                },
            ],
            instructions="Be brief.",
            tools=[
                {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True},
                {"type": "web_search"},
                {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
            ],
        )
    )
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a":1.0}'}}
    assert request.messages == [
        {"role": "system", "content": "Be brief.\n\nBe right."},
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "c1", **call}, {"id": "c2", **call}],
        },
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
        {"role": "tool", "content": "8", "tool_call_id": "c2"},
    ]
    assert [function.name for function in request.functions] == ["add"]


@pytest.mark.parametrize(
    ("wire", "fields", "part"),
    [
        (RESPONSES, {"previous_response_id": "resp_1"}, "nothing is kept"),
        (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        (MESSAGES, {"messages": []}, "messages"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_its_reason(
    wire: Wire, fields: dict[str, Any], part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        wire.read(body(wire, [{"role": "user", "content": "?"}]) | fields)


def test_no_functions_where_the_program_wants_no_call() -> None:
    tool = {"name": "add", "input_schema": SCHEMA}
    user = [{"role": "user", "content": "?"}]
    assert not MESSAGES.read(body(MESSAGES, user, tools=[tool], tool_choice={"type": "none"})).functions
    flat = {"type": "function", "name": "add"}
    assert not RESPONSES.read(body(RESPONSES, user, tools=[flat], tool_choice="none")).functions


def test_an_estimate_of_tokens_grows_with_the_chat() -> None:
    short, long = (
        estimate(body(MESSAGES, [{"role": "user", "content": text}])) for text in ("?", "?" * 4001)
    )
    assert long["input_tokens"] - short["input_tokens"] == 1000


def test_reasons_of_an_end() -> None:
    ends = [MESSAGES.body(answer)["stop_reason"] for answer in (TEXT, CUT, CALLING)]
    assert ends == ["end_turn", "max_tokens", "tool_use"]
    cut = RESPONSES.body(CUT)
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert RESPONSES.body(CALLING)["status"] == RESPONSES.body(TEXT)["status"] == "completed"


def test_calls_keep_their_ids_and_their_text() -> None:
    _, first, second = MESSAGES.body(CALLING)["content"]
    assert (first["id"], first["input"]) == ("c1", {"a": 1.0})
    assert (second["id"], second["input"]) == ("c2", {"INVALID_JSON": "{a"})
    _, first, second = RESPONSES.body(CALLING)["output"]
    assert (first["call_id"], first["arguments"]) == ("c1", '{"a": 1.0}')
    assert (second["call_id"], second["arguments"]) == ("c2", "{a")


@pytest.mark.parametrize("answer", [TEXT, CUT, CALLING, TEXT._replace(text="")])
def test_a_stream_has_the_content_of_the_body(answer: AgentAnswer) -> None:
    events = told(MESSAGES, answer)
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    blocks = MESSAGES.body(answer)["content"]
    assert [
        json.loads(it["partial_json"]) if it["type"] == "input_json_delta" else it["text"] for it in deltas
    ] == [block.get("input", block.get("text")) for block in blocks]
    (end,) = [event for event in events if event["type"] == "message_delta"]
    assert end["delta"]["stop_reason"] == MESSAGES.body(answer)["stop_reason"]

    events = told(RESPONSES, answer)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    response = events[-1]["response"]
    assert events[-1]["type"] == f"response.{response['status']}"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert response["output"] == done
    assert [item["type"] for item in done] == [item["type"] for item in RESPONSES.body(answer)["output"]]
