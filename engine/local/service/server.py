"""The Tinker API over HTTP, as SDK 0.38 speaks it, in front of one `Backend`.

Operations answer with a future's id at once; `retrieve_future` waits for the result. What the service does
not serve is answered with a 404 that says so; an operation that fails is a 200 with the error, as the SDK
takes a 5xx for a reason to try again at once.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.local.service import wire
from engine.local.service.backend import Backend
from engine.local.service.calls import (
    Endpoint,
    KeyCheck,
    check_name,
    field,
    guarded,
    not_served,
    raw,
    read,
    refusal,
)
from engine.local.service.chat import ChatService, openai_endpoint
from engine.local.service.futures import Cancelled, Futures
from engine.local.service.rest import Rest
from engine.local.service.trainer import Missing, Refused

POLL_SECONDS = 20.0
"""How long one retrieve_future waits; the SDK gives up on it after 45."""

_logger = logging.getLogger(__name__)


class Service:
    """The API's state: sessions and futures.

    `name` is the model's, `names` are all that clients may call it; `tokenizer` is its tokenizer's folder.
    """

    def __init__(self, backend: Backend, name: str, names: frozenset[str], *, tokenizer: str) -> None:
        self.backend, self.name, self.names, self.tokenizer = backend, name, names, tokenizer
        self.futures = Futures()
        self._sessions: set[str] = set()
        self._sampling: dict[str, str | None] = {}
        """The checkpoint that each sampling session draws from; None for the base model."""
        self._saved = itertools.count(1)

    def app(self, api_key: str | None) -> Starlette:
        """The ASGI application; with a key, every call but the health check must carry it."""
        posts: dict[str, Endpoint] = {
            "client/config": self._client_config,
            "client/dynamic_config": self._dynamic_config,
            "telemetry": self._nothing,
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
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
        }
        gets: dict[str, Endpoint] = {
            "healthz": self._health,
            "get_server_capabilities": self._capabilities,
            "samplers/{sampler_id:path}": self._get_sampler,
        }
        routes = [Route(f"/api/v1/{path}", guarded(do), methods=["POST"]) for path, do in posts.items()]
        routes += [Route(f"/api/v1/{path}", guarded(do), methods=["GET"]) for path, do in gets.items()]
        routes += Rest(self.backend, self.name).routes()
        chat = ChatService(self.backend, self.name, self.names)
        routes.append(Route("/v1/chat/completions", openai_endpoint(chat.complete), methods=["POST"]))
        routes.append(Route("/v1/models", openai_endpoint(chat.models), methods=["GET"]))
        routes.append(Route("/{path:path}", not_served, methods=["GET", "POST", "PUT", "DELETE"]))
        return Starlette(routes=routes, middleware=[Middleware(KeyCheck, api_key=api_key)])

    # sessions and what there is

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _nothing(self, request: Request) -> Response:
        return JSONResponse({"status": "accepted"})

    async def _client_config(self, request: Request) -> Response:
        return JSONResponse({"proto_compress_fwdbwd": False})

    async def _dynamic_config(self, request: Request) -> Response:
        return JSONResponse({"sample_cancel_enabled": True})

    async def _capabilities(self, request: Request) -> Response:
        model = {
            "model_name": self.name,
            "max_context_length": self.backend.policy.context,
            "trainable": True,
            "sampleable": True,
        }
        return JSONResponse({"supported_models": [model]})

    async def _create_session(self, request: Request) -> Response:
        session_id = f"session-{uuid.uuid4().hex[:12]}"
        self._sessions.add(session_id)
        return JSONResponse({"type": "create_session", "session_id": session_id})

    async def _heartbeat(self, request: Request) -> Response:
        session_id = await field(request, "session_id")
        if session_id not in self._sessions:
            return refusal(410, f"the session {session_id} is over")
        return JSONResponse({"type": "session_heartbeat"})

    async def _finish_session(self, request: Request) -> Response:
        session_id = str(request.path_params["session_id"])
        self._sessions.discard(session_id)
        for sampler in [name for name in self._sampling if name.startswith(f"{session_id}:")]:
            del self._sampling[sampler]
        await self.backend.unload_all(f"{session_id}:")
        return JSONResponse({"status": "accepted"})

    def _check_session(self, session_id: str | None) -> None:
        if session_id not in self._sessions:
            raise Missing(f"there is no session {session_id!r}; it was never created, or is finished")

    # training

    async def _create_model(self, request: Request) -> Response:
        body = await read(request, wire.CreateModelBody)
        self._check_session(body.session_id)
        check_name(body.base_model, self.name, self.names)
        if body.lora_config is None:
            raise Refused("only LoRA training is served here; give a lora_config")
        if body.optimizer_config is not None and body.optimizer_config.type != "adamw":
            raise Refused(f"the optimizer {body.optimizer_config.type!r} is not served here; adamw is")
        shape = body.lora_config.shape()
        model_id = f"{body.session_id}:train:{body.model_seq_id}"

        async def create() -> object:
            await self.backend.create(model_id, shape)
            return {"type": "create_model", "model_id": model_id}

        return self._taken(self.futures.start(("create", model_id), create), model_id)

    async def _get_info(self, request: Request) -> Response:
        model_id = await field(request, "model_id")
        run = self.backend.run(model_id)
        model = {"arch": "causal_lm", "model_name": self.name, "tokenizer_id": self.tokenizer}
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": model_id,
                "model_data": model,
                "model_name": self.name,
                "is_lora": True,
                "lora_rank": run.shape.rank,
            }
        )

    async def _unload_model(self, request: Request) -> Response:
        model_id = await field(request, "model_id")

        async def unload() -> object:
            await self.backend.unload(model_id)
            return {"type": "unload_model", "model_id": model_id}

        return self._taken(self.futures.start(("unload", model_id), unload), model_id)

    async def _forward_backward(self, request: Request) -> Response:
        asked = wire.TrainRequest(await raw(request))
        self.backend.run(asked.model_id)

        async def train() -> object:
            loss, logprobs = await self.backend.forward_backward(
                asked.model_id, asked.data, asked.loss, asked.config, backward=asked.backward
            )
            return wire.train_response(loss, logprobs)

        return self._in_turn(asked.model_id, asked.seq_id, train)

    async def _optim_step(self, request: Request) -> Response:
        body = await read(request, wire.OptimStepBody)
        if body.adam_params is None:
            raise Refused("only Adam is served here; give adam_params")
        adam = body.adam_params

        async def step() -> object:
            return {"metrics": await self.backend.step(body.model_id, adam)}

        return self._in_turn(body.model_id, body.seq_id, step)

    async def _save_weights(self, request: Request) -> Response:
        body = await read(request, wire.SaveBody)
        name = body.path or f"checkpoint-{next(self._saved):06d}"

        async def save() -> object:
            terms = replace(body.terms(), listed=True)
            path = await self.backend.save_state(body.model_id, name, terms)
            return {"type": "save_weights", "path": path}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _save_external(self, request: Request) -> Response:
        body = await read(request, wire.SaveBody)
        if body.path is None:
            raise Refused("the request has no path; external weights go by a name")
        name = body.path

        async def save() -> object:
            path = await self.backend.save_external(body.model_id, name, body.terms())
            return {"type": "save_weights_external", "path": path}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _load_weights(self, request: Request) -> Response:
        body = await read(request, wire.LoadBody)
        model_id = body.model_id or f"{body.session_id}:train:{body.model_seq_id}"

        async def load() -> object:
            await self.backend.load_state(model_id, body.path, optimizer=body.optimizer)
            return {"type": "load_weights", "path": body.path, "model_id": model_id}

        if body.model_id is None:
            self._check_session(body.session_id)
            return self._taken(self.futures.start(("create", model_id), load), model_id)
        self.backend.run(model_id)
        return self._in_turn(model_id, body.seq_id, load)

    async def _weights_info(self, request: Request) -> Response:
        path = await field(request, "tinker_path")
        shape = await self.backend.shape(path)
        return JSONResponse(
            {
                "base_model": self.name,
                "is_lora": True,
                "lora_rank": shape.rank,
                "train_unembed": shape.train_unembed,
                "train_mlp": shape.train_mlp,
                "train_attn": shape.train_attn,
            }
        )

    # sampling

    async def _save_for_sampler(self, request: Request) -> Response:
        body = await read(request, wire.SaveBody)

        async def save() -> object:
            if body.path is not None:
                path = await self.backend.save_sampler(body.model_id, body.path, body.terms())
                return {"type": "save_weights_for_sampler", "path": path}
            snapshot = f"snapshot-{next(self._saved):06d}"
            session = f"{body.model_id}:sampler:{body.sampling_session_seq_id or 0}"
            path = await self.backend.save_sampler(body.model_id, snapshot, body.terms())
            self._sampling[session] = path
            return {"type": "save_weights_for_sampler", "sampling_session_id": session}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _create_sampling_session(self, request: Request) -> Response:
        body = await read(request, wire.SessionBody)
        self._check_session(body.session_id)
        session = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
        if body.base_model is not None:
            check_name(body.base_model, self.name, self.names)
        if body.model_path is None and body.base_model is None:
            raise Refused("name a base_model or a model_path to sample from")
        if session not in self._sampling:
            if body.model_path is not None:
                await self.backend.shape(body.model_path)
            self._sampling[session] = body.model_path
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": session})

    async def _get_sampler(self, request: Request) -> Response:
        sampler_id = str(request.path_params["sampler_id"])
        if sampler_id not in self._sampling:
            return refusal(404, f"there is no sampling session {sampler_id!r}")
        path = self._sampling[sampler_id]
        return JSONResponse({"sampler_id": sampler_id, "base_model": self.name, "model_path": path})

    async def _sample(self, request: Request) -> Response:
        body = await read(request, wire.SampleBody)
        session = body.sampling_session_id
        if session is None:
            raise Refused("sample through a sampling session (create_sampling_session)")
        if session not in self._sampling:
            raise Missing(f"there is no sampling session {session!r}")
        path, policy = self._sampling[session], self.backend.policy

        async def sample() -> object:
            requests = body.sample_requests(
                context=policy.context, vocabulary=policy.vocabulary, end_ids=policy.end_ids
            )
            job = await self.backend.sample(path, requests, prompt_logprobs=bool(body.prompt_logprobs))
            return wire.sample_response(job, body.prompt_logprobs_last_n)

        key = None if body.seq_id is None else (session, body.seq_id)
        request_id = self.futures.start(key, sample)
        ids = [f"{request_id}-{number}" for number in range(body.num_samples)]
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": ids})

    # futures

    async def _retrieve(self, request: Request) -> Response:
        request_id = await field(request, "request_id")
        try:
            result = await self.futures.result(request_id, POLL_SECONDS)
        except KeyError:
            return refusal(410, f"there is no request {request_id}, or its result is no longer kept")
        except TimeoutError:
            pending = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(pending, status_code=408)
        except (Refused, Cancelled) as error:
            return JSONResponse(wire.failure(str(error), "user"))
        except Exception as error:  # the client must hear of it, as a failure of ours
            _logger.exception("request %s failed", request_id)
            return JSONResponse(wire.failure(f"{type(error).__name__}: {error}", "server"))
        if isinstance(result, bytes):
            return Response(result, media_type="application/x-protobuf")
        return JSONResponse(result)

    async def _cancel(self, request: Request) -> Response:
        self.futures.cancel(await field(request, "request_id"))
        return JSONResponse({"status": "accepted"})

    def _in_turn(self, model_id: str, seq_id: int | None, work: Callable[[], Awaitable[object]]) -> Response:
        return self._taken(self.futures.start_in_turn(model_id, seq_id, work), model_id)

    def _taken(self, request_id: str, model_id: str) -> Response:
        return JSONResponse({"request_id": request_id, "model_id": model_id})
