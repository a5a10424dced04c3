"""Answers that a JSON Schema or a forced call restricts: OpenAI's client on /v1, and the grammars alone."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra `local`")
llguidance = pytest.importorskip("llguidance", reason="needs the extra `structured`")

from llguidance.hf import from_tokenizer  # noqa: E402

from rolegraph.engine.models.tokenizer import load_tokenizer  # noqa: E402
from rolegraph.engine.prompts import ChatFormat  # noqa: E402
from rolegraph.engine.vocabulary import ToolCall  # noqa: E402
from rolegraph.local.launcher import BASE_MODEL, LocalService, running  # noqa: E402
from rolegraph.local.service.errors import RequestError  # noqa: E402
from rolegraph.local.service.grammars import Grammar, Grammars  # noqa: E402
from rolegraph.local.service.openai_bodies import ChatBody  # noqa: E402
from rolegraph.local.service.sampling import SampleRequest, sample_next  # noqa: E402
from tests.local.test_chat_tools import ScriptedBackend, chat  # noqa: E402
from tests.prompts.templates import CALLS_BY_FORM  # noqa: E402

pytestmark = pytest.mark.service
ASK: list[Any] = [{"role": "user", "content": "Numbers: 3, 4. Target: 12."}]
DIGIT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9}
PAIR: dict[str, Any] = {
    "type": "object",
    "properties": {"a": DIGIT, "b": DIGIT},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NODE = {
    "type": "object",
    "properties": {"value": {"enum": ["x", "y"]}, "next": {"anyOf": [{"type": "null"}, DIGIT]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "object": PAIR,
    "enum": {"enum": ["red", "green", 3, None]},
    "array": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 3},
    "nested": {**PAIR, "properties": {"a": {"type": "array", "items": PAIR, "maxItems": 1}, "b": DIGIT}},
    "defs": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "text": {"type": "string", "maxLength": 5, "pattern": "^[a-c]+$"},
}


def tool(name: str, parameters: Mapping[str, Any] = PAIR) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


ADD, MUL = tool("add"), tool("mul")
NAMED = {"type": "function", "function": {"name": "mul"}}


@pytest.fixture(scope="module")
def base() -> Iterator[LocalService]:
    with running(BASE_MODEL, threads=1) as started:
        yield started


def ask(service: LocalService, **options: Any) -> Any:
    client = openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=service.api_key, max_retries=0)
    given = {"messages": ASK, "max_tokens": 120, "seed": 3, "model": service.model_name, **options}
    return client.chat.completions.with_raw_response.create(**given)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_keeps_to_its_schema_and_ends_with_it(base: LocalService, shape: str) -> None:
    answer = ask(base, response_format=schema_format(SHAPES[shape]), n=4, temperature=1.5)
    assert answer.headers["x-rolegraph-constrained"] == "response_format"
    assert "x-rolegraph-without-effect" not in answer.headers
    for choice in answer.parse().choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SHAPES[shape])


def test_a_cut_answer_says_so(base: LocalService) -> None:
    (choice,) = ask(base, response_format=schema_format(PAIR), max_tokens=3).parse().choices
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")
    (call,) = ask(base, tools=[ADD], tool_choice="required", max_tokens=3).parse().choices
    assert (call.finish_reason, call.message.tool_calls) == ("length", None)


def test_any_object_begins_as_one(base: LocalService) -> None:
    for choice in ask(base, response_format={"type": "json_object"}, n=4).parse().choices:
        assert choice.message.content.startswith("{")


def test_the_choice_is_that_of_the_seed_and_streams_alike(base: LocalService) -> None:
    options = {"response_format": schema_format(PAIR), "logprobs": True, "top_logprobs": 3}
    first, second = (ask(base, **options).parse().choices[0] for _ in range(2))
    assert first == second
    chunks = [chunk.choices[0] for chunk in ask(base, **options, stream=True).parse()]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == first.message.content
    assert chunks[-1].finish_reason == "stop"
    assert all(entry.logprob <= 0 for entry in first.logprobs.content)
    last = first.logprobs.content[-1]
    assert (last.logprob, len(last.top_logprobs)) == (0, 1)  # nothing but the end may follow


@pytest.mark.parametrize(
    ("options", "names", "most"),
    [
        ({"tool_choice": "required"}, {"add", "mul"}, 99),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"add", "mul"}, 1),
        ({"tool_choice": NAMED}, {"mul"}, 1),
    ],
    ids=["required", "one", "named"],
)
def test_a_forced_call_is_one(
    base: LocalService, options: dict[str, Any], names: set[str], most: int
) -> None:
    for choice in ask(base, tools=[ADD, MUL], n=6, temperature=1.5, **options).parse().choices:
        calls = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        assert 1 <= len(calls) <= most
        assert not choice.message.content
        for call in calls:
            assert call.function.name in names
            jsonschema.validate(json.loads(call.function.arguments), PAIR)


def test_a_forced_call_streams(base: LocalService) -> None:
    chunks = [*ask(base, tools=[ADD], tool_choice="required", stream=True).parse()]
    (call,) = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert call.function.name == "add"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"response_format": schema_format({"type": "strin"})}, "response_format: Invalid type: strin"),
        ({"response_format": schema_format({"uniqueItems": True, "type": "array"})}, "uniqueItems"),
        ({"response_format": schema_format({"$ref": "#/nowhere"})}, "nowhere"),
        ({"response_format": schema_format({"enum": ["x" * 70_000]})}, "service_grammar"),
        ({"response_format": {"type": "json_schema"}}, "json_schema missing"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"tool_choice": "required"}, "tools has no function"),
        ({"tools": [ADD], "tool_choice": NAMED}, "'mul'; tools has add"),
        ({"tools": [tool("list", {"type": "array"})], "tool_choice": "required"}, "not 'object'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_held_is_refused_with_its_reason(
    base: LocalService, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        ask(base, **options)


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def closed(properties: dict[str, Any], required: int) -> dict[str, Any]:
        names = sorted(properties)[:required]
        return {
            "type": "object",
            "properties": properties,
            "required": names,
            "additionalProperties": False,
        }

    named = st.dictionaries(st.sampled_from(["a", "b c", 'd"', "é"]), inner, max_size=2)
    return st.builds(closed, named, st.integers(0, 2))


LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.tuples(st.integers(-5, 5), st.integers(0, 20)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
    st.integers(0, 3).map(lambda most: {"type": "string", "maxLength": most}),
    st.lists(st.sampled_from(["x", "", 1, None, True, [2], {"k": "v"}]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2}),
        objects(inner),
        st.lists(inner, min_size=1, max_size=2).map(lambda kinds: {"anyOf": kinds}),
    ),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS)
def test_answers_of_random_weights_keep_to_any_schema(service: LocalService, schema: dict[str, Any]) -> None:
    answer = ask(service, response_format=schema_format(schema), n=4, max_tokens=150).parse()
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), schema)


def test_a_row_without_a_constraint_is_sampled_as_if_it_were_alone() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    before = logits.clone()

    class Even:
        def allowed(self) -> Any:
            return torch.arange(50) % 2 == 0

        def advance(self, token: int) -> None:
            assert token % 2 == 0

        def restart(self) -> None: ...

    def sampled(constraint: Even | None) -> list[SampleRequest]:
        options: dict[str, Any] = {"prompt": [1], "max_tokens": 9, "top_p": 0.9}
        rows = [SampleRequest(seed=(5, row), **options) for row in range(3)]
        rows[1].constraint = constraint
        for _ in range(9):
            sample_next(logits, rows, lambda ids: ["" for _ in ids])
        return rows

    free, held = sampled(None), sampled(Even())
    assert torch.equal(logits, before)
    for row in (0, 2):
        assert (free[row].tokens, free[row].logprobs) == (held[row].tokens, held[row].logprobs)
    assert all(token % 2 == 0 for token in held[1].tokens)
    among = logits[1, ::2].log_softmax(-1)
    expected = [among[token // 2].item() for token in held[1].tokens]
    assert held[1].logprobs == pytest.approx(expected, abs=1e-5)


def test_a_grammar_that_fails_in_mid_answer_gives_its_own_error() -> None:
    _, _, tokenizer = grammars("")
    rule = {"lark_grammar": 'start: ("a" | "b" /c+/ | "a" /.{3,900}/)+'}
    limits = llguidance.LLParserLimits(verbose_errors=False, max_items_in_row=3)
    matcher = llguidance.LLMatcher(
        from_tokenizer(tokenizer), json.dumps({"grammars": [rule]}), log_level=0, limits=limits
    )
    grammar = Grammar(matcher, len(tokenizer))
    (first,) = tokenizer.encode("a", add_special_tokens=False)
    assert grammar.allowed()[first]
    with pytest.raises(RequestError):
        grammar.advance(first)
    with pytest.raises(RequestError, match="grammar fails: Parser Error: Current row has"):
        grammar.allowed()


def grammars(template: str) -> tuple[Grammars, ChatFormat, Any]:
    tokenizer: Any = load_tokenizer(BASE_MODEL)
    tokenizer.chat_template = template or tokenizer.chat_template
    chat = ChatFormat(tokenizer, "small")
    model = SimpleNamespace(
        tokenizer=tokenizer, vocabulary=len(tokenizer), end_ids=frozenset({tokenizer.eos_token_id})
    )
    return Grammars(cast("Any", model), chat), chat, tokenizer


def walked(grammar: Grammar, ends: tuple[int, ...], seed: int) -> list[int]:
    """Return random allowed tokens up to an end token."""
    draw, tokens = random.Random(seed), list[int]()
    while not tokens or tokens[-1] not in ends:
        tokens.append(draw.choice(grammar.allowed().nonzero().flatten().tolist()))
        grammar.advance(tokens[-1])
    return tokens


def follows(grammar: Grammar, ids: list[int]) -> bool:
    for token in ids:
        if not grammar.allowed()[token]:
            return False
        grammar.advance(token)
    return True


def request(**options: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": ASK, **options})


FORCED = request(tools=[ADD, MUL], tool_choice="required")


@pytest.mark.parametrize("family", [name for name in CALLS_BY_FORM if name != "Qwen Coder"])
def test_forced_calls_are_read_in_each_family_s_form(family: str) -> None:
    compiler, chat, _ = grammars(CALLS_BY_FORM[family])
    grammar = compiler.compile(FORCED, thinking=False)
    for seed in range(10):
        _, text = chat.answer(walked(grammar.copy(), chat.end_ids, seed), stop=(), thinking=False)
        rest, calls = chat.calls(text, FORCED.functions)
        assert (rest, {call.name for call in calls} - {"add", "mul"}) == ("", set())
        assert calls
        for call in calls:
            jsonschema.validate(call.arguments, PAIR)


def test_a_form_without_json_is_refused() -> None:
    compiler, _, _ = grammars(CALLS_BY_FORM["Qwen Coder"])
    with pytest.raises(RequestError, match="does not write the arguments of calls as JSON"):
        compiler.compile(FORCED, thinking=False)


@pytest.mark.parametrize("family", ["", "Llama"])
def test_at_most_one_call_leaves_other_answers_free(family: str) -> None:
    compiler, chat, tokenizer = grammars(CALLS_BY_FORM[family] if family else "")
    grammar = compiler.compile(request(tools=[ADD], parallel_tool_calls=False), thinking=False)
    call = ToolCall("add", {"a": 1, "b": 2})
    written = {
        "": '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
        "Llama": '{"name": "add", "parameters": {"a": 1, "b": 2}}',
    }[family]
    assert chat.calls(written, FORCED.functions)[1] == (call,)
    end = chat.end_ids[0]
    for text in ("", "plain", "<answer>1</answer> and\n{more}", written, f"so {written}"):
        assert follows(grammar.copy(), [*chat.text_ids(text), end]), text
    for text in (written + written, written.replace("add", "sub"), written + " more"):
        assert not follows(grammar.copy(), [*tokenizer.encode(text, add_special_tokens=False), end]), text


OPEN_PAIR = {key: value for key, value in PAIR.items() if key != "additionalProperties"}
OTHER = {"type": "object", "properties": {"c": DIGIT}, "required": ["c"]}


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        (OPEN_PAIR, '{"a": 1, "b": 2}', True),
        (OPEN_PAIR, '{"a": 1, "b": 2, "c": 3}', False),
        ({**OPEN_PAIR, "additionalProperties": True}, '{"a": 1, "b": 2, "c": 3}', True),
        ({"type": "array", "items": OPEN_PAIR}, '[{"a": 1, "b": 2, "c": 3}]', False),
        ({"allOf": [OPEN_PAIR, OTHER]}, '{"a": 1, "b": 2, "c": 3}', True),
        ({**OPEN_PAIR, "anyOf": [OTHER]}, '{"a": 1, "b": 2, "c": 3}', True),
        ({**OPEN_PAIR, "required": ["c"]}, '{"c": 3}', True),
        (
            {"type": "object", "properties": {"properties": OPEN_PAIR}},
            '{"properties": {"a": 1, "b": 2}}',
            True,
        ),
    ],
)
def test_an_object_has_the_declared_properties_unless_its_schema_says_otherwise(
    schema: dict[str, Any], text: str, fits: bool
) -> None:
    compiler, chat, _ = grammars("")
    grammar = compiler.compile(request(response_format=schema_format(schema)), thinking=False)
    assert follows(grammar, [*chat.text_ids(text), chat.end_ids[0]]) is fits


def test_an_opened_thought_is_free() -> None:
    compiler, chat, _ = grammars("")
    body = request(response_format=schema_format(PAIR))
    grammar = compiler.compile(body, thinking=True)
    for text in ('any {"a" <answer>\n</think>\n\n{"a": 1, "b": 2}', '</think>{"a":1,"b":2}'):
        assert follows(grammar.copy(), [*chat.text_ids(text), chat.end_ids[0]]), text
    assert not follows(grammar.copy(), [*chat.text_ids("no more thoughts"), chat.end_ids[0]])
    assert not follows(compiler.compile(body, thinking=False), [*chat.text_ids("thought")])


def test_without_the_library_the_answer_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.BadRequestError, match=r"pip install 'rolegraph\[structured\]'"):
        chat(ScriptedBackend(), {"messages": ASK, "response_format": {"type": "json_object"}})
