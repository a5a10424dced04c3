"""Answers from a Tinker service, hosted or at any URL, through the SDK's own sampling client.

In: messages. Out: text and reasoning, with every token id and its log-probability at the sampling
temperature. The chat format is the model's own (`engine/prompts/chat.py`). The caller retries; an
error says whether a retry may help.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TypeVar

import httpx
import tinker
from tinker.types import RequestErrorCategory

from rolegraph.engine.errors import ContextFull, ModelError, WorldError
from rolegraph.engine.models.keys import redact
from rolegraph.engine.models.retry_after import retry_after
from rolegraph.engine.models.types import Completion, Request
from rolegraph.engine.prompts import ChatFormat, TokenizedPrompt

_PROBE_SECONDS = 5.0
_PATIENCE_SECONDS = 10.0
_CLOSE_SECONDS = 5.0

_logger = logging.getLogger(__name__)
T = TypeVar("T")
# What the SDK logs comes back as errors too; without a handler of its own Python prints it on the terminal.
logging.getLogger("tinker").addHandler(logging.NullHandler())


class TinkerModel:
    """A sampling client and the chat format of its model.

    `context` is the most tokens of prompt and answer together, None where the service does not say. `service`
    is closed with the model; None leaves it open. `weight_version` is the number of updates of the weights.
    """

    def __init__(
        self,
        client: tinker.SamplingClient,
        chat: ChatFormat,
        *,
        url: str,
        context: int | None = None,
        key: str | None = None,
        service: tinker.ServiceClient | None = None,
        weight_version: int | None = None,
    ) -> None:
        self._client = client
        self.chat = chat
        self._weight_version = weight_version
        self._url = url
        self._context = context
        self._key = key
        self._service = service
        self._pulse = Pulse(url)

    async def complete(self, request: Request) -> Completion:
        """Answer one request; raises ModelError."""
        messages, tools = request.messages, request.tools
        if request.continues is None:
            prompt = self.chat.prompt(messages, tools)
        else:
            prompt = self.chat.extended(request.continues, messages, tools)
        params = self._params(request, prompt)
        sampled = self._client.sample(tinker.ModelInput.from_ints(list(prompt.ids)), 1, params)
        sequence = (await self._answer(sampled)).sequences[0]
        ids, logprobs = sequence.tokens, sequence.logprobs or []
        if logprobs and len(logprobs) != len(ids):
            raise ModelError(f"{self._url} gave {len(logprobs)} log-probabilities for {len(ids)} tokens.")
        thought, text = self.chat.answer(ids, stop=request.sampling.stop, thinking=prompt.thinking)
        text, calls = self.chat.calls(text, tools)
        return Completion(
            text=text,
            thought=thought,
            prompt_ids=prompt.ids,
            response_ids=ids,
            logprobs=logprobs,
            finish_reason=sequence.stop_reason,
            weight_version=self._weight_version,
            calls=calls,
        )

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Return the log-probabilities of given response tokens, [T], at temperature 1; raises ModelError."""
        tokens = tinker.ModelInput.from_ints([*prompt_ids, *response_ids])
        logprobs = await self._answer(self._client.compute_logprobs(tokens))
        of_response = [value for value in logprobs[len(prompt_ids) :] if value is not None]
        if len(of_response) != len(response_ids):
            raise ModelError(
                f"{self._url} gave {len(of_response)} log-probabilities for {len(response_ids)} tokens."
            )
        return of_response

    async def aclose(self) -> None:
        """Close the session, unless another caller opened it."""
        if self._service is None:
            return
        try:
            await asyncio.wait_for(self._service.close("success").result_async(), _CLOSE_SECONDS)
        except (tinker.TinkerError, httpx.HTTPError, TimeoutError) as error:
            # The run has its answers, and the service drops a silent session by itself.
            _logger.debug("Closing the session at %s: %s", self._url, error)

    async def _answer(self, future: tinker.APIFuture[T]) -> T:
        """Wait for the service's answer; raises ModelError, also where the service is gone."""
        try:
            return await self._pulse.result(future)
        except WorldError as error:
            raise ModelError(str(error), transient=True) from error
        except Exception as error:  # the SDK raises ValueError, RuntimeError and its own family alike
            after = retry_after(error.response.headers) if isinstance(error, tinker.APIStatusError) else None
            message = redact(said(error), self._key)
            raise ModelError(message, transient=_is_transient(error), after=after) from error

    def _params(self, request: Request, prompt: TokenizedPrompt) -> tinker.SamplingParams:
        sampling = request.sampling
        max_tokens = sampling.max_tokens
        if self._context is not None:
            room = self._context - len(prompt.ids)
            if room < 1:
                raise ContextFull(
                    f"The prompt does not fit: it has {len(prompt.ids)} tokens, and the model's context is "
                    f"{self._context} tokens, prompt and answer together."
                )
            max_tokens = min(max_tokens, room)
        # The wire takes texts or token ids, not both.
        stop: Sequence[str] | Sequence[int] | None = self.chat.end_ids or None
        if sampling.stop:
            stop = [*sampling.stop, *self.chat.end_texts]
        return tinker.SamplingParams(
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed,
            stop=stop,
        )


