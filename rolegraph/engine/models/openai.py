"""Answers from any OpenAI-compatible endpoint (vLLM, SGLang, a gateway, OpenAI), by the official client.

In: messages. Out: text and reasoning; token ids and log-probabilities where the server gives them. Most
servers compute log-probabilities before temperature and top_p are applied, so they are not fit for training
at other temperatures. The caller retries.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from types import MappingProxyType
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl

import httpx
import openai
from pydantic import BaseModel

from rolegraph.engine.connections import client_options, route
from rolegraph.engine.errors import (
    AnswerWithheld,
    ContextFull,
    ModelError,
    UsageError,
    WorldError,
    is_out_of_files,
)
from rolegraph.engine.limits.answers import COMPLETION_BYTES, COMPLETION_SECONDS
from rolegraph.engine.models.keys import OPENAI, KeyRule, header_value, same_origin
from rolegraph.engine.models.limit import retry_after
from rolegraph.engine.models.openai_answers import (
    AnswerMessage,
    Choice,
    ServerCompletion,
    UnreadableAnswer,
    message_of,
    read_answer,
    says_context_full,
    says_key_refused,
    says_refused,
)
from rolegraph.engine.models.openai_fields import (
    EXTRAS,
    AskedField,
    Taken,
    after_refusal,
    after_unclear_refusal,
    fields_of,
    kind_of,
    sent,
    warning_of,
)
from rolegraph.engine.models.openai_stream import fields_in
from rolegraph.engine.models.repeats import REPEATS, RepeatedAnswers
from rolegraph.engine.models.types import Completion, Request, ServedModel
from rolegraph.engine.prompts.call_forms import tool_call
from rolegraph.engine.prompts.chat import CLOSE, OPEN, split_reasoning
from rolegraph.engine.prompts.markers import escape_families
from rolegraph.engine.prompts.tools import calls_of, described
from rolegraph.engine.records import Message
from rolegraph.engine.vocabulary.replies import RejectedReply, bound_replies

_logger = logging.getLogger(__name__)
_PROBE_SECONDS = 10.0
_NO_KEY = "none"
_HEADERS_VARIABLE = "OPENAI_CUSTOM_HEADERS"
"""Environment variable of headers that the client sends with every call, whatever its URL."""
_ACCOUNT_VARIABLES = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
"""Environment variables of further headers."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~\w-]+\s*:", re.ASCII)

_REFUSALS = (
    openai.BadRequestError,
    openai.PermissionDeniedError,
    openai.UnprocessableEntityError,
    openai.InternalServerError,
)
"""Errors with which servers refuse fields that they do not know."""
_SERVER_FAILS = 500
"""Lowest HTTP status of a server failure, which counts as a refusal only of fields that it names."""
_IS_URL_RIGHT = ". Is the URL right? It often ends in /v1."
_MAY_BE_FULL = (200, 400, 413, 422, 500)
"""Statuses with which servers refuse a prompt that is too long."""
_FIRST_SECONDS = 2.0
"""Longest wait in seconds of other calls for the first call, whose refusals show which fields the server
accepts."""
_OPENAI = Taken(
    # OpenAI knows no return_token_ids, and its reasoning models refuse the others.
    frozenset({"return_token_ids", "return_prompt_token_ids", "temperature", "top_p"}),
    "max_completion_tokens",
)
"""Fields that OpenAI's own endpoint accepts."""


