"""A slow function is really stopped, and no worker outlives the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.isolation import Isolation

ROOT = Path(__file__).parent.parent


def test_a_function_that_hangs_is_stopped_and_the_next_one_runs() -> None:
    async def run() -> float:
        async with Isolation() as isolation:
            await isolation.run(abs, -1, limit=30)
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                await isolation.run(time.sleep, 60, limit=0.3)
            assert await isolation.run(abs, -7, limit=30) == 7
            return time.monotonic() - start

    assert asyncio.run(run()) < 20


def test_a_function_s_own_error_comes_back_and_a_dead_worker_is_an_error() -> None:
    async def run() -> None:
        async with Isolation() as isolation:
            with pytest.raises(ValueError, match="invalid literal"):
                await isolation.run(int, "x", limit=30)
            with pytest.raises(RuntimeError, match="died"):
                await isolation.run(os._exit, 3, limit=30)

    asyncio.run(run())


def test_workers_do_not_see_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")

    async def run() -> str | None:
        async with Isolation() as isolation:
            return await isolation.run(os.getenv, "SOME_API_KEY", limit=30)

    assert asyncio.run(run()) is None


SLEEPER = """
import asyncio, os, time
from engine.isolation import Isolation

async def main():
    isolation = Isolation()
    print(await isolation.run(os.getpid, limit=30), flush=True)
    await isolation.run(time.sleep, 60, limit=60)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_a_killed_parent_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