class Pulse:
    """A health check of the service while calls wait, shared by all calls and made at most every 5 s."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = asyncio.Lock()
        self._checked = -_PATIENCE_SECONDS
        self._fault: WorldError | None = None

    async def result(self, future: tinker.APIFuture[T]) -> T:
        """Wait for the service's answer.

        Raises the SDK's errors, and WorldError where the service is gone: the SDK would wait for ever.
        """
        call = asyncio.ensure_future(future.result_async())
        try:
            while not (await asyncio.wait({call}, timeout=_PATIENCE_SECONDS))[0]:
                await self._check()
            return call.result()
        except asyncio.CancelledError:
            if not call.cancelled():
                raise  # the caller was cancelled, not the call
            raise WorldError(f"The call to {self._url} was dropped by the SDK.") from None
        finally:
            call.cancel()

    async def _check(self) -> None:
        """Raise WorldError where the service is gone; a slow service counts as alive."""
        async with self._lock:
            if time.monotonic() - self._checked >= _PATIENCE_SECONDS / 2:
                self._fault = await self._ask()
                self._checked = time.monotonic()
            if self._fault is not None:
                raise WorldError(str(self._fault))

    async def _ask(self) -> WorldError | None:
        try:
            await get_health(self._url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return WorldError(f"The Tinker service at {self._url} is gone: {error or type(error).__name__}")
        except httpx.HTTPError as error:
            _logger.debug("Slow health check at %s: %s", self._url, error)
        return None


async def get_health(url: str) -> int:
    """Return the HTTP status of a service's health check; raises httpx.HTTPError within seconds."""
    async with httpx.AsyncClient(timeout=_PROBE_SECONDS) as http:
        return (await http.get(f"{url}/api/v1/healthz")).status_code


def _is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later; the SDK's wrapper errors are judged by their cause."""
    match error:
        case tinker.RequestFailedError():
            return error.category is not RequestErrorCategory.User
        case tinker.APIStatusError():
            return error.status_code in (408, 409, 410, 429) or error.status_code >= 500
        case tinker.APIConnectionError() | httpx.TransportError() | TimeoutError():
            return True
        case tinker.APIResponseValidationError() | ValueError():
            return True  # not a Tinker answer: a gateway under load may send such a thing
        case _:
            return error.__cause__ is not None and _is_transient(error.__cause__)


def said(error: BaseException) -> str:
    """Return an error's message without the SDK's own identifiers."""
    text = (str(error) or type(error).__name__).removeprefix("Request failed: ")
    return text.partition(" for self.request_id=")[0]
