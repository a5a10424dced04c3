"""What the Tinker API says of sessions, training runs and checkpoints, and what it does with them, over HTTP.

The files of `external_weights` are given out at addresses that carry a signature in place of the key, as
clients expect, for an hour. What a checkpoint is, is `checkpoints.py`'s to know.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from rolegraph.engine.limits.service import LISTED
from rolegraph.engine.local.service.admission import SIGNED
from rolegraph.engine.local.service.backend import Backend
from rolegraph.engine.local.service.calls import Endpoint, guarded, read, refusal
from rolegraph.engine.local.service.checkpoints import CheckpointEntry, Kind
from rolegraph.engine.local.service.policy import LoraShape
from rolegraph.engine.local.service.sessions import SessionStore
from rolegraph.engine.local.service.trainer import NotFoundError, RequestError

URL_LIFE = timedelta(hours=1)
_TYPES: Mapping[Kind, str] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}

T = TypeVar("T")


class _Ttl(BaseModel):
    ttl_seconds: int | None


class Rest:
    """The calls, in front of one backend whose model clients call `name`."""

    def __init__(self, backend: Backend, sessions: SessionStore, name: str) -> None:
        self._backend, self._clients, self._name = backend, sessions, name
        self._secret = secrets.token_bytes(32)

    def routes(self) -> list[Route]:
        """All of them."""
        run = "training_runs/{run}"
        one = f"{run}/checkpoints/{{kind}}/{{name}}"
        calls: list[tuple[str, str, Endpoint]] = [
            ("GET", "sessions", self._sessions),
            ("GET", "sessions/{session}", self._session),
            ("GET", "training_runs", self._runs),
            ("GET", run, self._run),
            ("GET", "checkpoints", self._checkpoints),
            ("GET", f"{run}/checkpoints", self._checkpoints_of_run),
            ("DELETE", one, self._delete),
            ("PUT", f"{one}/ttl", self._ttl),
            ("POST", f"{one}/publish", self._publish),
            ("DELETE", f"{one}/publish", self._publish),
            ("GET", f"{one}/external_weights_urls", self._urls),
        ]
        routes = [Route(f"/api/v1/{path}", guarded(do), methods=[method]) for method, path, do in calls]
        return [*routes, Route(f"{SIGNED}{{run}}/{{kind}}/{{name}}/{{file}}", guarded(self._file))]

    # sessions

    async def _sessions(self, request: Request) -> Response:
        page, _ = _page(request, [session.id for session in reversed(self._clients.open())])
        return JSONResponse({"sessions": page})

    async def _session(self, request: Request) -> Response:
        name = request.path_params["session"]
        found = [session for session in self._clients.open() if session.id == name]
        if not found:
            raise NotFoundError(f"there is no session {name!r}; it was never created, or is finished")
        runs, samplers = sorted(found[0].models), sorted(found[0].sampling)
        return JSONResponse({"training_run_ids": runs, "sampler_ids": samplers})

    # runs

    async def _runs(self, request: Request) -> Response:
        if request.query_params.get("project_id"):
            raise RequestError("there are no projects in a local service; leave project_id out")
        runs, cursor = _page(request, await self._runs_there_are())
        return JSONResponse({"training_runs": [run.described() for run in runs], "cursor": cursor})

    async def _run(self, request: Request) -> Response:
        name = str(request.path_params["run"])
        found = [run for run in await self._runs_there_are() if run.name == name]
        if not found:
            raise NotFoundError(f"there is no training run {name!r}, and no checkpoint of one")
        return JSONResponse(found[0].described())

    async def _runs_there_are(self) -> list[_Run]:
        """Those that go on, and those that have left checkpoints; the one used last is first."""
        kept: dict[str, list[CheckpointEntry]] = {}
        for entry in await self._backend.entries():
            kept.setdefault(entry.run, []).append(entry)
        live = self._backend.live()
        runs = [_Run(name, self._name, run.shape, run.used, kept.pop(name, [])) for name, run in live.items()]
        runs += [
            _Run(name, entries[0].base_model, entries[0].shape, entries[0].created, entries)
            for name, entries in kept.items()
        ]
        return sorted(runs, key=lambda run: run.used, reverse=True)

    # checkpoints

    async def _checkpoints(self, request: Request) -> Response:
        entries, cursor = _page(request, await self._backend.entries())
        return JSONResponse({"checkpoints": [_listed(entry) for entry in entries], "cursor": cursor})

    async def _checkpoints_of_run(self, request: Request) -> Response:
        run = request.path_params["run"]
        entries = [entry for entry in await self._backend.entries() if entry.run == run]
        return JSONResponse({"checkpoints": [_listed(entry) for entry in entries]})

    async def _delete(self, request: Request) -> Response:
        await self._backend.delete(_path(request))
        return Response(status_code=204)

    async def _ttl(self, request: Request) -> Response:
        body = await read(request, _Ttl)
        await self._backend.keep_for(_path(request), body.ttl_seconds)
        return Response(status_code=204)

    async def _publish(self, request: Request) -> Response:
        raise RequestError("nothing is published by a local service: who has its key reads every checkpoint")

    # downloads

    async def _urls(self, request: Request) -> Response:
        path = _path(request)
        if request.path_params["kind"] != "external_weights":
            raise RequestError(f"{path} is not for others to read; save_weights_external writes what is")
        end = datetime.now(UTC) + URL_LIFE
        folder = f"{request.base_url}{SIGNED.removeprefix('/')}{quote(path.removeprefix('tinker://'))}"
        urls = {
            name: f"{folder}/{quote(name)}?{self._signed(path, name, int(end.timestamp()))}"
            for name in self._backend.checkpoints.files(path)
        }
        return JSONResponse({"urls": urls, "expires": end.isoformat()})

    async def _file(self, request: Request) -> Response:
        path, name = _path(request), str(request.path_params["file"])
        end = request.query_params.get("expires", "")
        signed = f"expires={end}&signature={request.query_params.get('signature', '')}"
        if not (end.isdecimal() and len(end) < 13) or not hmac.compare_digest(
            signed.encode(), self._signed(path, name, int(end)).encode()
        ):
            return refusal(403, "this address was not signed by the service that is running now")
        if int(end) < datetime.now(UTC).timestamp():
            return refusal(403, "this address has expired; ask for another")
        file = self._backend.checkpoints.files(path).get(name)
        if file is None:
            raise NotFoundError(f"{path} has no file {name}")
        return FileResponse(file, media_type="application/octet-stream")

    def _signed(self, path: str, file: str, end: int) -> str:
        """The query of an address where a file can be read until then."""
        signature = hmac.new(self._secret, f"{path}/{file}?{end}".encode(), hashlib.sha256).hexdigest()
        return f"expires={end}&signature={signature}"


@dataclass(frozen=True, slots=True)
class _Run:
    """A training run."""

    name: str
    base_model: str
    shape: LoraShape
    used: datetime
    """When a client last asked something of it, or when its last checkpoint was written."""
    checkpoints: Sequence[CheckpointEntry]
    """The newest first."""

    def described(self) -> dict[str, object]:
        """As the SDK's `TrainingRun`."""
        return {
            "training_run_id": self.name,
            "base_model": self.base_model,
            "model_owner": "local",
            "is_lora": True,
            "lora_rank": self.shape.rank,
            "last_request_time": self.used.isoformat(),
            "last_checkpoint": self._last("weights"),
            "last_sampler_checkpoint": self._last("sampler_weights"),
        }

    def _last(self, kind: Kind) -> dict[str, object] | None:
        return next((_listed(entry) for entry in self.checkpoints if entry.kind == kind), None)


