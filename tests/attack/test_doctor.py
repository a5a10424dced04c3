"""`rolegraph doctor` against services that drip or redirect."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.raw_server import Answer, dripping, serving
from tests.cli.conftest import ENVIRONMENT

KEY = "tml-of-this-test-4711"
IMPATIENT = """
import rolegraph.engine.models.tinker
from rolegraph.cli import main

rolegraph.engine.models.tinker._OPEN_SECONDS = 2.0
main()
"""


async def elsewhere(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize(
    "answer", [dripping(b"HTTP/1.1 200 OK\r\n\r\n"), elsewhere], ids=["drip", "redirect"]
)
def test_a_service_that_never_opens_a_session_has_a_deadline(answer: Answer, tmp_path: Path) -> None:
    """In a process of its own: the SDK's abandoned call goes on for minutes, under a lock of the process."""
    pytest.importorskip("tinker")
    with serving(answer) as url:
        command = [sys.executable, "-c", IMPATIENT, "doctor", "--base-url", url]
        environment = {**ENVIRONMENT, "TINKER_API_KEY": KEY}
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 1
    assert url in ended.stderr
    assert "Traceback" not in ended.stderr and KEY not in ended.stderr
