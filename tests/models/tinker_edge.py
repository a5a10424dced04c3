"""A Tinker service that says what a test tells it to, on the wire of SDK 0.38; it has no model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as wire

from tests.models.edges import served

Sampled = tuple[Sequence[int], Sequence[float], str]
"""Token ids, log-probabilities, and `stop` or `length`."""
Script = Callable[[dict[str, Any]], Sampled | Response]
"""What a request to sample comes to: an answer, or a response that refuses it."""


@dataclass
class Service:
    """What was asked of the service, and how it is doing."""

    script: Script
    models: list[dict[str, Any]]
    base_url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    finished: int = 0
    results: dict[str, Sampled | Response] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=itertools.count)

    def app(self) -> Starlette:
        posts = {
            "client/config": lambda _: {},
            "client/dynamic_config": lambda _: {},
            "create_session": lambda _: {"session_id": "session"},
            "session_heartbeat": lambda _: {},
            "sessions/session/finish": self._finish,
            "create_sampling_session": self._open,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
        }
        gets = {
            "healthz": lambda _: {"status": "ok"},
            "get_server_capabilities": lambda _: {"supported_models": self.models},
            "samplers/sampler": lambda _: {"sampler_id": "sampler", "base_model": "tiny"},
        }
        return Starlette(
            routes=[
                *[Route(f"/api/v1/{path}", self._handle(do), methods=["POST"]) for path, do in posts.items()],
                *[Route(f"/api/v1/{path}", self._handle(do)) for path, do in gets.items()],
            ]
        )

    def _handle(self, do: Callable[[dict[str, Any]], dict[str, Any] | Response]):
        async def endpoint(request: Request) -> Response:
            if "x-api-key" in request.headers:
                self.keys.add(request.headers["x-api-key"])
            result = do(await request.json() if request.method == "POST" else {})
            return result if isinstance(result, Response) else JSONResponse(result)

        return endpoint

    def _finish(self, _: dict[str, Any]) -> dict[str, Any]:
        self.finished += 1
        return {}

    def _open(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        names = [model["model_name"] for model in self.models]
        if body.get("base_model") in names or body.get("model_path"):
            return {"sampling_session_id": "sampler"}
        return JSONResponse({"detail": "unknown model"}, status_code=404)

    def _sample(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        self.asked.append(body)
        result = self.script(body)
        if isinstance(result, Response) and result.status_code != 200:
            return result
        name = str(next(self.ids))
        self.results[name] = result
        return {"request_id": name, "sample_sequence_ids": [name]}

    def _retrieve(self, body: dict[str, Any]) -> Response:
        result = self.results[body["request_id"]]
        if isinstance(result, Response):
            return result
        ids, logprobs, reason = result
        sequence = wire.SampledSequence(
            stop_reason=wire.STOP_REASON_STOP if reason == "stop" else wire.STOP_REASON_LENGTH,
            tokens=np.array(ids, np.int32).tobytes(),
            logprobs=np.array(logprobs, np.float32).tobytes(),
        )
        content = wire.SampleResponse(sequences=[sequence]).SerializeToString()
        return Response(content, media_type="application/x-protobuf")


def failed(message: str, category: str) -> JSONResponse:
    """An operation that was taken on, and failed."""
    return JSONResponse({"error": message, "category": category})


@contextmanager
def tinker_service(script: Script, *, context: int = 512) -> Iterator[Service]:
    """Serve `script` as the model `tiny` for the time of the block."""
    service = Service(script, [{"model_name": "tiny", "max_context_length": context}])
    with served(service.app()) as service.base_url:
        yield service
