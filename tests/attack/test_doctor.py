"""`rolegraph doctor` against services that drip or redirect."""

from __future__ import annotations

import asyncio

import pytest

from tests.attack.raw_server import Answer, dripping, serving
from tests.cli.conftest import Command

KEY = "tml-of-this-test-4711"


async def elsewhere(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize(
    "answer", [dripping(b"HTTP/1.1 200 OK\r\n\r\n"), elsewhere], ids=["drip", "redirect"]
)
def test_a_service_that_never_opens_a_session_has_a_deadline(
    answer: Answer, rolegraph: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tinker")
    monkeypatch.setattr("rolegraph.engine.models.tinker._OPEN_SECONDS", 2.0)
    with serving(answer) as url:
        ended = rolegraph("doctor", "--base-url", url, TINKER_API_KEY=KEY)
    assert ended.returncode == 1
    assert url in ended.stderr
    assert "Traceback" not in ended.stderr and KEY not in ended.stderr
