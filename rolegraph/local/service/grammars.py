"""Grammars of answers: a JSON Schema, or calls of functions as the model's chat template writes them.

llguidance (the extra `structured`) computes the tokens that may come next. Knows no HTTP and no sampling.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rolegraph.engine.errors import FOREIGN_ERRORS, first_line, panics_as_errors
from rolegraph.engine.prompts import ChatFormat
from rolegraph.engine.prompts.chat import CLOSE
from rolegraph.engine.vocabulary import Function
from rolegraph.local import limits
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.openai_bodies import ChatBody

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_JSON = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""Form of JSON: one line, as `json.dumps` writes it, because a small model may write white space without
end."""
_OTHERS = {"anyOf", "oneOf", "$ref"}
"""Keys with which a schema describes further properties of an object, beside `properties`."""
_TAG = re.compile(r"<[^<>\s]+>|\[\w+\]")
"""Beginning of a call in text, without a token of its own."""


class Grammar:
    """State of one answer's grammar; a `Constraint` of sampling."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def copy(self) -> Grammar:
        """Return a copy with a state of its own."""
        return Grammar(self._matcher.deep_copy(), self._vocabulary)

    def allowed(self) -> Tensor:
        """Return a bool for each token [V]: True if it may come next.

        Raises:
            RequestError: The grammar is too complex, or nothing may follow.
        """
        logit_bias = bytearray(self._matcher.compute_logit_bias())
        allowed = torch.frombuffer(logit_bias, dtype=torch.uint8)[: self._vocabulary].bool()
        if self._matcher.is_error() or not allowed.any():  # a failed grammar allows the end token
            raise RequestError(f"the answer's grammar fails: {self._matcher.get_error() or 'no token fits'}")
        return allowed

    def advance(self, token: int) -> None:
        """Move on by a sampled token; raises RequestError if the token is not allowed, which happens if
        logits are NaN."""
        if not self._matcher.consume_token(token):
            raise RequestError("these weights give no finite numbers: their training has diverged")

    def restart(self) -> None:
        """Return to the state before the first token."""
        self._matcher.reset()


class Grammars:
    """Compiler of the grammars of one model's answers."""

    def __init__(self, model: LocalModel, chat: ChatFormat) -> None:
        self._model, self._chat = model, chat

    def compile(self, body: ChatBody, *, thinking: bool) -> Grammar:
        """Return the grammar of the answers to a request with `body.constraints`.

        Args:
            body: The request.
            thinking: True where the prompt has opened a thought; the grammar does not restrict the thought.

        Raises:
            RequestError: llguidance is missing, or cannot read the schema or the model's tokenizer; the
                grammar is too large; or the chat template does not write the arguments of calls as JSON.
        """
        fields = ", ".join(body.constraints)
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError:
            raise RequestError(
                f"{fields}: the service needs the library llguidance: pip install 'rolegraph[structured]'"
            ) from None
        try:
            with panics_as_errors():
                grammar = json.dumps(self._grammars(body, thinking))
                if len(grammar) > limits.GRAMMAR.most:
                    raise RequestError(limits.GRAMMAR.exceeded("the grammar has"))
                bounds = LLParserLimits(verbose_errors=False)
                matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=bounds)
            if matcher.is_error():
                raise RequestError(matcher.get_error())
        except FOREIGN_ERRORS as error:
            raise RequestError(f"{fields}: {first_line(error)}") from error
        return Grammar(matcher, self._model.vocabulary)

    @cached_property
    def _ends(self) -> list[int]:
        return sorted(self._model.end_ids | {*self._chat.end_ids})

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        tokenizer = self._model.tokenizer
        size = max(len(tokenizer), self._model.vocabulary)
        return from_tokenizer(tokenizer, n_vocab=size, eos_token=self._ends)

    @cached_property
    def _specials(self) -> Mapping[str, int]:
        """Added tokens by their texts, longest first; in llguidance they match no text."""
        added_ids = {str(token): id for id, token in self._model.tokenizer.added_tokens_decoder.items()}
        return {
            text: added_ids[text]
            for text in sorted(added_ids, key=len, reverse=True)
            if self._tokens.is_special_token(added_ids[text])
        }

    def _grammars(self, body: ChatBody, thinking: bool) -> dict[str, Any]:
        """Return the grammars of a request in llguidance's form; the first is that of the whole answer."""
        schemas: dict[str, Mapping[str, Any]] = {}
        if body.schema_of_text is not None and not body.is_forced:
            schemas["text"] = body.schema_of_text
        alternatives, rules = [f"@{name}" for name in schemas], list[str]()
        if functions := _callable(body):
            schemas |= {f"arguments{index}": _of_object(function) for index, function in enumerate(functions)}
            rules += self._calls(body, functions)
            alternatives.append("free | opened" if body.may_be_text else "calls")
        start_rule = " | ".join(alternatives)
        if thinking and not body.may_be_text:
            rules += [*self._until("thought", CLOSE), "LINES: /\\n{1,2}/"]
            start_rule = f"thought LINES? ({start_rule})"
        lark_grammar = {"lark_grammar": "\n".join([f"start: {start_rule}", *rules])}
        inner_grammars = [
            {"name": function, "json_schema": {**_closed(schema), "x-guidance": _JSON}}
            for function, schema in schemas.items()
        ]
        return {"grammars": [lark_grammar, *inner_grammars]}

    def _calls(self, body: ChatBody, functions: Sequence[Function]) -> Iterable[str]:
        """Yield the rule `calls`; if text may be the answer, also `free` and `opened`, an answer with a
        call."""
        syntax = self._chat.call_syntax
        if syntax is None:
            raise RequestError(
                "the chat template does not write the arguments of "
                "calls as JSON, so that calls cannot be restricted"
            )
        text_before, text_after = self._literal(syntax.before), self._literal(syntax.after)
        for index, function in enumerate(functions):
            name = json.dumps(function.name, ensure_ascii=False)[1:-1]
            yield f"call{index}: {self._literal(name + syntax.between)} @arguments{index}"
        yield "call: " + " | ".join(f"call{index}" for index in range(len(functions)))
        if body.may_be_text:
            special_token = next((text for text in self._specials if syntax.before.startswith(text)), None)
            if special_token is None:
                tag_match = _TAG.match(syntax.before)
                special_token = tag_match[0] if tag_match else syntax.before
            yield from self._until("mark", special_token)
            yield "free: mark_free"
            yield f"opened: mark {self._literal(syntax.before.removeprefix(special_token))} call {text_after}"
        elif syntax.joint is None or body.parallel_tool_calls is False or body.chosen_name is not None:
            yield f"calls: {text_before} call {text_after}"
        else:
            yield f"calls: {text_before} call ({self._literal(syntax.joint)} call)* {text_after}"

    def _until(self, name: str, mark: str) -> Iterable[str]:
        """Yield two rules: `{name}_free`, a text without a mark, and `name`, such a text followed by the
        mark."""
        if mark in self._specials:
            excluded_ids = ",".join(map(str, [self._specials[mark], *self._ends]))
            yield f"{name}_free: <[^{excluded_ids}]>*"
            yield f"{name}: {name}_free {self._literal(mark)}"
            return
        specials = ",".join(str(id) for id in self._specials.values() if id not in self._ends)
        spaced, literal = f"(TEXT? <[{specials}]>)*" if specials else "", json.dumps(mark, ensure_ascii=False)
        yield "ANY: /(?s:.*)/"
        yield f"TEXT: /(?s:.+)/ & ~(ANY {literal} ANY)"
        yield f"{name}_free: {spaced} TEXT?"
        yield f"{name}: {spaced} {name}_last"
        yield f"{name}_last[suffix={literal}]: ANY"

    def _literal(self, text: str) -> str:
        """Return a fixed text as a rule's part: special tokens by their ids, the rest as strings."""
        pattern = "|".join(map(re.escape, self._specials))
        pieces = re.split(f"({pattern})", text) if pattern else [text]
        literals = (
            f"<[{self._specials[part]}]>" if part in self._specials else json.dumps(part, ensure_ascii=False)
            for part in pieces
            if part
        )
        return " ".join(literals)


