"""Probe of an OpenAI-compatible endpoint: fields that it accepts, and parts of its answers. Writes
nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from rolegraph.doctor.probes import ProbeReport, ProbeRow, Status
from rolegraph.engine.errors import ModelError, UsageError, first_line
from rolegraph.engine.models.keys import OPENAI
from rolegraph.engine.models.openai import (
    ModelCard,
    OpenAIModel,
    errors_of_calls,
    list_models,
    only_model,
    open_client,
)
from rolegraph.engine.models.openai_answers import Choice, ServerCompletion, UnreadableAnswer
from rolegraph.engine.models.openai_fields import LIMITS, AskedField, sent
from rolegraph.engine.models.types import Request, ServedModel
from rolegraph.engine.records import CallId, Message, NodeId, Note, Observer
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.vocabulary import Function
from rolegraph.engine.vocabulary.tool import never_called

_TOKENS = 64
_OK = "Say OK."
_TOGETHER = 8
"""Number of simultaneous calls in the probe of concurrency."""
_FIELDS: Mapping[str, Mapping[str, object]] = {
    "temperature": {"temperature": 0.7},
    "top_p": {"top_p": 0.9},
    "temperature and top_p": {"temperature": 0.7, "top_p": 0.9},
    "seed": {"seed": 7},
    "stop": {"stop": ["###"]},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
}
"""Fields that a probe sends, by the probe's name."""
_SCORES: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 1}
_ADD = Function(
    "add",
    "Adds two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    },
    never_called,
)
Found = tuple[str, Status]


async def probe_endpoint(ref: ModelRef, trusted_url: str | None, observe: Observer) -> ProbeReport:
    """Probe a model at an OpenAI-compatible endpoint; errors as in `open_served`."""
    start, url = time.monotonic(), OPENAI.url(ref.base_url)
    key = OPENAI.key(url, explicit=None, trusted_url=trusted_url)
    client = open_client(ServedModel(ref, trusted_url=trusted_url), OPENAI, url, key)
    try:
        cards = await list_models(client, url, key)
        model = OpenAIModel(client, ref.name or only_model([card.id for card in cards], url), key=key)
        rows: list[ProbeRow] = []
        async with aclosing(_Probes(model, url, key).rows(cards)) as probes:
            async for row in probes:
                rows.append(row)
                observe(Note(f"{row.name}: {row.status} …"))
        left_out, seconds = tuple(sorted(model.left_out)), time.monotonic() - start
        return ProbeReport(url, model.name, tuple(rows), seconds, left_out=left_out)
    finally:
        await client.close()