class ForeignClient(Protocol):
    """Client of another API, which returns answers and raises errors in the form of OpenAI's client."""

    @property
    def base_url(self) -> str:
        """URL, or name, of the API for messages."""
        ...

    async def post(
        self, name: str, messages: Sequence[Mapping[str, object]], fields: Mapping[str, object]
    ) -> bytes:
        """Send a request to a model, and return the answer as JSON."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


ChatClient = openai.AsyncOpenAI | ForeignClient


class OpenAIModel:
    """One model at one endpoint.

    Without `tokens`, only the answer is requested, no tokens and log-probabilities: a gateway in between
    records these itself. With `escapes`, a space is put into chat markers in texts, since the server would
    turn them to special tokens. `body` has the model's own fields in the spec, `taken` the known fields that
    the server accepts. `key` is the key that `client` sends.
    """

    def __init__(
        self,
        client: ChatClient,
        name: str,
        *,
        key: str | None = None,
        tokens: bool = True,
        escapes: bool = False,
        body: Mapping[str, Any] = MappingProxyType({}),
        taken: Taken | None = None,
    ) -> None:
        self._body = body
        self._escapes = escapes
        self._client = client
        self.name = name
        self._key = key
        self._url = str(client.base_url).rstrip("/")
        self._rule = OPENAI if isinstance(client, openai.AsyncOpenAI) else None
        self._tokens = tokens
        self.taken = taken or (_OPENAI if self._url == OPENAI.default_url else Taken())
        """Fields that the server accepted last."""
        self._at_first = self.taken.left_out
        self._known: dict[frozenset[str], Taken] = {}
        """Fields that the server accepted, by kind of request."""
        self._refused = set[frozenset[str]]()
        """Kinds of request that the server refused both with all fields and without the optional ones."""
        self.left_out = set[str]()
        """Names of the optional fields that the server refused, except those for tokens."""
        self._has_begun, self._is_open = False, asyncio.Event()
        self._has_warned = not tokens
        self._has_reasoning_alone = False
        self._repeats = RepeatedAnswers()

    async def complete(self, request: Request) -> Completion:
        """Send one chat request to the endpoint and return the completion; raises ModelError."""
        try:
            async with errors_of_calls(self._url, self._key, self._rule):
                answer = await self._ask(request)
        except UnreadableAnswer as error:
            # Transient, since a gateway under load may send such an answer.
            message = f"{self._url} does not answer as OpenAI's chat completions do: {error}"
            raise ModelError(message + _IS_URL_RIGHT * error.is_foreign, transient=True) from error
        if not answer.choices:
            raise self._no_answer(answer.error or "no choices")
        completion = self._completion(answer, answer.choices[0])
        self._warn_of_repeats(request, completion)
        return completion

    async def aclose(self) -> None:
        """Close the client's HTTP connections."""
        await self._client.close()

    def _no_answer(self, error: object) -> ModelError:
        """Return the ModelError for a response with status 200 that has an error in place of an answer."""
        reason = message_of(error)
        if says_context_full(reason, *_codes_of(error)):
            return ContextFull(f"{self._url}: {reason}")
        return ModelError(f"{self._url} gave no answer: {reason}", transient=True)

    async def _ask(self, request: Request) -> ServerCompletion:
        """Send a request again with fewer fields, or as a stream, until the server accepts it.

        Other calls wait a moment for the very first, so that a thousand are not refused together.

        Raises:
            UsageError: The server refuses a field that the spec asks for.
        """
        asked_fields = fields_of(request, self._body, tokens=self._tokens)
        kind = kind_of(asked_fields, request)
        is_first, self._has_begun = not self._has_begun, True
        if not is_first and not self._is_open.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_SECONDS):
                    await self._is_open.wait()
            self._is_open.set()
        trial_fields: Taken | None = None
        try:
            while True:
                taken = trial_fields or self._known.get(kind, self.taken)
                try:
                    answer = await self.send(request, sent(asked_fields, taken))
                except _REFUSALS as error:
                    if says_context_full(_said(error), error.code, error.type):
                        raise
                    learned = self._learned(request, asked_fields, taken, error, is_known=kind in self._known)
                    if learned is None:
                        is_failure = error.status_code >= _SERVER_FAILS
                        if is_failure or kind in self._known or kind in self._refused:
                            raise
                        # The refusal may be about the prompt, so what is left out is kept after an answer.
                        trial_fields = after_unclear_refusal(asked_fields, taken)
                        if trial_fields is None:
                            self._refused.add(kind)
                            raise
                        continue
                else:
                    learned = _learned_from_error(asked_fields, taken, answer)
                    if learned is None:
                        if not answer.choices or answer.fault:
                            return answer
                        if trial_fields is not None:
                            self.taken = taken._replace(left_out=taken.left_out | self.taken.left_out)
                        self._known[kind] = taken
                        self._tell(asked_fields, taken)
                        return answer
                if trial_fields is None:
                    self.taken = learned
                else:
                    trial_fields = learned
                self._known.pop(kind, None)
        finally:
            self._is_open.set()

    def _learned(
        self,
        request: Request,
        asked: Mapping[str, AskedField],
        taken: Taken,
        error: openai.APIStatusError,
        *,
        is_known: bool,
    ) -> Taken | None:
        """Return the fields that the server accepts, as learnt from a refusal; None if the refusal names no
        field.

        Args:
            request: The request.
            asked: Fields of the request.
            taken: Fields that the server was assumed to accept.
            error: The refusal.
            is_known: True if the server has accepted this kind of request before.

        Raises:
            UsageError: The server refuses a field that the spec asks for.
        """
        is_certain = error.status_code < _SERVER_FAILS
        refusal = f"{error.message}\n{error.response.text}"
        new_taken = after_refusal(asked, taken, refusal, error.param, is_certain=is_certain)
        if isinstance(new_taken, str):
            if is_known or not is_certain:
                raise error
            if new_taken not in asked:  # a stream, which was sent because the server refused to do without
                self.taken = self.taken._replace(streams=False, left_out=self.taken.left_out | {"stream"})
                raise error
            raise self._insists(new_taken, asked[new_taken], error) from error
        return new_taken

    def _tell(self, asked: Mapping[str, AskedField], taken: Taken) -> None:
        """Log a warning that names the optional fields which the server newly refuses.

        Args:
            asked: Fields of the request.
            taken: Fields that the server accepts.
        """
        new_names = [n for n in asked if n in taken.left_out - self._at_first - self.left_out - {*EXTRAS}]
        if new_names := [n for n in new_names if not asked[n].place]:
            self.left_out.update(new_names)
            _logger.warning("%s %s", self._url, warning_of(new_names))

    def _insists(self, name: str, field: AskedField, error: openai.APIStatusError) -> UsageError:
        return UsageError(
            f"{self._url} refuses `{name}`, which {field.place} sets to {field.value!r}: {_said(error)}. "
            f"Change the value, or leave the field out: `body: {{{name}: null}}` of the model"
        )

    async def send(self, request: Request, fields: Mapping[str, object]) -> ServerCompletion:
        """Send a request with fields beside model, messages and tools, and read the answer."""
        messages = with_unique_ids([*map(wire_message, request.messages)])
        tools = described(request.tools)
        if self._escapes:
            messages, tools = escape_families(messages), escape_families(tools)
        body_fields = {**fields, **({"tools": tools} if tools else {})}
        if isinstance(self._client, openai.AsyncOpenAI):
            # `chat.completions.create` would walk the messages by their types, for a third of a call's time.
            body = {"model": self.name, "messages": messages, **body_fields}
            response: Any = await self._client.post("/chat/completions", cast_to=httpx.Response, body=body)
            answer = read_answer(response.content)
            if (is_of_key := says_key_refused(answer.fault)) or says_refused(answer.fault):
                kind = openai.AuthenticationError if is_of_key else openai.BadRequestError
                raise kind(message_of(answer.fault), response=response, body=answer.fault)
            return answer
        return read_answer(await self._client.post(self.name, messages, body_fields))

    def _warn_of_lack(self) -> None:
        """Log a warning, once, that the answers have no log-probabilities, with the reason."""
        if self._has_warned:
            return
        self._has_warned = True
        _logger.warning(
            "%s %s `logprobs`, so the answers of %s have no log-probabilities: they can be scored, but not "
            "trained on (for that, sample from local:NAME, tinker:NAME, vllm:NAME or sglang:NAME)",
            self._url,
            "refuses" if "logprobs" in self.taken.left_out else "ignores",
            self.name,
        )

    def _warn_of_reasoning(self) -> None:
        """Log a warning, once, that the server treats whole answers as reasoning."""
        if not self._has_reasoning_alone:
            self._has_reasoning_alone = True
            _logger.warning(
                "%s gives answers of %s with reasoning and without content: all of it is in its field of "
                "reasoning, and no parser reads it; check the server's reasoning parser (vLLM, SGLang: "
                "--reasoning-parser)",
                self._url,
                self.name,
            )

    def _warn_of_repeats(self, request: Request, completion: Completion) -> None:
        """Log a warning, once, if answers to repeated prompts are all equal."""
        if self._repeats.is_decided:
            return
        prompt, temperature = json.dumps(request.messages), request.sampling.temperature
        if self._repeats.are_all_equal(prompt, completion.thought + completion.text, temperature):
            _logger.warning(
                "%s: all %d answers of %s to repeated prompts equal the first, at temperature %g. The "
                "server may ignore the temperature (transformers serve does, unless the model's "
                'generation_config.json has `"do_sample": true`), or a gateway may answer from a cache',
                self._url,
                REPEATS,
                self.name,
                temperature,
            )

    def _completion(self, answer: ServerCompletion, choice: Choice) -> Completion:
        message = choice.message or AnswerMessage()
        if choice.error:
            raise self._no_answer(choice.error)
        if choice.finish_reason == "content_filter":
            raise AnswerWithheld(f"{self._url} withheld the answer: finish_reason is content_filter.")
        if choice.is_broken_off:
            raise ModelError(f"{self._url} broke off the answer: {choice.finish_reason}", transient=True)
        content, _, refusal_text = message.content
        refusal = message.refusal or refusal_text
        if refusal and not content:
            raise AnswerWithheld(f"The model refused to answer: {refusal}")
        stated_thought = message.thought.strip()
        thought, text = split_reasoning(content, opened=closes_unopened(content))
        if stated_thought and not (text or message.tool_calls or choice.is_cut):
            self._warn_of_reasoning()
        if not choice.scores and (text or thought or stated_thought):
            self._warn_of_lack()
        return Completion(
            text=text,
            thought="\n".join(thought_part for thought_part in (stated_thought, thought) if thought_part),
            prompt_ids=answer.prompt_ids,
            response_ids=choice.ids,
            logprobs=[score.logprob for score in choice.scores],
            finish_reason="length" if choice.is_cut else "stop",
            usage=answer.usage,
            calls=tuple(
                tool_call(call.function.name or "", call.function.arguments, str(call.id or "").strip())
                for call in message.tool_calls or ()
                if call.function is not None
            ),
        )