def _callable(body: ChatBody) -> Sequence[Function]:
    """Return the functions that an answer may call."""
    return [function for function in body.functions if body.chosen_name in (None, function.name)]


def _of_object(function: Function) -> Mapping[str, Any]:
    """Return the JSON Schema of a function's arguments; raises RequestError unless it is an object's."""
    schema = {"type": "object", **function.parameters}
    if schema["type"] != "object":
        raise RequestError(f"parameters of {function.name!r} have the type {schema['type']!r}, not 'object'")
    return schema


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema whose objects allow only the declared properties, unless the schema allows others.

    Without this limit, a small model invents properties up to its limit of tokens. A schema that combines
    parts (`allOf`, or `anyOf` beside `properties`) stays open: an object that must fit all of them could have
    no property at all.
    """
    if any("allOf" in node or ("properties" in node and node.keys() & _OTHERS) for node in _mappings(schema)):
        return schema
    return _close(schema)


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    """Yield all mappings in a JSON value."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _mappings(item)


def _close(schema: Any) -> Any:
    """Return a schema whose objects allow only their declared properties."""
    if isinstance(schema, list):
        return [_close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema: dict[str, Any] = {**schema}
    for key in closed_schema.keys() & {"properties", "$defs", "definitions"}:
        if isinstance(closed_schema[key], dict):
            closed_schema[key] = {name: _close(property_) for name, property_ in closed_schema[key].items()}
    for key in closed_schema.keys() & {"items", "prefixItems", "additionalProperties", "anyOf", "oneOf"}:
        closed_schema[key] = _close(closed_schema[key])
    declares = "properties" in schema and "patternProperties" not in schema
    if declares and {*schema.get("required", ())} <= {*schema["properties"]}:
        closed_schema.setdefault("additionalProperties", False)
    return closed_schema