def _listed(entry: CheckpointEntry) -> dict[str, object]:
    """As the SDK's `Checkpoint`."""
    return {
        "checkpoint_id": f"{entry.kind}/{entry.name}",
        "checkpoint_type": _TYPES[entry.kind],
        "time": entry.created.isoformat(),
        "tinker_path": entry.path,
        "size_bytes": entry.size,
        "public": False,
        "user_metadata": entry.user_metadata,
        "expires_at": entry.expires and entry.expires.isoformat(),
    }


def _path(request: Request) -> str:
    """The path of the checkpoint that a request is about."""
    parts = request.path_params
    return f"tinker://{parts['run']}/{parts['kind']}/{parts['name']}"


def _page(request: Request, items: Sequence[T]) -> tuple[Sequence[T], dict[str, int]]:
    """The items that a request asks for, and where they are among all of them. Raises Refused."""
    given = {"limit": 20, "offset": 0}
    for key in given:
        value = request.query_params.get(key, str(given[key]))
        if not (value.isdecimal() and len(value) < 10):
            raise RequestError(f"{key} is {value[:20]!r}; expected a whole number")
        given[key] = int(value)
    if given["limit"] > LISTED.most:
        raise RequestError(f"limit is {given['limit']}; at most {LISTED} are given at a time")
    page = items[given["offset"] : given["offset"] + given["limit"]]
    return page, {**given, "total_count": len(items)}
