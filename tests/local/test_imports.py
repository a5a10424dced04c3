"""What a service that only answers imports: neither the SDK nor peft, each of which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from tests.local.client import PROMPT

ANSWER = """
import sys
from pathlib import Path
from starlette.testclient import TestClient
import engine.local.service.launch
from engine.local.service.backend import Backend
from engine.local.service.checkpoints import Checkpoints
from engine.local.service.policy import Policy
from engine.local.service.server import Service

folder, scratch, prompt = Path(sys.argv[1]), Path(sys.argv[2]), [int(token) for token in sys.argv[3:]]
backend = Backend(Policy(folder, threads=1), Checkpoints(scratch, "tiny", folder))
service = Service(backend, "tiny", frozenset({"tiny"}), tokenizer=str(folder))
headers = {"X-API-Key": "tml-key"}
with TestClient(service.app("tml-key", "testserver"), headers=headers) as client:
    def post(path, **body):
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer

    session = post("/api/v1/create_session").json()["session_id"]
    names = {"session_id": session, "sampling_session_seq_id": 1, "base_model": "tiny"}
    sampler = post("/api/v1/create_sampling_session", **names).json()["sampling_session_id"]
    chunks = {"chunks": [{"type": "encoded_text", "tokens": prompt}]}
    drawn = {"prompt": chunks, "sampling_params": {"max_tokens": 3}, "sampling_session_id": sampler}
    asked = post("/api/v1/asample", **drawn, prompt_logprobs=True).json()["request_id"]
    sampled = post("/api/v1/retrieve_future", request_id=asked)
    assert sampled.headers["content-type"] == "application/x-protobuf", sampled.text
    messages = [{"role": "user", "content": "1 + 1"}]
    post("/v1/chat/completions", model="tiny", messages=messages, max_tokens=3)
backend.close()
print(*sorted({"peft", "tinker"} & set(sys.modules)))
"""


def test_a_service_that_only_answers_imports_neither_the_sdk_nor_peft(
    model_dir: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", ANSWER, str(model_dir), str(tmp_path), *map(str, PROMPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
