"""The child process of the launcher imports nothing from the current folder or the main script's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from tests.examples import sample

pytestmark = pytest.mark.service
SHADOW = "from pathlib import Path\nPath(__file__ + '.imported').touch()\nraise ImportError('shadowed')\n"
SCRIPT = f"""
import sys
from pathlib import Path
from rolegraph.local.launcher import running
# Written only now, so that this process does not import them itself.
for name in ("engine", "json", "logging", "random", "safetensors", "starlette", "torch", "types", "uvicorn"):
    for folder in sys.argv[2:]:
        Path(folder, name + ".py").write_text({SHADOW!r})
with running(Path(sys.argv[1]), threads=1) as service:
    print(service.base_url)
"""


STARTS = [
    pytest.param(["-m", "main"], "script", id="-m"),
    pytest.param(["../script/main.py"], "elsewhere", id="script-elsewhere"),
    pytest.param(["-c", SCRIPT], "script", id="-c"),
    pytest.param(["main.py"], "script", id="script"),
]


@pytest.mark.parametrize(("command", "cwd"), sample(STARTS, 2))
def test_modules_of_the_user_are_not_imported(
    model_dir: Path, tmp_path: Path, command: list[str], cwd: str
) -> None:
    folders = tmp_path / "script", tmp_path / "elsewhere"
    for folder in folders:
        folder.mkdir()
    (folders[0] / "main.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *command, str(model_dir), *map(str, folders)],
        cwd=tmp_path / cwd,
        # `rolegraph` may be importable by PYTHONPATH only; "." adds the current folder explicitly.
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), "."])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("http://127.0.0.1:"), done.stderr
    assert not list(tmp_path.glob("*/*.imported"))
