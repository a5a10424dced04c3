"""What the Tinker API has for drawing from weights: sampling sessions, and the calls to sample."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.local.service import wire
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.calls import check_name, guarded, read
from rolegraph.engine.local.service.sessions import ClientSession, SessionStore
from rolegraph.engine.local.service.trainer import NotFoundError, RequestError


class SamplingCalls:
    """The calls, in front of one backend; as `Service` has them."""

    def __init__(self, backend: Backend, sessions: SessionStore, name: str, names: frozenset[str]) -> None:
        self._backend, self._sessions, self._name, self._names = backend, sessions, name, names

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/api/v1/create_sampling_session", guarded(self._create), methods=["POST"]),
            Route("/api/v1/samplers/{sampler_id:path}", guarded(self._get), methods=["GET"]),
            Route("/api/v1/asample", guarded(self._sample), methods=["POST"]),
        ]

    def begin(self, session: ClientSession, sampler: str, path: str | None) -> None:
        """Begin a sampling session by its id, with a checkpoint's weights or the base model's."""
        session.sampling[sampler] = path
        self._sessions.own(session, sampler)

    async def _create(self, request: Request) -> Response:
        body = await read(request, wire.SessionBody)
        session = open_session(self._sessions, body.session_id)
        sampler = f"{session.id}:sample:{body.sampling_session_seq_id}"
        if body.base_model is not None:
            check_name(body.base_model, self._name, self._names)
        if body.model_path is None and body.base_model is None:
            raise RequestError("name a base_model or a model_path to sample from")
        if sampler not in session.sampling:
            if body.model_path is not None:
                await self._backend.shape(body.model_path)
            self.begin(session, sampler, body.model_path)
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": sampler})

    async def _get(self, request: Request) -> Response:
        sampler_id = str(request.path_params["sampler_id"])
        path = self._session(sampler_id).sampling[sampler_id]
        return JSONResponse({"sampler_id": sampler_id, "base_model": self._name, "model_path": path})

    async def _sample(self, request: Request) -> Response:
        body = await read(request, wire.SampleBody)
        sampler = body.sampling_session_id
        if sampler is None:
            raise RequestError("sample through a sampling session (create_sampling_session)")
        session, policy = self._session(sampler), self._backend.policy
        path = session.sampling[sampler]

        async def sample() -> object:
            requests = body.sample_requests(
                context=policy.context, vocabulary=policy.vocabulary, end_ids=policy.end_ids
            )
            job = await self._backend.sample(
                path,
                requests,
                owner=session.id,
                prompt_logprobs=bool(body.prompt_logprobs),
                prompt_top=min(body.topk_prompt_logprobs, policy.vocabulary),
            )
            return wire.sample_response(job, body.prompt_logprobs_last_n)

        key = None if body.seq_id is None else (sampler, body.seq_id)
        request_id = session.futures.start(key, sample)
        ids = [f"{request_id}-{number}" for number in range(body.num_samples)]
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": ids})

    def _session(self, sampler: str | None) -> ClientSession:
        """The session of a sampling session."""
        session = self._sessions.of(sampler or "")
        if session is None or sampler not in session.sampling:
            raise NotFoundError(f"there is no sampling session {sampler!r}")
        return session


def open_session(sessions: SessionStore, session_id: str | None) -> ClientSession:
    """A session by its id. Raises Missing."""
    session = sessions.get(session_id)
    if session is None:
        raise NotFoundError(f"there is no session {session_id!r}; it was never created, or is finished")
    return session