def _learned_from_error(
    asked: Mapping[str, AskedField], taken: Taken, answer: ServerCompletion
) -> Taken | None:
    """Return the fields that the server accepts, if an error with status 200 names a field; else None."""
    message = message_of(answer.fault) if answer.fault else ""
    if not message or says_context_full(message, *_codes_of(answer.fault)):
        return None
    new_taken = after_refusal(asked, taken, message, is_certain=False)
    return None if isinstance(new_taken, str) else new_taken


def _codes_of(error: object) -> tuple[object, object]:
    fields = fields_in(error)
    return fields.get("code"), fields.get("type")


def _has_error(content: bytes) -> bool:
    """Return True for a response that has an error in the protocol's form, such as for an unknown model."""
    try:
        answer = read_answer(content)
    except UnreadableAnswer as error:
        return not error.is_foreign
    return answer.error is not None or not answer.choices


@asynccontextmanager
async def errors_of_calls(url: str, key: str | None, rule: KeyRule | None) -> AsyncGenerator[None]:
    """Limit the time of a client's call in a block, and convert its errors to ModelError."""
    try:
        async with asyncio.timeout(COMPLETION_SECONDS.most):
            yield
    except TimeoutError as error:
        raise ModelError(f"{url} did not answer within {COMPLETION_SECONDS}") from error
    except RejectedReply as error:
        raise ModelError(f"rejected response from {url}: {error}") from error
    except openai.OpenAIError as error:
        raise _failure(error, url, key, rule) from error


