"""Driver of a headless Chromium over a pipe, with only the features that the tests need."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
    "chromium-headless-shell",
    "chrome-headless-shell",
)
WHERE = "ROLEGRAPH_CHROMIUM"
"""Environment variable with the path of a Chromium that is not on PATH."""


_BEGIN = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for fd, place in zip(fds, (3, 4)):
    os.dup2(fd, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Script that runs Chromium with its commands on descriptor 3 and its answers on 4."""


def found() -> str | None:
    return os.environ.get(WHERE) or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of the browser."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)
        self._number, self._rest, self._session, self._loaded = 0, b"", "", False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str, width: int, *, dark: bool) -> None:
        """Load a page on a screen of this width."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        # A URL that differs only in its fragment loads nothing, hence the empty page first.
        for page in ("about:blank", url):
            self.go(lambda page=page: self.send("Page.navigate", url=page))

    def go(self, work: Any) -> None:
        """Call `work`, which loads another page, and wait until the page is loaded."""
        self._loaded = False
        work()
        while not self._loaded:
            self._next()

    def of(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        while not self.of(expression):
            time.sleep(0.02)

    def promised(self, expression: str) -> Any:
        """Return the value that an expression's promise comes to."""
        given = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in given, given
        return given["result"].get("value")

    def press(self, key: str) -> None:
        codes = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            " ": 32,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowRight": 39,
        }
        code = codes.get(key, 0)
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = self._read.read(1 << 16)
            assert piece, "the browser has gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._loaded = self._loaded or found.get("method") == "Page.loadEventFired"
        return found


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    command = found()
    assert command is not None
    asked, ask = os.pipe()
    answers, answer = os.pipe()
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    started = [sys.executable, "-c", _BEGIN, str(asked), str(answer), command, *flags]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(started, pass_fds=(asked, answer), stdout=quiet, stderr=quiet)
    os.close(asked)
    os.close(answer)
    try:
        yield Browser(answers, ask)
    finally:
        process.kill()
        process.wait()
