"""Scripted Tinker service without a model, on the wire format of SDK 0.38.

Sampling and training follow a script: weights are a count of updates, and training data is only recorded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as wire

from rolegraph.engine.records.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tests.models.edges import served
from tests.models.real_limits import SKYRL, TINKER, refusal_of

Sampled = tuple[Sequence[int], Sequence[float], str]
"""Token ids, log-probabilities, and `stop` or `length`."""
Script = Callable[[dict[str, Any]], Sampled | Response]
"""Function from a request to sample to an answer, or to a response that refuses the request."""
GRAD_NORM = 0.25
"""Norm of every gradient."""
GAP = 0.125
"""Drop of each token's log-probability since sampling, in nats."""


def score(token: int, updates: int) -> float:
    """Return the log-probability that weights after so many updates give a token."""
    return -0.25 - 0.01 * (token % 7) - 0.1 * updates


class Learnt(NamedTuple):
    """Datum of a forward_backward: its tokens, and the loss function's inputs by name."""

    tokens: list[int]
    inputs: dict[str, list[float]]


class Operation(NamedTuple):
    """Operation of a training client: its name and its body."""

    name: str
    body: Mapping[str, Any]


@dataclass
class Service:
    """State of the service and record of its requests."""

    script: Script
    models: list[dict[str, Any]]
    base_url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    scored: list[dict[str, Any]] = field(default_factory=list)
    """Requests for the log-probabilities of given tokens."""
    scoring: Script | None = None
    """Script of these requests; by default the answer is `score`."""
    per_token: float = 0.0
    """Addition to each of these log-probabilities for each token of the text."""
    keys: set[str] = field(default_factory=set)
    gives_loss: bool = True
    """Whether the results of updates have the loss."""
    per_datum: float = 1.0
    """Loss of each datum."""
    sessions: int = 0
    finished: int = 0
    results: dict[str, Sampled | Response] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=itertools.count)
    operations: list[Operation] = field(default_factory=list)
    """Operations of training clients, in order."""
    refusals: dict[str, Iterator[Response | None]] = field(default_factory=dict)
    """Responses in place of success, by the operation's name and in turn; None stands for success."""
    downloads: str = "http://127.0.0.1:9"
    """URL of the folder whose files are given for a download."""
    first: dict[str, str] = field(default_factory=dict)
    """Operations whose results are held back until an operation of the given name arrives."""
    held: dict[str, str] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    """Number of updates of each model, and of each path and sampler of weights."""

    def app(self) -> Starlette:
        posts = {
            "client/config": lambda _: {},
            "client/dynamic_config": lambda _: {},
            "create_session": self._create_session,
            "session_heartbeat": lambda _: {},
            "sessions/{session_id}/finish": self._finish,
            "create_sampling_session": self._open,
            "asample": self._sample,
            "create_model": self._create_model,
            "get_info": lambda body: {
                "model_id": body["model_id"],
                "model_data": {"arch": "scripted", "model_name": "tiny", "tokenizer_id": "tiny"},
            },
            "optim_step": self._optim_step,
            "save_weights": partial(self._save, "save_weights", "weights"),
            "load_weights": self._load,
            "save_weights_for_sampler": self._save_sampler,
            "save_weights_external": partial(self._save, "save_weights_external", "external_weights"),
            "weights_info": lambda _: {"base_model": "tiny", "is_lora": True, "lora_rank": 4},
            "unload_model": lambda body: self._done("unload_model", body, {}),
        }
        gets = {
            "healthz": lambda _: {"status": "ok"},
            "get_server_capabilities": lambda _: {"supported_models": self.models},
            "training_runs/{run}/checkpoints/{checkpoint:path}/external_weights_urls": lambda _: {
                "urls": {file: f"{self.downloads}/{file}" for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)},
                "expires": "2100-01-01T00:00:00Z",
            },
            "samplers/{sampler_id}": lambda _: {"sampler_id": "sampler", "base_model": "tiny"},
        }
        return Starlette(
            routes=[
                *[Route(f"/api/v1/{path}", self._handle(do), methods=["POST"]) for path, do in posts.items()],
                *[Route(f"/api/v1/{path}", self._handle(do)) for path, do in gets.items()],
                Route("/api/v1/forward_backward", self._forward_backward, methods=["POST"]),
                Route("/api/v1/retrieve_future", self._retrieve, methods=["POST"]),
                Route(
                    "/api/v1/training_runs/{run}/checkpoints/{checkpoint:path}",
                    self._delete,
                    methods=["DELETE"],
                ),
            ]
        )

    def _handle(self, do: Callable[[dict[str, Any]], dict[str, Any] | Response]):
        async def endpoint(request: Request) -> Response:
            if "x-api-key" in request.headers:
                self.keys.add(request.headers["x-api-key"])
            body = await request.json() if request.method == "POST" else {}
            name = request.url.path.removeprefix("/api/v1/")
            refusals = (refusal_of(it[name], body) for it in (TINKER, SKYRL) if name in it)
            result = next((it for it in refusals if it is not None), None) or do(body)
            return result if isinstance(result, Response) else JSONResponse(result)

        return endpoint

    def _finish(self, _: dict[str, Any]) -> dict[str, Any]:
        self.finished += 1
        return {}

    def _create_session(self, body: dict[str, Any]) -> dict[str, Any]:
        self.sessions += 1
        return {"session_id": "session" if self.sessions == 1 else f"session-{self.sessions}"}

    def _open(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        names = [model["model_name"] for model in self.models]
        path = body.get("model_path")
        if path in self.updates:  # weights that a training client has saved
            name = f"sampler-{len(self.updates)}"
            self.updates[name] = self.updates[path]
            return self._noted("create_sampling_session", body, {"sampling_session_id": name})
        if body.get("base_model") in names or path:
            self.updates.setdefault("sampler", 0)
            return {"sampling_session_id": "sampler"}
        return JSONResponse({"detail": "unknown model"}, status_code=404)

    def _noted(self, name: str, body: Mapping[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        self.operations.append(Operation(name, body))
        return result

    async def _delete(self, request: Request) -> Response:
        path = "tinker://{run}/{checkpoint}".format_map(request.path_params)
        del self.updates[path]
        self.operations.append(Operation("delete_checkpoint", {"path": path}))
        return JSONResponse({})

    def _sample(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        if body.get("prompt_logprobs"):
            self.scored.append(body)
            result = (self.scoring or self._scores)(body)
        else:
            self.asked.append(body)
            result = self.script(body)
        if isinstance(result, Response) and result.status_code != 200:
            return result
        name = str(next(self.ids))
        self.results[name] = result
        return {"request_id": name, "sample_sequence_ids": [name]}

    def _scores(self, body: dict[str, Any]) -> Response:
        tokens = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        updates = self.updates[body["sampling_session_id"]]
        added = self.per_token * len(tokens)
        logprobs = np.array([score(token, updates) + added for token in tokens], np.float32)
        logprobs[0] = np.nan
        sequence = wire.SampledSequence(stop_reason=wire.STOP_REASON_LENGTH)
        return _protobuf(wire.SampleResponse(sequences=[sequence], prompt_logprobs=logprobs.tobytes()))

    async def _retrieve(self, request: Request) -> Response:
        name = (await request.json())["request_id"]
        awaited = self.held.get(name)
        if awaited is not None and all(operation.name != awaited for operation in self.operations):
            await asyncio.sleep(0.01)
            return JSONResponse({"type": "try_again"}, status_code=408)
        result = self.results[name]
        if isinstance(result, Response):
            return result
        ids, logprobs, reason = result
        sequence = wire.SampledSequence(
            stop_reason=wire.STOP_REASON_STOP if reason == "stop" else wire.STOP_REASON_LENGTH,
            tokens=np.array(ids, np.int32).tobytes(),
            logprobs=np.array(logprobs, np.float32).tobytes(),
        )
        return _protobuf(wire.SampleResponse(sequences=[sequence]))

    # training

    def asked_for(self, name: str) -> list[Mapping[str, Any]]:
        """Return the bodies of all operations with the given name."""
        return [operation.body for operation in self.operations if operation.name == name]

    def _done(
        self, name: str, body: Mapping[str, Any], result: Mapping[str, Any] | Response
    ) -> dict[str, Any] | Response:
        """Accept an operation, unless a test refuses it; a later request fetches the result."""
        self.operations.append(Operation(name, body))
        refusal = next(self.refusals.get(name, iter(())), None)
        if refusal is not None and refusal.status_code != 200:
            return refusal
        request_id = str(next(self.ids))
        response = result if isinstance(result, Response) else JSONResponse({"type": name, **result})
        self.results[request_id] = refusal or response
        if name in self.first:
            self.held[request_id] = self.first[name]
        return {"request_id": request_id, "model_id": body.get("model_id")}

    def _create_model(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        if body["base_model"] not in [model["model_name"] for model in self.models]:
            return JSONResponse({"detail": "unknown model"}, status_code=404)
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
        self.updates[model_id] = 0
        return self._done("create_model", body, {"model_id": model_id})

    async def _forward_backward(self, request: Request) -> Response:
        message = wire.ForwardBackwardRequest.FromString(await request.body())
        data = [_learnt(datum) for datum in message.data]
        set_of_loss = dict(message.loss_fn_config)
        set_of_loss |= {name: value.number for name, value in message.loss_fn_config_v2.items()}
        body = {"model_id": message.model_id, "loss_fn": message.loss_fn, "loss_fn_config": set_of_loss}
        body["data"] = data
        sampled = [datum.inputs.get("logprobs", [0.0] * len(datum.tokens)) for datum in data]
        logprobs = [np.array(values, np.float32) - GAP for values in sampled]
        ends = np.cumsum([0, *map(len, logprobs)], dtype=np.int64) * 4
        metrics = {"loss:sum": self.per_datum * len(data)} if self.gives_loss else {}
        output = wire.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=metrics)
        record = output.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(data))
        record.fields["logprobs"].data = np.concatenate(logprobs).tobytes()
        record.fields["logprobs"].offsets = ends.tobytes()
        record.fields["logprobs"].dtype = wire.DTYPE_FLOAT32
        taken = self._done("forward_backward", body, _protobuf(output))
        return taken if isinstance(taken, Response) else JSONResponse(taken)

    def _optim_step(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        self.updates[body["model_id"]] += 1
        return self._done("optim_step", body, {"metrics": {"unclipped_grad_l2:mean": GRAD_NORM}})

    def _save(self, name: str, kind: str, body: dict[str, Any]) -> dict[str, Any] | Response:
        path = f"tinker://{_run(body)}/{kind}/{body['path']}"
        self.updates[path] = self.updates[body["model_id"]]
        return self._done(name, body, {"path": path})

    def _save_sampler(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        updates = self.updates[body["model_id"]]
        if body.get("path") is None:  # weights to sample from at once
            where = {"sampling_session_id": f"{body['model_id']}:sampler:{body['sampling_session_seq_id']}"}
        else:
            where = {"path": f"tinker://{_run(body)}/sampler_weights/{body['path']}"}
        self.updates |= dict.fromkeys(where.values(), updates)
        return self._done("save_weights_for_sampler", body, where)

    def _load(self, body: dict[str, Any]) -> dict[str, Any] | Response:
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
        self.updates[model_id] = self.updates.get(body["path"], 0)
        return self._done("load_weights", body, {"path": body["path"], "model_id": model_id})


def _run(body: Mapping[str, Any]) -> str:
    """Return the first part of a model's paths: `run`, and a number from the second session on."""
    return str(body["model_id"]).partition(":")[0].replace("session", "run")


def _learnt(datum: wire.Datum) -> Learnt:
    kinds = {wire.DTYPE_FLOAT32: np.float32, wire.DTYPE_INT64: np.int64}
    tokens = [
        token for chunk in datum.model_input for token in np.frombuffer(chunk.encoded_text.tokens, np.int32)
    ]
    inputs = {
        name: np.frombuffer(tensor.dense, kinds[tensor.dtype]).tolist()
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return Learnt([int(token) for token in tokens], inputs)


def _protobuf(message: Any) -> Response:
    return Response(message.SerializeToString(), media_type="application/x-protobuf")


def failed(message: str, category: str) -> JSONResponse:
    """Return the response for an operation that was accepted and then failed."""
    return JSONResponse({"error": message, "category": category})


@contextmanager
def tinker_service(script: Script, *, context: int = 512) -> Iterator[Service]:
    """Serve `script` as the model `tiny` for the time of the block."""
    service = Service(script, [{"model_name": "tiny", "max_context_length": context}])
    with served(service.app()) as service.base_url:
        yield service