def _failure(error: openai.OpenAIError, url: str, key: str | None, rule: KeyRule | None) -> ModelError:
    reason = _said(error)
    match error:
        case openai.APIStatusError(status_code=status) if status in _MAY_BE_FULL and says_context_full(
            reason, error.code, error.type
        ):
            return ContextFull(f"{url} answers {status}: {reason}")
        case openai.AuthenticationError() | openai.PermissionDeniedError() if rule is not None:
            return ModelError(_refused(url, key, reason, rule))
        case openai.APIStatusError():
            is_spent = error.code == "insufficient_quota"
            transient = (error.status_code in (408, 409, 429) or error.status_code >= 500) and not is_spent
            delay = retry_after(error.response.headers)
            message = f"{url} answers {error.status_code}: {reason}"
            if rule and error.status_code in (404, 405) and not _has_error(error.response.content):
                message += _IS_URL_RIGHT
            return ModelError(message, transient=transient, after=delay)
        case openai.APITimeoutError():
            return ModelError(f"{url} did not answer in time.", transient=True)
        case openai.APIConnectionError():
            return ModelError(f"Cannot reach {url}{route(url)}: {reason}", transient=True)
        case _:
            return ModelError(f"{url}: {reason}")


async def open_openai(served: ServedModel) -> OpenAIModel:
    """Open the model that `served` names, or the endpoint's only model; errors as in `open_served`."""
    url = OPENAI.url(served.ref.base_url)
    key = OPENAI.key(url, explicit=served.api_key, trusted_url=served.trusted_url)
    if key is None and url == OPENAI.default_url:
        raise UsageError(f"{OPENAI.key_variable} is not set, and {url} needs a key: put it in that variable.")
    client = open_client(served, OPENAI, url, key)
    try:
        names = [model_card.id for model_card in await list_models(client, url, key)]
        name = served.ref.name or only_model(names, url)
        return OpenAIModel(
            client, name, key=key, escapes=bool(served.ref.escape_markers), body=served.ref.body
        )
    except BaseException:
        await client.close()
        raise


