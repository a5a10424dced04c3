"""A model hub and a package index on this machine, and models small enough for both."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MERGE = ("a", "b")
"""Merge of the tokenizer: GGUF files have no empty lists."""
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Answers of the server, and the requests that it got."""

    url: str
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])
    """Content type and content by path."""
    requests: list[str] = field(default_factory=list[str])
    held: str | None = None
    """Path whose answer stops halfway until `release` is set."""
    halfway: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point the command at this server."""
        index = f"{self.url}/simple"
        none = {"PIP_FIND_LINKS": "", "UV_FIND_LINKS": ""}
        return {"HF_ENDPOINT": self.url, "PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index, **none}

    def add_model(self, repo: str, files: Mapping[str, bytes], license: str = "mit") -> None:
        """Publish a model."""
        siblings: list[dict[str, Any]] = []
        for name, content in files.items():
            digest = hashlib.sha256(content).hexdigest()
            lfs = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 1}
            big = {"lfs": lfs} if name.endswith(".safetensors") else {}
            siblings.append({"rfilename": name, "size": len(content), "blobId": "0", **big})
            self.pages[f"/{repo}/resolve/{REVISION}/{name}"] = "application/octet-stream", content
        info = {
            "_id": "0",
            "id": repo,
            "modelId": repo,
            "sha": REVISION,
            "siblings": siblings,
            "cardData": {"license": license},
        }
        self.pages[f"/api/models/{repo}"] = "application/json", json.dumps(info).encode()
        tree = [{"type": "file", "path": it["rfilename"], "oid": "0", **it} for it in siblings]
        self.pages[f"/api/models/{repo}/tree/{REVISION}"] = "application/json", json.dumps(tree).encode()

    def add_wheel(self, project: str, content: bytes) -> None:
        """Publish version 1 of a wheel."""
        name = f"{project}-1-py3-none-any.whl"
        self.pages[f"/files/{name}"] = "application/zip", content
        page = f'<!DOCTYPE html><html><body><a href="/files/{name}">{name}</a></body></html>'
        self.pages[f"/simple/{project}/"] = "text/html", page.encode()


@contextmanager
def serving() -> Generator[Hub]:
    """Serve a hub for the time of a block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append(path)
            kind, content = hub.pages.get(path, ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("ETag", hashlib.sha256(content).hexdigest())
            self.end_headers()
            if self.command == "HEAD":
                return
            half = len(content) // 2 if path == hub.held else 0
            try:
                self.wfile.write(content[:half])
                if half:
                    self.wfile.flush()
                    hub.halfway.set()
                    hub.release.wait(60)
                self.wfile.write(content[half:])
            except OSError:  # the client has left
                pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()


def make_wheel(project: str, gguf: bytes) -> bytes:
    """Return version 1 of a wheel with the file PROJECT/PROJECT.gguf."""
    info = f"{project}-1.dist-info"
    texts: dict[str, str | bytes] = {
        f"{project}/{project}.gguf": gguf,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in texts.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*texts, f"{info}/RECORD")))
    return packed.getvalue()


def write_gguf(folder: Path, file: Path, *, layers: int | None = None, left_out: str = "") -> Path:
    """Write a Llama model with a byte-level tokenizer as a GGUF file, in llama.cpp's order of rows.

    Args:
        folder: The model's folder.
        file: The new file.
        layers: Number of layers that the file announces.
        left_out: Part of the names of the tensors that it lacks.
    """
    import gguf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    config, count = model.config, len(tokenizer)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("Tiny")
    writer.add_license("mit")
    writer.add_block_count(layers or config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    tokens = tokenizer.convert_ids_to_tokens(range(count))
    writer.add_token_list(tokens)
    added = tokenizer.added_tokens_decoder
    kinds = {id: 3 if token.special else 4 for id, token in added.items()}
    writer.add_token_types([kinds.get(id, 1) for id in range(count)])
    merges = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        name = names.get_name(key, try_suffixes=(".weight",))
        if name is None or key == "lm_head.weight" or (left_out and left_out in name):
            continue
        array = tensor.float().numpy()
        for part, heads in (("attn_q", config.num_attention_heads), ("attn_k", config.num_key_value_heads)):
            if part in name:
                rows = array.reshape(heads, 2, -1, array.shape[1])
                array = rows.swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
