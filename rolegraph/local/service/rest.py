"""REST endpoints of the Tinker API: lists of sessions, training runs and checkpoints, and downloads.

The files of `external_weights` are downloaded from URLs that are valid for an hour and carry a signature in
place of the key, as clients expect.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from rolegraph.local.limits import LISTED
from rolegraph.local.service.admission import SIGNED
from rolegraph.local.service.backend import Backend
from rolegraph.local.service.bodies import TtlBody
from rolegraph.local.service.checkpoints import CheckpointEntry, Kind
from rolegraph.local.service.endpoints import read_body
from rolegraph.local.service.errors import NotFoundError, RequestError
from rolegraph.local.service.sessions import SessionStore

URL_LIFE = timedelta(hours=1)

T = TypeVar("T")


class Rest:
    """The REST endpoints of one backend."""

    def __init__(self, backend: Backend, sessions: SessionStore) -> None:
        self._backend, self._clients = backend, sessions
        self._secret = secrets.token_bytes(32)

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        run = "training_runs/{run}"
        checkpoint = f"{run}/checkpoints/{{kind}}/{{name}}"
        calls = [
            ("GET", "sessions", self._sessions),
            ("GET", "sessions/{session}", self._session),
            ("GET", "training_runs", self._runs),
            ("GET", run, self._run),
            ("GET", "checkpoints", self._checkpoints),
            ("GET", f"{run}/checkpoints", self._checkpoints_of_run),
            ("DELETE", checkpoint, self._delete),
            ("PUT", f"{checkpoint}/ttl", self._ttl),
            ("GET", f"{checkpoint}/external_weights_urls", self._urls),
        ]
        routes = [Route(f"/api/v1/{path}", call, methods=[method]) for method, path, call in calls]
        return [*routes, Route(f"{SIGNED}{{run}}/{{kind}}/{{name}}/{{file}}", self._file)]

    # sessions

    async def _sessions(self, request: Request) -> Response:
        page, _ = _page(request, [session.id for session in reversed(self._clients.open())])
        return JSONResponse({"sessions": page})

    async def _session(self, request: Request) -> Response:
        session = self._clients.get(request.path_params["session"])
        runs, samplers = sorted(session.models), sorted(session.sampling)
        return JSONResponse({"training_run_ids": runs, "sampler_ids": samplers})

    # runs

    async def _runs(self, request: Request) -> Response:
        if request.query_params.get("project_id"):
            raise RequestError("there are no projects in a local service; leave project_id out")
        runs, cursor = _page(request, await self._all_runs())
        return JSONResponse({"training_runs": runs, "cursor": cursor})

    async def _run(self, request: Request) -> Response:
        name = str(request.path_params["run"])
        for run in await self._all_runs():
            if run["training_run_id"] == name:
                return JSONResponse(run)
        raise NotFoundError(f"there is no training run {name!r}, and no checkpoint of one")

    async def _all_runs(self) -> list[dict[str, object]]:
        """Return the live runs and those that have checkpoints, the last used one first.

        Each run has the fields of the SDK's `TrainingRun`. The last use of a run that is no longer live is
        the time of its last checkpoint.
        """
        checkpoints_by_run: dict[str, list[CheckpointEntry]] = {}  # by run, the newest first
        for entry in await self._backend.entries():
            checkpoints_by_run.setdefault(entry.run, []).append(entry)
        runs = {name: (run.used, self._backend.name, run.shape) for name, run in self._backend.runs().items()}
        for name, (newest_entry, *_) in checkpoints_by_run.items():
            runs.setdefault(name, (newest_entry.created, newest_entry.base_model, newest_entry.shape))
        last_used_first = sorted(runs.items(), key=lambda run: run[1][0], reverse=True)
        return [
            {
                "training_run_id": name,
                "base_model": base_model,
                "model_owner": "local",
                "is_lora": True,
                "lora_rank": shape.rank,
                "last_request_time": last_use.isoformat(),
                "last_checkpoint": _last(checkpoints_by_run.get(name, []), "weights"),
                "last_sampler_checkpoint": _last(checkpoints_by_run.get(name, []), "sampler_weights"),
            }
            for name, (last_use, base_model, shape) in last_used_first
        ]

    # checkpoints

    async def _checkpoints(self, request: Request) -> Response:
        entries, cursor = _page(request, await self._backend.entries())
        return JSONResponse({"checkpoints": [_checkpoint_json(entry) for entry in entries], "cursor": cursor})

    async def _checkpoints_of_run(self, request: Request) -> Response:
        run = request.path_params["run"]
        entries = [entry for entry in await self._backend.entries() if entry.run == run]
        return JSONResponse({"checkpoints": [_checkpoint_json(entry) for entry in entries]})

    async def _delete(self, request: Request) -> Response:
        path = _path(request)
        await self._backend.compute(lambda: self._backend.checkpoints.delete(path))
        return Response(status_code=204)

    async def _ttl(self, request: Request) -> Response:
        body = await read_body(request, TtlBody)
        path, store = _path(request), self._backend.checkpoints
        await self._backend.compute(lambda: store.set_ttl(path, body.ttl_seconds))
        return Response(status_code=204)

    # downloads

    async def _urls(self, request: Request) -> Response:
        path = _path(request)
        if request.path_params["kind"] != "external_weights":
            raise RequestError(f"{path} cannot be downloaded; save_weights_external writes what can")
        expiry = datetime.now(UTC) + URL_LIFE
        folder = f"{request.base_url}{SIGNED.removeprefix('/')}{quote(path.removeprefix('tinker://'))}"
        urls = {
            name: f"{folder}/{quote(name)}?{self._signed_query(path, name, int(expiry.timestamp()))}"
            for name in self._backend.checkpoints.files(path)
        }
        return JSONResponse({"urls": urls, "expires": expiry.isoformat()})

    async def _file(self, request: Request) -> Response:
        path, name = _path(request), str(request.path_params["file"])
        end = request.query_params.get("expires", "")
        end_seconds = int(end) if end.isdecimal() and len(end) < 13 else 0
        signature = self._signed_query(path, name, end_seconds)
        if not hmac.compare_digest(request.url.query.encode(), signature.encode()):
            raise RequestError("this address was not signed by the running service", status=403)
        if end_seconds < datetime.now(UTC).timestamp():
            raise RequestError("this address has expired; request another", status=403)
        file = self._backend.checkpoints.files(path).get(name)
        if file is None:
            raise NotFoundError(f"{path} has no file {name}")
        return FileResponse(file, media_type="application/octet-stream")

    def _signed_query(self, path: str, file: str, end: int) -> str:
        """Return the query of a URL from which a file can be downloaded until `end` (Unix time)."""
        signature = hmac.new(self._secret, f"{path}/{file}?{end}".encode(), hashlib.sha256).hexdigest()
        return f"expires={end}&signature={signature}"


def _last(entries: Sequence[CheckpointEntry], kind: Kind) -> dict[str, object] | None:
    return next((_checkpoint_json(entry) for entry in entries if entry.kind == kind), None)


def _checkpoint_json(entry: CheckpointEntry) -> dict[str, object]:
    """Return a checkpoint's fields as the SDK's `Checkpoint` has them."""
    kind = "training" if entry.kind == "weights" else entry.kind.removesuffix("_weights")
    return {
        "checkpoint_id": f"{entry.kind}/{entry.name}",
        "checkpoint_type": kind,
        "time": entry.created.isoformat(),
        "tinker_path": entry.path,
        "size_bytes": entry.size,
        "public": False,
        "user_metadata": entry.user_metadata,
        "expires_at": entry.expires and entry.expires.isoformat(),
    }


def _path(request: Request) -> str:
    """Return the checkpoint path in a request's URL."""
    parts = request.path_params
    return f"tinker://{parts['run']}/{parts['kind']}/{parts['name']}"


def _page(request: Request, items: Sequence[T]) -> tuple[Sequence[T], dict[str, int]]:
    """Return (requested page of items, cursor as the SDK reads it); raises RequestError if the page is out of
    range."""
    cursor = {"limit": 20, "offset": 0}
    for key in cursor:
        value = request.query_params.get(key, str(cursor[key]))
        if not (value.isdecimal() and len(value) < 10):
            raise RequestError(f"{key} is {value[:20]!r}; expected a whole number")
        cursor[key] = int(value)
    if cursor["limit"] > LISTED.most:
        raise RequestError(f"limit is {cursor['limit']}; at most {LISTED} are given at a time")
    page = items[cursor["offset"] : cursor["offset"] + cursor["limit"]]
    return page, {**cursor, "total_count": len(items)}
