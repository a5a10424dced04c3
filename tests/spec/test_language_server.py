"""Tests of the schema in editors, with the YAML language server (npm's `yaml-language-server`)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolegraph.engine.spec.schema import json_schema
from tests.spec.test_schema import FAULTS_OF_FORM, SHIPPED, with_fault

SERVER = shutil.which("yaml-language-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="needs npm install --global yaml-language-server")


class Editor:
    """Client of the language server over pipes, in the role of an editor such as VS Code."""

    def __init__(self, process: subprocess.Popen[bytes], schema: Path) -> None:
        assert process.stdin and process.stdout
        self._in, self._out = process.stdin, process.stdout
        self._settings = {"yaml": {"schemaStore": {"enable": False}, "schemas": {schema.as_uri(): "*.yaml"}}}
        configuration = {"workspace": {"configuration": True}}
        self._send(
            id=1,
            method="initialize",
            params={"processId": None, "rootUri": None, "capabilities": configuration},
        )
        self._next(id=1)
        self._send(method="initialized", params={})
        self._send(method="workspace/didChangeConfiguration", params={"settings": self._settings})

    def faults(self, name: str, text: str) -> list[str]:
        """Open a file with this text and return the server's diagnostics; use each file name once."""
        uri = f"file:///{name}.yaml"
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        while True:
            said = self._next(method="textDocument/publishDiagnostics")["params"]
            if said["uri"] == uri:
                return [fault["message"] for fault in said["diagnostics"]]

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._in.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._in.flush()

    def _next(self, **wanted: object) -> dict[str, Any]:
        """Return the next message with these fields, and answer the server's requests in between."""
        while True:
            message = self._read()
            if "method" in message and "id" in message:
                asked: Mapping[str, Any] = message.get("params") or {}
                sections = [item.get("section") for item in asked.get("items", ())]
                found = [self._settings.get(section, {}) for section in sections]
                self._send(id=message["id"], result=found or None)
            elif all(message.get(name) == value for name, value in wanted.items()):
                return message

    def _read(self) -> dict[str, Any]:
        length = 0
        while head := self._out.readline().strip().lower():
            if head.startswith(b"content-length:"):
                length = int(head.partition(b":")[2])
        assert length, "the server has gone"
        return json.loads(self._out.read(length))


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    schema = tmp_path_factory.mktemp("schema") / "schema.json"
    schema.write_text(json.dumps(json_schema()), encoding="utf-8")
    assert SERVER is not None
    with subprocess.Popen(
        [SERVER, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield Editor(process, schema)
        process.kill()


def test_the_editor_finds_no_fault_in_a_shipped_spec(editor: Editor) -> None:
    assert SHIPPED
    found = {path.stem: editor.faults(path.stem, path.read_text("utf-8")) for path in SHIPPED}
    assert not any(found.values()), found


def test_the_editor_underlines_every_fault_of_form(editor: Editor) -> None:
    texts = {fault: yaml.safe_dump(with_fault(fault), sort_keys=False) for fault in FAULTS_OF_FORM}
    found = {fault: editor.faults(f"fault{n}", text) for n, (fault, text) in enumerate(texts.items())}
    assert [fault for fault in found if not found[fault]] == []
