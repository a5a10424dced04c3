"""The Tinker API over HTTP, as SDK 0.24 to 0.38 call it, in front of one `Backend`.

Operations are answered with the id of a future at once; `retrieve_future` waits for the result. Paths that
are not served give a 404. A failed operation gives a 200 with the error, since the SDK retries a 5xx at once.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.models.types import PROCESS
from rolegraph.local import limits
from rolegraph.local.service import bodies, wire
from rolegraph.local.service.admission import Admission
from rolegraph.local.service.backend import Backend
from rolegraph.local.service.checkpoints import Kind, SaveOptions
from rolegraph.local.service.endpoints import ERROR_HANDLERS, IGNORED, PROTOBUF, json_route, read_bytes
from rolegraph.local.service.errors import NotFoundError, RequestError
from rolegraph.local.service.openai_api import OpenAIService
from rolegraph.local.service.rest import Rest
from rolegraph.local.service.sessions import ClientSession, SessionStore

POLL_SECONDS = 20.0
"""Longest wait in seconds of one retrieve_future; the SDK's own limit is 45."""

_logger = logging.getLogger(__name__)


class Service:
    """The Tinker endpoints except those of `Rest`, and the application with all endpoints.

    `tokenizer` is the folder of the model's tokenizer; `silent` is the number of seconds without a request
    after which a client counts as gone (by default the limit).
    """

    def __init__(self, backend: Backend, *, tokenizer: str, silent: float | None = None) -> None:
        self.backend, self.tokenizer = backend, tokenizer
        silent = silent or limits.SILENT_SECONDS.most
        self.sessions = SessionStore(self._forget, silent)
        self._saved = itertools.count(1)

    async def _forget(self, session: ClientSession) -> None:
        await self.backend.compute(lambda: self.backend.forget([*session.models]))

    def app(self, api_key: str, host: str, *, any_key: bool = False) -> Starlette:
        """Return the ASGI application for requests to `host` that carry the key.

        With `any_key`, OpenAI's API accepts any key.
        """
        routes = [
            json_route("create_session", bodies.CreateSessionBody, self._create_session),
            json_route("session_heartbeat", bodies.SessionBody, self._heartbeat),
            json_route("create_model", bodies.CreateModelBody, self._create_model),
            json_route("get_info", bodies.ModelBody, self._get_info),
            json_route("unload_model", bodies.ModelBody, self._unload_model),
            json_route("optim_step", bodies.OptimStepBody, self._optim_step),
            json_route("save_weights", bodies.SaveBody, partial(self._save, "weights")),
            json_route("save_weights_external", bodies.SaveBody, partial(self._save, "external_weights")),
            json_route("load_weights", bodies.LoadBody, self._load_weights),
            json_route("weights_info", bodies.WeightsInfoBody, self._weights_info),
            json_route("save_weights_for_sampler", bodies.SaveBody, partial(self._save, "sampler_weights")),
            json_route("retrieve_future", bodies.FutureBody, self._retrieve),
            json_route("cancel_future", bodies.FutureBody, self._cancel),
            json_route("create_sampling_session", bodies.SamplingSessionBody, self._create_sampler),
            json_route("asample", bodies.SampleBody, self._sample),
            Route("/api/v1/samplers/{sampler_id:path}", self._get_sampler),
            Route("/api/v1/forward_backward", self._forward_backward, methods=["POST"]),
            Route("/api/v1/sessions/{session_id}/finish", self._finish_session, methods=["POST"]),
            *(Route(f"/api/v1/{path}", JSONResponse(answer)) for path, answer in self._constants().items()),
            *Rest(self.backend, self.sessions).routes(),
            *OpenAIService(self.backend).routes(),
        ]
        admission = Middleware(Admission, api_key=api_key, host=host, any_key=any_key)
        app = Starlette(routes=routes, middleware=[admission], exception_handlers=ERROR_HANDLERS)
        app.router.redirect_slashes = False
        return app

    def _constants(self) -> dict[str, object]:
        """Return the JSON responses that never change, such as the model list, by path below /api/v1."""
        model = {
            "model_name": self.backend.name,
            "max_context_length": self.backend.model.context,
            "trainable": True,
            "sampleable": True,
        }
        return {
            "client/config": {
                "proto_compress_fwdbwd": False,
                "proto_write_fwdbwd": True,
                "fwd_via_fwdbwd": True,
            },
            "client/dynamic_config": {"sample_cancel_enabled": True},
            "telemetry": {"status": "accepted"},
            "healthz": {"status": "ok"},
            "get_server_capabilities": {"supported_models": [model]},
        }

    # sessions

    async def _create_session(self, body: bodies.CreateSessionBody) -> object:
        session = self.sessions.begin((body.user_metadata or {}).get(PROCESS))
        return {"type": "create_session", "session_id": session.id}

    async def _heartbeat(self, body: bodies.SessionBody) -> object:
        if self.sessions.find(body.session_id) is None:
            raise RequestError(f"the session {body.session_id} is over", status=410)
        return {"type": "session_heartbeat"}

    async def _finish_session(self, request: Request) -> Response:
        session = self.sessions.find(str(request.path_params["session_id"]))
        if session is not None:
            await self.sessions.finish(session)
        return JSONResponse({"status": "accepted"})

    def _session_of_model(self, model_id: str) -> ClientSession:
        """Return the session that owns a model; raises NotFoundError for an unknown model."""
        self.backend.run(model_id)
        session = self.sessions.find(model_id)
        if session is None:
            raise NotFoundError(f"the session of the model {model_id!r} is finished")
        return session

    def _new_model(self, session: ClientSession, number: int | None) -> str:
        """Reserve and return the id of the model with this number in a session; a repeated call returns the
        same id.

        Raises:
            RequestError: `number` is None, or the session has too many models.
        """
        if number is None:
            raise RequestError("name a model by model_id, or a new one by session_id and model_seq_id")
        model_id = f"{session.id}:train:{number}"
        if model_id not in session.models and len(session.models) >= limits.MODELS.most:
            raise RequestError(f"this session has {limits.MODELS}; unload some", status=429)
        session.models.add(model_id)
        return model_id

    # training

    async def _create_model(self, body: bodies.CreateModelBody) -> object:
        session = self.sessions.get(body.session_id)
        self.backend.check_name(body.base_model)
        model_id, shape = self._new_model(session, body.model_seq_id), body.lora_config.shape

        def create() -> object:
            self.backend.create(model_id, shape)
            return {"type": "create_model", "model_id": model_id}

        return self._start(session, model_id, "create", create)

    async def _get_info(self, body: bodies.ModelBody) -> object:
        run = self.backend.run(body.model_id)
        model = {"arch": "causal_lm", "model_name": self.backend.name, "tokenizer_id": self.tokenizer}
        return {
            "type": "get_info",
            "model_id": body.model_id,
            "model_data": model,
            "model_name": self.backend.name,
            "is_lora": True,
            "lora_rank": run.shape.rank,
        }

    async def _unload_model(self, body: bodies.ModelBody) -> object:
        session = self._session_of_model(body.model_id)

        def unload() -> object:
            self.backend.forget([body.model_id])
            session.models.discard(body.model_id)
            return {"type": "unload_model", "model_id": body.model_id}

        return self._start(session, body.model_id, "unload", unload)

    async def _forward_backward(self, request: Request) -> Response:
        body = wire.TrainRequest(await read_bytes(request, PROTOBUF, limits.TRAIN_BYTES))

        def train() -> object:
            loss, logprobs = self.backend.forward_backward(
                body.model_id, body.data, body.loss, body.config, backward=body.backward
            )
            return wire.train_response(loss, logprobs)

        headers = {IGNORED: "model_input_spans, loss_fn_input_spans"} if body.has_spans else None
        return JSONResponse(self._in_turn(body.model_id, body.seq_id, train), headers=headers)

    async def _optim_step(self, body: bodies.OptimStepBody) -> object:
        def step() -> object:
            return {"metrics": self.backend.step(body.model_id, body.adam_params)}

        return self._in_turn(body.model_id, body.seq_id, step)

    async def _save(self, kind: Kind, body: bodies.SaveBody) -> object:
        """Start to save a model's weights, and return the JSON with the request id.

        A save_weights_for_sampler without a path also opens a sampling session on the saved weights.
        """
        is_state = kind == "weights"
        if kind == "external_weights" and body.path is None:
            raise RequestError("the request has no path; external weights go by a name")
        options = SaveOptions(
            body.ttl_seconds,
            body.user_metadata,
            listed=is_state or body.path is not None,
            overwrite=body.overwrite or not is_state,
        )
        name = body.path or f"{'checkpoint' if is_state else 'snapshot'}-{next(self._saved):06d}"
        path = f"tinker://{body.model_id}/{kind}/{name}"
        session = self._session_of_model(body.model_id)

        def save() -> object:
            self.backend.save(body.model_id, path, options)
            if options.listed:
                return {"path": path}
            sampler = f"{body.model_id}:sampler:{body.sampling_session_seq_id or 0}"
            session.sampling[sampler] = path
            return {"sampling_session_id": sampler}

        return self._in_turn(body.model_id, body.seq_id, save)

    async def _load_weights(self, body: bodies.LoadBody) -> object:
        if body.base_model is not None:
            self.backend.check_name(body.base_model)

        def load(model_id: str) -> object:
            self.backend.load(model_id, body.path, optimizer=body.optimizer)
            return {"type": "load_weights", "path": body.path, "model_id": model_id}

        if body.model_id is not None:
            return self._in_turn(body.model_id, body.seq_id, partial(load, body.model_id))
        session = self.sessions.get(body.session_id)
        new_model = self._new_model(session, body.model_seq_id)
        return self._start(session, new_model, "create", partial(load, new_model))

    async def _weights_info(self, body: bodies.WeightsInfoBody) -> object:
        shape = (await self.backend.loadable(body.tinker_path)).shape
        return {
            "base_model": self.backend.name,
            "is_lora": True,
            "lora_rank": shape.rank,
            "train_unembed": shape.train_unembed,
            "train_mlp": shape.train_mlp,
            "train_attn": shape.train_attn,
        }

    # sampling

    async def _create_sampler(self, body: bodies.SamplingSessionBody) -> object:
        session = self.sessions.get(body.session_id)
        sampler = f"{session.id}:sample:{body.sampling_session_seq_id}"
        if body.base_model is not None:
            self.backend.check_name(body.base_model)
        if body.model_path is None and body.base_model is None:
            raise RequestError("name a base_model or a model_path to sample from")
        if sampler not in session.sampling:
            if body.model_path is not None:
                await self.backend.loadable(body.model_path)
            session.sampling[sampler] = body.model_path
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    async def _get_sampler(self, request: Request) -> Response:
        sampler = str(request.path_params["sampler_id"])
        path = self._session_of_sampler(sampler).sampling[sampler]
        return JSONResponse({"sampler_id": sampler, "base_model": self.backend.name, "model_path": path})

    async def _sample(self, body: bodies.SampleBody) -> object:
        sampler = body.sampling_session_id
        session = self._session_of_sampler(sampler)
        path = session.sampling[sampler]

        async def sample() -> object:
            job = await self.backend.sample(body.job(self.backend.model, path, session.id))
            return wire.sample_response(job, body.prompt_logprobs_last_n)

        seq_id = secrets.token_hex(8) if body.seq_id is None else body.seq_id
        request_id = session.operations.start(f"{sampler}:{seq_id}", sample)
        ids = [f"{request_id}-{number}" for number in range(body.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    def _session_of_sampler(self, sampler: str) -> ClientSession:
        """Return the session that owns a sampling session. Raises NotFoundError."""
        session = self.sessions.find(sampler)
        if session is None or sampler not in session.sampling:
            raise NotFoundError(f"there is no sampling session {sampler!r}")
        return session

    # futures

    async def _retrieve(self, body: bodies.FutureBody) -> object:
        request_id = body.request_id
        session = self.sessions.find(request_id)
        if session is None or request_id not in session.operations:
            message = f"there is no request {request_id}, or its result is no longer kept"
            raise RequestError(message, status=410)
        session.polls += 1
        try:
            result = await session.operations.result(request_id, POLL_SECONDS)
        except TimeoutError:
            try_again = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return JSONResponse(try_again, status_code=408)
        except RequestError as error:
            return {"error": str(error), "category": "user"}
        except Exception as error:  # the client has to learn of it as the service's failure
            _logger.exception("request %s failed", request_id)
            return {"error": f"{type(error).__name__}: {error}", "category": "server"}
        finally:
            session.polls -= 1
        if isinstance(result, bytes):
            return Response(result, media_type=PROTOBUF)
        return result

    async def _cancel(self, body: bodies.FutureBody) -> object:
        if (session := self.sessions.find(body.request_id)) is not None:
            session.operations.cancel(body.request_id)
        return {"status": "accepted"}

    def _in_turn(self, model_id: str, seq_id: int | None, work: Callable[[], object]) -> object:
        """Queue an operation on a model, to run after those with lower seq_ids; return the JSON with the
        request id."""
        operations = self._session_of_model(model_id).operations
        request_id = operations.start_in_turn(model_id, seq_id, partial(self.backend.compute, work))
        return {"request_id": request_id, "model_id": model_id}

    def _start(self, session: ClientSession, model_id: str, name: str, work: Callable[[], object]) -> object:
        """Start an operation that runs once for each model; a repeated call returns the JSON with the first
        call's request id."""
        start = partial(self.backend.compute, work)
        request_id = session.operations.start(f"{model_id}:{name}", start)
        return {"request_id": request_id, "model_id": model_id}
