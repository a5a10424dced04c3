"""What comes of calls to the local service: its application in this process, on a model of a few weights.

Every call ends in an answer below 500, and every operation in a result or the client's fault.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import train_requests
from judge_written import FAULT, RESULT
from uvicorn.server import ServerState

from rolegraph.local.launcher import BASE_MODEL
from rolegraph.local.service.backend import Backend
from rolegraph.local.service.checkpoints import CheckpointStore
from rolegraph.local.service.local_model import LocalModel
from rolegraph.local.service.server import Service
from rolegraph.local.service.wire import public
from rolegraph.serving.server import BoundedConnection, bounded_server

KEY = "key"
PROTOBUF = "application/x-protobuf"
LIFE = 60
"""Calls after which clients begin anew."""
CONTEXT = 48


def _model(folder: Path) -> Path:
    """A model with the base model's tokenizer, and next to no weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(BASE_MODEL).save_pretrained(folder)
    config = AutoConfig.from_pretrained(BASE_MODEL)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for name, value in {
        **small,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
    }.items():
        setattr(config, name, value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


class Client:
    """The service, and what a client of it has: a session, a model, checkpoints."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(dir="."))
        self.model, self.state = model, state = _model(folder / "model"), folder / "state"
        state.mkdir()
        self._loop = asyncio.new_event_loop()
        backend = Backend(LocalModel(model, 1), CheckpointStore(state, "tiny", model), "tiny")
        self._service = Service(backend, tokenizer=str(model))
        self._app = self._service.app(KEY, "127.0.0.1")
        self.names: dict[str, str] = {}
        self._calls = 0

    def call(self, method: str, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        """The status and the whole body of what is answered."""
        return self._loop.run_until_complete(self._call(method, path, kind, body))

    async def _call(self, method: str, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(f"http://127.0.0.1{path}")
        headers = [(b"host", b"127.0.0.1"), (b"x-api-key", KEY.encode()), (b"content-type", kind.encode())]
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": headers,
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        waiting.put_nowait({"type": "http.request", "body": body, "more_body": False})
        status, sent = 0, bytearray()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            sent.extend(message.get("body", b""))

        await self._app(scope, waiting.get, send)
        return status, bytes(sent)

    def _post(self, path: str, /, **body: Any) -> Any:
        status, answer = self.call("POST", f"/api/v1/{path}", "application/json", json.dumps(body).encode())
        assert status == 200, f"an honest call to {path} is refused: {answer!r}"
        return self._result(json.loads(answer))

    def _result(self, said: Any) -> Any:
        if "request_id" not in said:
            return said
        wanted = json.dumps({"request_id": said["request_id"]}).encode()
        status, answer = self.call("POST", "/api/v1/retrieve_future", "application/json", wanted)
        assert status < 500, f"{status}: {answer[:200]!r}"
        if not answer.startswith(b"{"):
            return {}  # protobuf
        result = json.loads(answer)
        assert result.get("category") != "server", f"a failure of the service's own: {result}"
        return {**result, "request_id": said["request_id"]}

    def begin(self) -> None:
        """A session, a model with checkpoints, a sampling session; what the last client had is let go."""
        if session := self.names.get("$session"):
            self._post(f"sessions/{session}/finish")
        session = self._post("create_session")["session_id"]
        model = self._post(
            "create_model",
            session_id=session,
            model_seq_id=0,
            base_model="tiny",
            lora_config={"rank": 2, "seed": 1},
        )
        name = {"model_id": model["model_id"]}
        weights = self._post("save_weights", **name, path="saved")["path"]
        sampled = self._post("save_weights_for_sampler", **name, path="saved")["path"]
        self._post("save_weights_external", **name, path="saved")
        sampler = self._post(
            "create_sampling_session", session_id=session, sampling_session_seq_id=0, model_path=sampled
        )
        self.names = {
            "$session": session,
            "$model": name["model_id"],
            "$weights": weights,
            "$sampled": sampled,
            "$sampler": sampler["sampling_session_id"],
            "$request": model["request_id"],
        }

    def judge(self, text: str) -> str:
        """What comes of a call."""
        self._calls += 1
        if self._calls % LIFE == 1:
            self.begin()
        method, path, kind, body = json.loads(text)
        if kind == PROTOBUF:
            sent = self._named(bytes.fromhex(body))
        else:
            for name, value in self.names.items():
                body = body.replace(name, value)
            sent = body.encode(errors="surrogatepass")
        for name, value in self.names.items():
            path = path.replace(name, quote(value))
        if not path.startswith("/"):
            path = f"/{path}"
        path = "".join(c if " " < c < "\x7f" else quote(c, errors="replace") for c in path)
        status, answer = self.call(method, path, kind, sent)
        assert 200 <= status < 500, f"{status}: {answer[:200]!r}"
        if status != 200:
            assert status == 204 or answer, "refused without a word"
            return FAULT
        if path.startswith("/api/v1") and answer.startswith(b"{"):
            result = self._result(json.loads(answer))
            return FAULT if isinstance(result, dict) and "error" in result else RESULT
        return RESULT

    def said(self, method: str, path: str, body: bytes, kind: str = "application/json") -> str:
        """Return the answer to an honest client's call, and of an operation its result."""
        if not self.names or self._calls % LIFE == LIFE - 1:
            self._calls += 1
            self.begin()
        self._calls += 1
        if kind == PROTOBUF:
            body = self._named(body)
        else:
            for name, value in self.names.items():
                body = body.replace(name.encode(), value.encode())
        status, answer = self.call(method, path, kind, body)
        assert status < 500, f"{status}: {answer[:200]!r}"
        if path.startswith("/api/v1") and answer.startswith(b"{") and status == 200:
            return json.dumps(self._result(json.loads(answer)))
        return answer.decode(errors="replace")

    def headed(self, header: bytes) -> str:
        """Send a request with a header of this value; return the first line of the answer."""
        return self._loop.run_until_complete(self._headed(header))

    async def _headed(self, header: bytes) -> str:
        config = bounded_server(self._app).config
        config.load()
        listening = await self._loop.create_server(
            lambda: BoundedConnection(config, ServerState(), {}), "127.0.0.1", 0
        )
        async with listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            try:
                writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + header + b"\r\n\r\n")
                return (await reader.readline()).decode()
            except OSError:
                return ""
            finally:
                writer.close()

    def trained(self, change: Callable[[Any], None]) -> str:
        """Return the result of a forward_backward of one datum, after `change` has changed the message."""
        message = train_requests.training_request()
        change(message)
        return self.said("POST", "/api/v1/forward_backward", message.SerializeToString(), PROTOBUF)

    def _named(self, body: bytes) -> bytes:
        """The model of this client in place of its placeholder."""
        message = public.ForwardBackwardRequest()
        try:
            message.ParseFromString(body)
        except Exception:  # protobuf's own DecodeError has no stable home
            return body
        if message.model_id == "$model":
            message.model_id = self.names["$model"]
        message.ClearField("seq_id")
        return message.SerializeToString()


@cache
def client() -> Client:
    """Start the service, which imports for seconds."""
    return Client()
