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
    Endpoint,
    Refusal,
    error_response,
    guarded,
    not_served,
    read_body,
    read_bytes,
)
from rolegraph.engine.local.service.errors import (
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
        posts: dict[str, Endpoint] = {
            "client/config": self._client_config,
            "client/dynamic_config": self._dynamic_config,
            "telemetry": self._telemetry,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{session_id}/finish": self._finish_session,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "unload_model": self._unload_model,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_external": self._save_external,
            "load_weights": self._load_weights,
            "weights_info": self._weights_info,
            "save_weights_for_sampler": self._save_for_sampler,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
        }
        gets: dict[str, Endpoint] = {
            "healthz": self._health,
            "get_server_capabilities": self._capabilities,
        }
        chat, completions = ChatService(self.backend), CompletionService(self.backend)
        routes = [Route(f"/api/v1/{path}", guarded(call), methods=["POST"]) for path, call in posts.items()]
        routes += [Route(f"/api/v1/{path}", guarded(call), methods=["GET"]) for path, call in gets.items()]
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

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _telemetry(self, request: Request) -> Response:
        return JSONResponse({"status": "accepted"})

    async def _client_config(self, request: Request) -> Response:
        return JSONResponse({"proto_compress_fwdbwd": False})

    async def _dynamic_config(self, request: Request) -> Response:
        return JSONResponse({"sample_cancel_enabled": True})

    async def _capabilities(self, request: Request) -> Response:
        model = {
            "model_name": self.backend.name,
            "max_context_length": self.backend.model.context,
            "trainable": True,
            "sampleable": True,
        }
        return JSONResponse({"supported_models": [model]})

    async def _create_session(self, request: Request) -> Response:
        body = await read_body(request, wire.CreateSessionBody)
        session = self.sessions.begin((body.user_metadata or {}).get(PROCESS))
        return JSONResponse({"type": "create_session", "session_id": session.id})

    async def _heartbeat(self, request: Request) -> Response:
        session_id = (await read_body(request, wire.SessionBody)).session_id
        if self.sessions.find(session_id) is None:
            return error_response(Refusal(410, f"the session {session_id} is over"))
        return JSONResponse({"type": "session_heartbeat"})

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

    async def _create_model(self, request: Request) -> Response:
        body = await read_body(request, wire.CreateModelBody)
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

    async def _get_info(self, request: Request) -> Response:
        model_id = (await read_body(request, wire.ModelBody)).model_id
        run = self.backend.run(model_id)
        model = {"arch": "causal_lm", "model_name": self.backend.name, "tokenizer_id": self.tokenizer}
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": model_id,
                "model_data": model,
                "model_name": self.backend.name,
                "is_lora": True,
                "lora_rank": run.shape.rank,
            }
        )

    async def _unload_model(self, request: Request) -> Response:
        model_id = (await read_body(request, wire.ModelBody)).model_id
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

        return self._in_turn(body.model_id, body.seq_id, train)

    async def _optim_step(self, request: Request) -> Response:
        body = await read_body(request, wire.OptimStepBody)
        adam = body.adam_params
        if adam is None:
            raise RequestError("only Adam is served here; give adam_params")

        async def step() -> object:
            return {"metrics": await self.backend.step(body.model_id, adam)}

        return self._in_turn(body.model_id, body.seq_id, step)

    async def _save_weights(self, request: Request) -> Response:
        body = await read_body(request, wire.SaveBody)
        name = body.path or f"checkpoint-{next(self._saved):06d}"

        async def save() -> object:
            options = replace(body.options(), listed=True)
            path = await self.backend.save(body.model_id, "weights", name, options, overwrite=body.overwrite)
            return {"type": "save_weights", "path": path}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _save_external(self, request: Request) -> Response:
        body = await read_body(request, wire.SaveBody)
        if body.path is None:
            raise RequestError("the request has no path; external weights go by a name")
        name = body.path

        async def save() -> object:
            path = await self.backend.save(body.model_id, "external_weights", name, body.options())
            return {"type": "save_weights_external", "path": path}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _load_weights(self, request: Request) -> Response:
        body = await read_body(request, wire.LoadBody)
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

    async def _weights_info(self, request: Request) -> Response:
        path = (await read_body(request, wire.WeightsInfoBody)).tinker_path
        shape = await self.backend.shape(path)
        return JSONResponse(
            {
                "base_model": self.backend.name,
                "is_lora": True,
                "lora_rank": shape.rank,
                "train_unembed": shape.train_unembed,
                "train_mlp": shape.train_mlp,
                "train_attn": shape.train_attn,
            }
        )

    async def _save_for_sampler(self, request: Request) -> Response:
        body = await read_body(request, wire.SaveBody)
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

    async def _retrieve(self, request: Request) -> Response:
        request_id = (await read_body(request, wire.FutureBody)).request_id
        session = self.sessions.find(request_id)
        if session is None or request_id not in session.futures:
            message = f"there is no request {request_id}, or its result is no longer kept"
            return error_response(Refusal(410, message))
        session.polls += 1
        try:
            result = await session.futures.result(request_id, POLL_SECONDS)
        except TimeoutError:
            pending = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(pending, status_code=408)
        except (RequestError, OperationCancelled) as error:
            return JSONResponse({"error": str(error), "category": "user"})
        except Exception as error:  # the client has to learn of it as the service's failure
            _logger.exception("request %s failed", request_id)
            return JSONResponse({"error": f"{type(error).__name__}: {error}", "category": "server"})
        finally:
            session.polls -= 1
        if isinstance(result, bytes):
            return Response(result, media_type=PROTOBUF)
        return JSONResponse(result)

    async def _cancel(self, request: Request) -> Response:
        request_id = (await read_body(request, wire.FutureBody)).request_id
        session = self.sessions.find(request_id)
        if session is not None:
            session.futures.cancel(request_id)
        return JSONResponse({"status": "accepted"})

    def _in_turn(
        self, model_id: str, seq_id: int | None, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> Response:
        """Start an operation in the order of the model's seq_ids and answer with its future's id."""
        futures = self._session_of_model(model_id).futures
        return _accepted(futures.start_in_turn(model_id, seq_id, work), model_id)


def _accepted(request_id: str, model_id: str) -> Response:
    return JSONResponse({"request_id": request_id, "model_id": model_id})