def open_client(served: ServedModel, rule: KeyRule, url: str, key: str | None) -> openai.AsyncOpenAI:
    """Open the client of an endpoint.

    Args:
        served: The model at the endpoint.
        rule: The provider's rule of keys.
        url: Base URL of the calls; each call has its query.
        key: The key to send.

    Raises:
        UsageError: The environment's headers may not be sent to `url`.
    """
    is_trusted = rule.trusts(url, served.trusted_url)
    account_headers = _account()
    if os.environ.get(_HEADERS_VARIABLE) and not (served.api_key or is_trusted):
        raise UsageError(rule.withheld(url, _HEADERS_VARIABLE))

    async def refuse_redirect(request: Any) -> None:
        # On a redirect to another origin the client removes the key, but sends all else.
        if not same_origin(url, str(request.url)):
            message = f"it redirects to {request.url}"
            raise openai.APIConnectionError(message=message, request=request)

    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [refuse_redirect]}, **client_options(url))
    bound_replies(http, COMPLETION_BYTES)
    address, _, query = url.partition("?")  # in a base URL, the client would write paths behind the query
    client = openai.AsyncOpenAI(
        base_url=address,
        api_key=key or _NO_KEY,
        default_query=dict(parse_qsl(query, keep_blank_values=True)),
        max_retries=0,
        http_client=http,
    )
    # The client has read them in the environment, whatever its URL, with the line ends of their files.
    client.organization, client.project = account_headers if rule is OPENAI and is_trusted else (None, None)
    return client


def _account() -> tuple[str | None, ...]:
    """Return the account's headers of the environment; raises UsageError for headers that cannot be sent."""
    for line in os.environ.get(_HEADERS_VARIABLE, "").splitlines():
        if header_value(_HEADERS_VARIABLE, line) and not _HEADER.match(line.strip()):
            raise UsageError(f"{_HEADERS_VARIABLE}: a line is no header; expected lines such as `X-Team: a`")
    return tuple(header_value(name, os.environ.get(name, "")) or None for name in _ACCOUNT_VARIABLES)


class ModelCard(BaseModel):
    """Entry of an endpoint's list of models; vLLM and SGLang give more than the id."""

    id: str
    root: str | None = None
    """Folder or name of the weights."""
    parent: str | None = None
    """Base model of an adapter."""
    max_model_len: int | None = None


class _ModelCards(BaseModel):
    data: list[ModelCard]


