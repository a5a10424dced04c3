"""The Tinker API over HTTP, as SDK 0.38 calls it, in front of one `Backend`.

Operations are answered with the id of a future at once; `retrieve_future` waits for the result. Paths that
are not served give a 404. A failed operation gives a 200 with the error, since the SDK retries a 5xx at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.launcher import PROCESS
from rolegraph.engine.local.service import wire
from rolegraph.engine.local.service.admission import Admission
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.chat import ChatService
from rolegraph.engine.local.service.completions import CompletionService
from rolegraph.engine.local.service.endpoints import (
    PROTOBUF,
    constant_route,
    guarded,
    json_route,
    not_served,
    read_bytes,
)
from rolegraph.engine.local.service.errors import (
    GoneError,
    NotFoundError,
    OperationCancelled,
    QueueFull,
    RequestError,
)
from rolegraph.engine.local.service.rest import Rest
from rolegraph.engine.local.service.sampling_calls import SamplingCalls
from rolegraph.engine.local.service.sessions import ClientSession, SessionStore

POLL_SECONDS = 20.0
"""Longest wait of one retrieve_future; the SDK gives up after 45."""

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
_logger = logging.getLogger(__name__)


class Service:
    """The Tinker endpoints for sessions, training and futures, and the application of all endpoints.

    `tokenizer` is the folder of the model's tokenizer; `silent` is the number of seconds without a request
    after which a client counts as gone.
    """

    def __init__(
        self, backend: Backend, *, tokenizer: str, silent: float = limits.SILENT_SECONDS.most
    ) -> None:
        self.backend, self.tokenizer = backend, tokenizer
        self.sessions = SessionStore(self._free, silent)
        self._saved = itertools.count(1)

    def app(self, api_key: str, host: str) -> Starlette:
        """Return the ASGI application for requests to `host` that carry the key."""
        chat, completions = ChatService(self.backend), CompletionService(self.backend)
        routes = [
            json_route("create_session", wire.CreateSessionBody, self._create_session),
            json_route("session_heartbeat", wire.SessionBody, self._heartbeat),
            json_route("create_model", wire.CreateModelBody, self._create_model),
            json_route("get_info", wire.ModelBody, self._get_info),
            json_route("unload_model", wire.ModelBody, self._unload_model),
            json_route("optim_step", wire.OptimStepBody, self._optim_step),
            json_route("save_weights", wire.SaveBody, self._save_weights),
            json_route("save_weights_external", wire.SaveBody, self._save_external),
            json_route("load_weights", wire.LoadBody, self._load_weights),
            json_route("weights_info", wire.WeightsInfoBody, self._weights_info),
            json_route("save_weights_for_sampler", wire.SaveBody, self._save_for_sampler),
            json_route("retrieve_future", wire.FutureBody, self._retrieve),
            json_route("cancel_future", wire.FutureBody, self._cancel),
            constant_route("POST", "client/config", {"proto_compress_fwdbwd": False}),
            constant_route("POST", "client/dynamic_config", {"sample_cancel_enabled": True}),
            constant_route("POST", "telemetry", {"status": "accepted"}),
            constant_route("GET", "healthz", {"status": "ok"}),
            constant_route("GET", "get_server_capabilities", self._capabilities()),
            Route("/api/v1/forward_backward", guarded(self._forward_backward), methods=["POST"]),
            Route("/api/v1/sessions/{session_id}/finish", guarded(self._finish_session), methods=["POST"]),
        ]
        routes += SamplingCalls(self.backend, self.sessions).routes()
        routes += Rest(self.backend, self.sessions).routes()
        routes.append(Route("/v1/chat/completions", guarded(chat.complete), methods=["POST"]))
        routes.append(Route("/v1/completions", guarded(completions.complete), methods=["POST"]))
        routes.append(Route("/v1/models", guarded(completions.models), methods=["GET"]))
        routes.append(Route("/v1/models/{name:path}", guarded(completions.model), methods=["GET"]))
        routes.append(Route("/{path:path}", not_served, methods=_METHODS))
        return Starlette(
            routes=routes,
            middleware=[Middleware(Admission, api_key=api_key, host=host)],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None, None]:
        watch = asyncio.create_task(self.sessions.watch())
        yield
        watch.cancel()

    # sessions

    def _capabilities(self) -> dict[str, Any]:
        model = {
            "model_name": self.backend.name,
            "max_context_length": self.backend.model.context,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [model]}

    async def _create_session(self, body: wire.CreateSessionBody) -> object:
        session = self.sessions.begin((body.user_metadata or {}).get(PROCESS))
        return {"type": "create_session", "session_id": session.id}

    async def _heartbeat(self, body: wire.SessionBody) -> object:
        session_id = body.session_id
        if self.sessions.find(session_id) is None:
            raise GoneError(f"the session {session_id} is over")
        return {"type": "session_heartbeat"}

    async def _finish_session(self, request: Request) -> Response:
        session = self.sessions.find(str(request.path_params["session_id"]))
        if session is not None:
            await self.sessions.finish(session)
        return JSONResponse({"status": "accepted"})

    async def _free(self, session: ClientSession) -> None:
        await self.backend.forget(session.models)

    def _session_of_model(self, model_id: str) -> ClientSession:
        """Return the session that owns a model. Raises NotFoundError."""
        self.backend.run(model_id)
        session = self.sessions.find(model_id)
        if session is None:
            raise NotFoundError(f"the session of the model {model_id!r} is finished")
        return session

    def _new_model(self, session: ClientSession, number: int | None) -> str:
        """Reserve and return the id of a session's model. Raises QueueFull."""
        if number is None:
            raise RequestError("name a model by model_id, or a new one by session_id and model_seq_id")
        model_id = f"{session.id}:train:{number}"
        if model_id not in session.models and len(session.models) >= limits.MODELS.most:
            raise QueueFull(f"this session has {limits.MODELS}; unload some")
        session.models.add(model_id)
        return model_id

    # training

    async def _create_model(self, body: wire.CreateModelBody) -> object:
        session = self.sessions.get(body.session_id)
        self.backend.check_name(body.base_model)
        if body.lora_config is None:
            raise RequestError("only LoRA training is served here; give a lora_config")
        if body.optimizer_config is not None and body.optimizer_config.type != "adamw":
            raise RequestError(f"the optimizer {body.optimizer_config.type!r} is not served here; adamw is")
        shape = body.lora_config.shape()
        model_id = self._new_model(session, body.model_seq_id)

        async def create() -> object:
            try:
                await self.backend.create(model_id, shape)
            except RequestError:
                session.models.discard(model_id)
                raise
            return {"type": "create_model", "model_id": model_id}

        return _accepted(session.futures.start(("create", model_id), create), model_id)

    async def _get_info(self, body: wire.ModelBody) -> object:
        model_id = body.model_id
        run = self.backend.run(model_id)
        model = {"arch": "causal_lm", "model_name": self.backend.name, "tokenizer_id": self.tokenizer}
        return {
            "type": "get_info",
            "model_id": model_id,
            "model_data": model,
            "model_name": self.backend.name,
            "is_lora": True,
            "lora_rank": run.shape.rank,
        }

    async def _unload_model(self, body: wire.ModelBody) -> object:
        model_id = body.model_id
        session = self._session_of_model(model_id)

        async def unload() -> object:
            await self.backend.unload(model_id)
            session.models.discard(model_id)
            return {"type": "unload_model", "model_id": model_id}

        return _accepted(session.futures.start(("unload", model_id), unload), model_id)

    async def _forward_backward(self, request: Request) -> Response:
        body = wire.TrainRequest(await read_bytes(request, PROTOBUF, limits.TRAIN_BYTES))

        async def train() -> object:
            loss, logprobs = await self.backend.forward_backward(
                body.model_id, body.data, body.loss, body.config, backward=body.backward
            )
            return wire.train_response(loss, logprobs)

        return JSONResponse(self._in_turn(body.model_id, body.seq_id, train))

    async def _optim_step(self, body: wire.OptimStepBody) -> object:
        adam = body.adam_params
        if adam is None:
            raise RequestError("only Adam is served here; give adam_params")

        async def step() -> object:
            return {"metrics": await self.backend.step(body.model_id, adam)}

        return self._in_turn(body.model_id, body.seq_id, step)

    async def _save_weights(self, body: wire.SaveBody) -> object:
        name = body.path or f"checkpoint-{next(self._saved):06d}"

        async def save() -> object:
            options = replace(body.options(), listed=True)
            path = await self.backend.save(body.model_id, "weights", name, options, overwrite=body.overwrite)
            return {"type": "save_weights", "path": path}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _save_external(self, body: wire.SaveBody) -> object:
        if body.path is None:
            raise RequestError("the request has no path; external weights go by a name")
        name = body.path

        async def save() -> object:
            path = await self.backend.save(body.model_id, "external_weights", name, body.options())
            return {"type": "save_weights_external", "path": path}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _load_weights(self, body: wire.LoadBody) -> object:
        if body.base_model is not None:
            self.backend.check_name(body.base_model)

        async def load(model_id: str) -> object:
            await self.backend.load(model_id, body.path, optimizer=body.optimizer)
            return {"type": "load_weights", "path": body.path, "model_id": model_id}

        if body.model_id is not None:
            return self._in_turn(body.model_id, body.seq_id, partial(load, body.model_id))
        session = self.sessions.get(body.session_id)
        new = self._new_model(session, body.model_seq_id)
        return _accepted(session.futures.start(("create", new), partial(load, new)), new)

    async def _weights_info(self, body: wire.WeightsInfoBody) -> object:
        path = body.tinker_path
        shape = await self.backend.shape(path)
        return {
            "base_model": self.backend.name,
            "is_lora": True,
            "lora_rank": shape.rank,
            "train_unembed": shape.train_unembed,
            "train_mlp": shape.train_mlp,
            "train_attn": shape.train_attn,
        }

    async def _save_for_sampler(self, body: wire.SaveBody) -> object:
        if body.kind != "snapshot":
            raise RequestError(f"sampling weights of kind {body.kind!r} are not served here; snapshot is")
        session = self._session_of_model(body.model_id)

        async def save() -> object:
            name = body.path or f"snapshot-{next(self._saved):06d}"
            path = await self.backend.save(body.model_id, "sampler_weights", name, body.options())
            if body.path is not None:
                return {"type": "save_weights_for_sampler", "path": path}
            sampler = f"{body.model_id}:sampler:{body.sampling_session_seq_id or 0}"
            session.sampling[sampler] = path
            return {"type": "save_weights_for_sampler", "sampling_session_id": sampler}

        return self._in_turn(body.model_id, body.seq_id, save)

    # futures

    async def _retrieve(self, body: wire.FutureBody) -> object:
        request_id = body.request_id
        session = self.sessions.find(request_id)
        if session is None or request_id not in session.futures:
            raise GoneError(f"there is no request {request_id}, or its result is no longer kept")
        session.polls += 1
        try:
            result = await session.futures.result(request_id, POLL_SECONDS)
        except TimeoutError:
            pending = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(pending, status_code=408)
        except (RequestError, OperationCancelled) as error:
            return {"error": str(error), "category": "user"}
        except Exception as error:  # the client has to learn of it as the service's failure
            _logger.exception("request %s failed", request_id)
            return {"error": f"{type(error).__name__}: {error}", "category": "server"}
        finally:
            session.polls -= 1
        if isinstance(result, bytes):
            return Response(result, media_type=PROTOBUF)
        return result

    async def _cancel(self, body: wire.FutureBody) -> object:
        request_id = body.request_id
        session = self.sessions.find(request_id)
        if session is not None:
            session.futures.cancel(request_id)
        return {"status": "accepted"}

    def _in_turn(
        self, model_id: str, seq_id: int | None, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> object:
        """Start an operation in the order of the model's seq_ids and answer with its future's id."""
        futures = self._session_of_model(model_id).futures
        return _accepted(futures.start_in_turn(model_id, seq_id, work), model_id)


def _accepted(request_id: str, model_id: str) -> object:
    return {"request_id": request_id, "model_id": model_id}