class _Probes:
    """Probes of one model."""

    def __init__(self, model: OpenAIModel, url: str, key: str | None) -> None:
        self._model, self._url, self._key = model, url, key
        self._sampling = Sampling(max_tokens=_TOKENS)

    async def rows(self, cards: list[ModelCard]) -> AsyncGenerator[ProbeRow]:
        """Yield a row for each probe; if the endpoint gives no answer at all, only the first row."""
        first_row = await self._row("an answer", "a text", self._answer)
        yield first_row
        if first_row.status == "failed":
            return
        for name, fields in _FIELDS.items():
            yield await self._row(name, "taken", lambda fields=fields: self._takes(fields))
        yield await self._row("same seed", "the same answer", self._repeats)
        yield await self._row("log-probabilities", "one for each token", self._scores)
        yield await self._row("token ids", "of prompt and answer", self._ids)
        yield await self._row("tools", "a call", lambda: self._calls("Add 2 and 3 with the tool.", 1))
        both_task = "Add 2 and 3, and 4 and 5, with the tool, in two calls at once."
        yield await self._row(
            "parallel calls", "two calls with ids of their own", lambda: self._calls(both_task, 2)
        )
        yield await self._row("reasoning", "apart from the answer", self._thinks)
        length = next((card.max_model_len for card in cards if card.id == self._model.name), None)
        length_text = "not in the list of models" if length is None else f"{length:,} tokens"
        yield ProbeRow("context", "in the list of models", length_text, "ok" if length else "not offered")
        yield await self._row("concurrency", f"{_TOGETHER} calls at once", self._together)
        yield await self._row("a run", "all fields", self._run)

    async def _row(self, name: str, expected: str, find: Callable[[], Awaitable[Found]]) -> ProbeRow:
        try:
            result, status = await find()
        except (ModelError, UsageError, UnreadableAnswer) as error:
            result, status = first_line(error), "failed" if name in ("an answer", "a run") else "not offered"
        return ProbeRow(name, expected, result.removeprefix(f"{self._url} "), status)

    async def _ask(self, text: str, *tools: Function, **fields: object) -> ServerCompletion:
        async with errors_of_calls(self._url, self._key, OPENAI):
            asked_fields = {LIMITS[0]: AskedField(_TOKENS)}
            asked_fields |= {name: AskedField(value, "doctor") for name, value in fields.items()}
            return await self._model.send(
                _request(text, self._sampling, *tools), sent(asked_fields, self._model.taken)
            )

    async def _choice(self, text: str = _OK, *tools: Function, **fields: object) -> Choice:
        answer = await self._ask(text, *tools, **fields)
        if not answer.choices or answer.choices[0].message is None:
            raise ModelError("no message in the answer")
        return answer.choices[0]

    async def _answer(self) -> Found:
        start = time.monotonic()
        try:
            answer = await self._model.complete(_request(_OK, self._sampling))
        except UsageError:  # it takes no limit under any name, and the default one may be left out
            self._sampling = Sampling()
            answer = await self._model.complete(_request(_OK, self._sampling))
        accepted = self._model.taken
        stream_note = ", as a stream" if accepted.streams else ""
        limit_note = "no limit" if LIMITS[0] in accepted.left_out else f"limit in `{accepted.limit}`"
        finding = (
            f"{len(answer.text)} characters in {time.monotonic() - start:.1f} s{stream_note}, {limit_note}"
        )
        return finding, "ok" if answer.text.strip() else "differs"

    async def _takes(self, fields: Mapping[str, object]) -> Found:
        await self._choice(_OK, **fields)  # pyright: ignore[reportArgumentType]  # no field is named text
        return "taken", "ok"

    async def _repeats(self) -> Found:
        prompt = "Write five random words."
        texts = [await self._choice(prompt, temperature=1.0, seed=7) for _ in range(2)]
        first_text, second_text = (choice.message.content.text if choice.message else "" for choice in texts)
        return ("the same answer", "ok") if first_text == second_text else ("another answer", "differs")

    async def _scores(self) -> Found:
        try:
            choice = await self._choice(**_SCORES)
        except ModelError:
            choice = await self._choice(logprobs=True)
        return (f"{len(choice.scores)}", "ok") if choice.scores else ("the field is ignored", "not offered")

    async def _ids(self) -> Found:
        ids = {"return_token_ids": True, "return_prompt_token_ids": True}
        try:
            answer = await self._ask(_OK, **ids, **_SCORES)  # llama.cpp gives ids beside log-probabilities
        except ModelError:
            answer = await self._ask(_OK, **ids)
        choice = answer.choices[0] if answer.choices else Choice()
        ids_by_part = {"prompt": answer.prompt_ids, "answer": choice.ids}
        parts_with_ids = " and ".join(name for name, ids in ids_by_part.items() if ids)
        return (f"of {parts_with_ids}", "ok") if parts_with_ids else ("the field is ignored", "not offered")

    async def _calls(self, text: str, wanted: int) -> Found:
        choice = await self._choice(text, _ADD)
        calls = choice.message.tool_calls or [] if choice.message else []
        has_own_ids = len({call.id for call in calls if call.id}) == len(calls)
        text_ = f"{len(calls)} calls" + ("" if has_own_ids else ", with equal or missing ids (rewritten)")
        return text_, "ok" if len(calls) >= wanted else "differs" if calls else "not offered"

    async def _thinks(self) -> Found:
        choice = await self._choice("How many days have two weeks? Think first.")
        message = choice.message
        if message and "<think>" in message.content.text:
            return "in the answer's text, as <think>", "differs"
        return ("in a field of its own", "ok") if message and message.thought else ("none", "not offered")

    async def _together(self) -> Found:
        start = time.monotonic()
        await self._choice()
        one_call = time.monotonic() - start
        start = time.monotonic()
        await asyncio.gather(*(self._choice() for _ in range(_TOGETHER)))
        return f"{(time.monotonic() - start) / max(one_call, 1e-3):.1f} times the time of one call", "ok"

    async def _run(self) -> Found:
        await self._model.complete(_request(_OK, self._sampling, seed=7))
        left_out = ", ".join(sorted(self._model.left_out))
        return (f"leaves out {left_out}", "differs") if left_out else ("all fields", "ok")


def _request(text: str, sampling: Sampling, *tools: Function, seed: int | None = None) -> Request:
    call = CallId("doctor", 0, NodeId("doctor"))
    messages: Sequence[Message] = ({"role": "user", "content": text},)
    return Request(messages, sampling, seed, call, tools)
