"""Chat completions, as OpenAI's API has them, beside the Tinker API: for clients that know only those.

Token ids come in vLLM's fields (`prompt_token_ids`, and `token_ids` of a choice), where they are asked for
with `return_token_ids`. Tools are the chat template's; answers are not streamed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.errors import ModelError
from engine.local.service.backend import Backend
from engine.local.service.calls import Endpoint, check_name, guarded, read
from engine.local.service.sampling import SampleRequest
from engine.local.service.trainer import Refused
from engine.prompts import ChatFormat
from engine.prompts.tools import answer_message
from engine.records import Message
from engine.vocabulary import Function


def openai_endpoint(do: Endpoint) -> Endpoint:
    """An endpoint whose refusals look as OpenAI's clients show them."""
    inner = guarded(do)

    async def endpoint(request: Request) -> Response:
        response = await inner(request)
        if response.status_code < 400:
            return response
        message = json.loads(bytes(response.body))["detail"]
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        return JSONResponse({"error": error}, status_code=response.status_code)

    return endpoint


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: str
    text: str = ""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: Literal["function"] = "function"
    function: _Asked


class _Turn(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    def message(self) -> Message:
        """The turn with its text parts in one; raises Refused for what is no text."""
        message: dict[str, Any] = {"role": self.role, "content": self._text()}
        if self.role == "tool":
            named = {"name": self.name, "tool_call_id": self.tool_call_id}
            message |= {key: value for key, value in named.items() if value}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        return message

    def _text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        if other := [part.type for part in self.content if part.type != "text"]:
            raise Refused(f"a message's part of type {other[0]!r} is not served here; text is")
        return "".join(part.text for part in self.content)


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class _Tool(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    function: _Told

    def offered(self) -> Function:
        """The function, which whoever asks calls."""
        told = self.function
        return Function(told.name, told.description, told.parameters, _elsewhere)


async def _elsewhere(arguments: Mapping[str, Any]) -> NoReturn:
    raise AssertionError("a tool is called by who offers it")


class ChatBody(BaseModel):
    """chat/completions."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    """The served model's name, or a `tinker://` path of sampling weights."""
    messages: Annotated[list[_Turn], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    logprobs: bool | None = False
    return_token_ids: bool | None = False
    stream: bool | None = False
    tools: list[_Tool] | None = None
    tool_choice: Any = None


class ChatService:
    """The two endpoints; `names` are all that clients may call the model."""

    def __init__(self, backend: Backend, name: str, names: frozenset[str]) -> None:
        self._backend, self._name, self._names = backend, name, names
        self._chat = ChatFormat(backend.policy.tokenizer, name)

    async def models(self, request: Request) -> Response:
        """The one model."""
        return JSONResponse({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def complete(self, request: Request) -> Response:
        """Answers to a chat, in the model's own format."""
        body = await read(request, ChatBody)
        if body.stream:
            raise Refused("answers are not streamed here; leave `stream` out")
        if body.tool_choice not in (None, "auto", "none"):
            raise Refused("a `tool_choice` other than auto or none is not served here")
        tools = [] if body.tool_choice == "none" else [tool.offered() for tool in body.tools or ()]
        path = body.model if body.model and body.model.startswith("tinker://") else None
        if path is None and body.model is not None:
            check_name(body.model, self._name, self._names)
        try:
            prompt = self._chat.prompt([turn.message() for turn in body.messages], tools)
        except ModelError as error:
            raise Refused(str(error)) from error
        samples = self._sample_requests(body, prompt.ids)
        await self._backend.sample(path, samples, prompt_logprobs=False)
        choices = [
            self._choice(body, index, sample, tools, thinking=prompt.thinking)
            for index, sample in enumerate(samples)
        ]
        written = sum(len(sample.tokens) for sample in samples)
        answer: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.model or self._name,
            "choices": choices,
            "usage": {
                "prompt_tokens": len(prompt.ids),
                "completion_tokens": written,
                "total_tokens": len(prompt.ids) + written,
            },
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = list(prompt.ids)
        return JSONResponse(answer)

    def _sample_requests(self, body: ChatBody, prompt: Sequence[int]) -> list[SampleRequest]:
        policy = self._backend.policy
        room = policy.context - len(prompt)
        if room < 1:
            raise Refused(f"the prompt has {len(prompt)} tokens, and the model's context is {policy.context}")
        wanted = body.max_completion_tokens or body.max_tokens or room
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        return [
            SampleRequest(
                prompt,
                max_tokens=min(wanted, room),
                temperature=body.temperature,
                top_p=body.top_p,
                seed=None if body.seed is None else (body.seed, number),
                stop_ids=policy.end_ids | set(self._chat.end_ids),
                stop_texts=tuple(stop),
            )
            for number in range(body.n)
        ]

    def _choice(
        self, body: ChatBody, index: int, sample: SampleRequest, tools: Sequence[Function], *, thinking: bool
    ) -> dict[str, Any]:
        thought, text = self._chat.answer(sample.tokens, stop=sample.stop_texts, thinking=thinking)
        text, calls = self._chat.calls(text, tools)
        # OpenAI has no call without a name: it stands in the text.
        named = [call._replace(id=f"call-{uuid.uuid4().hex}") for call in calls if call.name]
        message = dict(answer_message(text, calls=named))
        if thought:
            message["reasoning_content"] = thought
        reason = "tool_calls" if named else sample.reason
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": reason}
        if body.logprobs:
            tokens = self._backend.policy.decode([[token] for token in sample.tokens])
            choice["logprobs"] = {
                "content": [
                    {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for token, logprob in zip(tokens, sample.logprobs, strict=True)
                ]
            }
        if body.return_token_ids:
            choice["token_ids"] = sample.tokens
        return choice