async def list_models(
    client: openai.AsyncOpenAI, url: str, key: str | None, rule: KeyRule = OPENAI
) -> list[ModelCard]:
    """List the endpoint's models; empty if it has no list. Raises within seconds if nothing answers."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            answer = await client.models.with_raw_response.list()
            return _ModelCards.model_validate_json(answer.http_response.content).data
    except (openai.APIConnectionError, TimeoutError) as error:
        reason = _said(error) if isinstance(error, openai.OpenAIError) else f"not in {_PROBE_SECONDS:g} s"
        raise WorldError(
            f"Nothing answers at {url} ({reason}){route(url)}. Is the server running, and is the URL right?"
        ) from error
    except openai.AuthenticationError as error:
        raise UsageError(_refused(url, key, _said(error), rule)) from error
    except (openai.OpenAIError, RejectedReply, AttributeError, TypeError, ValueError):
        return []  # a gateway without a list of models, or with one in another shape


def only_model(names: Sequence[str], url: str) -> str:
    """Return the only name in a list of models; raises UsageError for an empty list and for several names."""
    if len(names) == 1:
        return names[0]
    offers = f"{url} offers {', '.join(names[:5])}" if names else f"{url} lists no models"
    raise UsageError(f"Which model? Write `openai:NAME`; {offers}{' and more' if len(names) > 5 else ''}.")


def _refused(url: str, key: str | None, reason: str, rule: KeyRule) -> str:
    """Return the message for a 401 or 403."""
    if key is None and os.environ.get(rule.key_variable):
        return f"{url} requires a key ({reason}). {rule.withheld(url)}"
    state = "requires a key; put it in" if key is None else "refuses the key in"
    return f"{url} {state} {rule.key_variable} ({reason})."


def wire_message(message: Message) -> dict[str, object]:
    """Return a message as OpenAI's API takes it: without reasoning, and with valid JSON as call arguments.

    A server that parses the arguments again would refuse the whole chat for invalid ones.
    """
    if len(message) == 2:
        return dict(message)
    wire: dict[str, object] = {"role": message["role"], "content": message["content"]}
    if "tool_call_id" in message:
        wire["tool_call_id"] = message["tool_call_id"]
    raw_calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    calls = [
        {**wire_call, "function": {"name": call.name, "arguments": "{}"}} if call.malformed else wire_call
        for call, wire_call in zip(calls_of(message), raw_calls, strict=True)
        if call.name
    ]
    return {**wire, "tool_calls": calls} if calls else wire


def with_unique_ids(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Return wire messages in which each tool call has a unique id, and each result the id of its call.

    Servers give equal ids, or no ids, to parallel calls and to calls of other turns, and refuse such a chat.
    """
    used_ids, waiting_calls, wire_messages = set[str](), list[tuple[object, str]](), list[dict[str, object]]()
    for message in messages:
        calls = cast("Sequence[Mapping[str, Any]]", message.get("tool_calls") or ())
        named_calls: list[Mapping[str, Any]] = []
        for call in calls:
            free_ids = (f"call-{number}" for number in count(len(used_ids) + 1))
            id = call.get("id") or ""
            id = id if id and id not in used_ids else next(new for new in free_ids if new not in used_ids)
            used_ids.add(id)
            waiting_calls.append((call.get("id") or "", id))
            named_calls.append({**call, "id": id})
        if calls:
            message = {**message, "tool_calls": named_calls}
        elif "tool_call_id" in message:
            entry = next((new for new in waiting_calls if new[0] == (message["tool_call_id"] or "")), None)
            if entry is not None:
                waiting_calls.remove(entry)
                message = {**message, "tool_call_id": entry[1]}
        wire_messages.append(message)
    return wire_messages


def closes_unopened(text: str) -> bool:
    """Return True if `text` has `</think>` without `<think>` before it, as when the template opened the
    block."""
    text_before, close_tag, _ = text.partition(CLOSE)
    return bool(close_tag) and OPEN not in text_before


def _said(error: openai.OpenAIError) -> str:
    """Return the text of a failed call's error: the server's message, or the reason of a failed
    connection."""
    body = error.body if isinstance(error, openai.APIError) else None
    words = fields_in(body).get("message") or body  # a body may be `{"error": "…"}`, or text that is no JSON
    if isinstance(words, str) and words.strip():
        return words
    cause = error.__cause__
    if is_out_of_files(error):
        return "this process has too many open files; raise `ulimit -n`, or lower the concurrency"
    return (str(cause) if cause is not None else "") or str(error)
