"""Write the pictures of the viewer's pages, `docs/pictures/*.webp`: `python -m docs.pictures`.

Two runs and a training of `solver_judge` are made on the shipped model, always with the same seeds, and each
page is opened in a headless Chromium.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.pages.view.browser import Browser, browsing

PICTURES = Path(__file__).with_suffix("")
MOST = 150_000
"""Largest size of a picture in bytes."""
WIDTH, SCALE = 1280, 1.25
STEPS = 4
TRAINING = (
    *("train", "solver_judge", "--out", "runs/solver_judge", f"train.steps={STEPS}", "train.batch_size=6"),
    *("train.rollouts=6", "train.validation={every: 2, tasks: 24, rollouts: 1}"),
)
RUN = ("run", "solver_judge", "--limit", "48", "--out")
TRACE = """(() => {
  const trace = document.querySelector('details.credit');
  for (let it = trace; it; it = it.parentElement) if (it.tagName === 'DETAILS') it.open = true;
  return Boolean(trace);
})()"""
"""Script that opens the first credit trace of an episode's page."""


def main() -> None:
    """Make the runs, open the pages, write the pictures."""
    with tempfile.TemporaryDirectory() as name, browsing(Path(name) / "profile") as browser:
        folder = Path(name)
        _rolegraph(folder, *TRAINING)
        _rolegraph(folder, *RUN, "runs/before")
        _rolegraph(folder, *RUN, "runs/after", "model.checkpoint=runs/solver_judge")
        _rolegraph(folder, "compare", "runs/before", "runs/after", "--html", "compare.html")
        with _viewing(folder) as address:
            _take(browser, address, "runs", 620)
        with _viewing(folder, "runs/solver_judge") as address:
            _take(browser, address, "episodes", 860)
            step = f"train-{STEPS:06d}"
            lines = (folder / "runs" / "solver_judge" / "episodes" / f"{step}.jsonl").read_text("utf-8")
            episode = f"{address}/{step}/{_instructive(lines)}"
            _take(browser, episode, "episode", 900, TRACE)
            _take(browser, episode, "episode-dark", 900, TRACE, dark=True)
            _take(browser, episode, "episode-phone", 780, TRACE, width=400)
        _take(browser, (folder / "runs" / "solver_judge" / "report.html").as_uri(), "report", 1100)
        _take(browser, (folder / "compare.html").as_uri(), "compare", 900)


def _instructive(lines: str) -> int:
    """Return the place of the first episode whose two solvers earned differently."""
    for place, line in enumerate(lines.splitlines()):
        solvers = [it for it in json.loads(line)["trajectories"] if it["name"] == "solver"]
        if len({it["reward"] for it in solvers}) > 1:
            return place
    return 0


def _rolegraph(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "rolegraph", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _viewing(folder: Path, *runs: str) -> Generator[str]:
    """Serve the viewer's pages and yield the address of the first."""
    command = [sys.executable, "-m", "rolegraph", "view", *runs]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _take(
    browser: Browser,
    url: str,
    name: str,
    height: int,
    script: str = "true",
    *,
    width: int = WIDTH,
    dark: bool = False,
) -> None:
    """Write the picture of a page's first `height` pixels at most, after a script that must return true."""
    browser.send("Emulation.setScrollbarsHidden", hidden=True)
    browser.open(url, width, dark=dark)
    if not browser.of(script):
        sys.exit(f"{name}: the page has nothing to show")
    height = min(height, browser.of("Math.ceil(document.body.getBoundingClientRect().bottom)"))
    screen = {"width": width, "height": height, "deviceScaleFactor": SCALE, "mobile": False}
    browser.send("Emulation.setDeviceMetricsOverride", **screen)
    for quality in range(80, 20, -10):
        shot = browser.send("Page.captureScreenshot", format="webp", quality=quality)
        picture = base64.b64decode(shot["data"])
        if len(picture) < MOST:
            break
    else:
        sys.exit(f"{name}: the picture exceeds {MOST:,} bytes")
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"{name}.webp").write_bytes(picture)
    sys.stdout.write(f"{name}.webp: {len(picture):,} bytes\n")


if __name__ == "__main__":
    main()
