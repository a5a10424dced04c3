"""Endpoints of the Tinker API for sampling: sampling sessions and requests to sample."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.local.service import wire
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.endpoints import guarded, json_route
from rolegraph.engine.local.service.errors import NotFoundError, RequestError
from rolegraph.engine.local.service.sessions import ClientSession, SessionStore


class SamplingCalls:
    """The sampling endpoints of one backend."""

    def __init__(self, backend: Backend, sessions: SessionStore) -> None:
        self._backend, self._sessions = backend, sessions

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [
            json_route("create_sampling_session", wire.SamplingSessionBody, self._create),
            Route("/api/v1/samplers/{sampler_id:path}", guarded(self._get), methods=["GET"]),
            json_route("asample", wire.SampleBody, self._sample),
        ]

    async def _create(self, body: wire.SamplingSessionBody) -> object:
        session = self._sessions.get(body.session_id)
        sampler = f"{session.id}:sample:{body.sampling_session_seq_id}"
        if body.base_model is not None:
            self._backend.check_name(body.base_model)
        if body.model_path is None and body.base_model is None:
            raise RequestError("name a base_model or a model_path to sample from")
        if sampler not in session.sampling:
            if body.model_path is not None:
                await self._backend.shape(body.model_path)
            session.sampling[sampler] = body.model_path
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    async def _get(self, request: Request) -> Response:
        sampler = str(request.path_params["sampler_id"])
        path = self._session(sampler).sampling[sampler]
        return JSONResponse({"sampler_id": sampler, "base_model": self._backend.name, "model_path": path})

    async def _sample(self, body: wire.SampleBody) -> object:
        sampler = body.sampling_session_id
        if sampler is None:
            raise RequestError("sample through a sampling session (create_sampling_session)")
        session = self._session(sampler)
        path = session.sampling[sampler]

        async def sample() -> object:
            job = await self._backend.sample(body.job(self._backend.model, path, session.id))
            return wire.sample_response(job, body.prompt_logprobs_last_n)

        key = None if body.seq_id is None else (sampler, body.seq_id)
        request_id = session.futures.start(key, sample)
        ids = [f"{request_id}-{number}" for number in range(body.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    def _session(self, sampler: str) -> ClientSession:
        """Return the session that owns a sampling session. Raises NotFoundError."""
        session = self._sessions.find(sampler)
        if session is None or sampler not in session.sampling:
            raise NotFoundError(f"there is no sampling session {sampler!r}")
        return session
