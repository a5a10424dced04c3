"""The current folder of a command, with a stranger's files: no process of ours imports them or has keys.

The commands run with an empty entry in PYTHONPATH, which many shells' settings leave and which stands for the
current folder. Python itself searches it in the first process; that process imports all it needs before the
files appear.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KEYS = {"TINKER_API_KEY": "tml-planted", "HF_TOKEN": "hf-planted", "AWS_ACCESS_KEY_ID": "AKIA-planted"}
SHADOWS = "engine json logging random roles sitecustomize torch types typing usercustomize yaml".split()
SHADOW = "open({trace!r}, 'a').write(__name__ + chr(10))\nraise ImportError('shadowed')\n"
STARTED = """
import asyncio, importlib, os, sys
from pathlib import Path
{imports}
for name in {shadows!r}:
    Path(name + ".py").write_text({shadow!r})

def environment(pid="self"):
    print(Path(f"/proc/{{pid}}/environ").read_text().replace(chr(0), chr(10)))

{code}
"""
SERVICE = (
    "from rolegraph.local.launcher import BASE_MODEL, running",
    "with running(BASE_MODEL, threads=1) as service: environment(service.pid)",
)
WORKER = (
    "from rolegraph.engine.vocabulary.isolation import Isolation",
    "async def main():\n"
    "    async with Isolation() as isolation:\n"
    "        print(chr(10).join(await isolation.run(names, limit=60)))\n"
    "def names():\n"
    "    import os, random, yaml\n"
    "    return [f'{name}={value}' for name, value in os.environ.items()]\n"
    "asyncio.run(main())",
)
TABLE = (
    "from rolegraph.integrations.verifiers.data import start_loader",
    "worker = start_loader(None)\n"
    "while b'rows.py' not in Path(f'/proc/{worker.pid}/cmdline').read_bytes(): os.sched_yield()\n"
    "environment(worker.pid)\n"
    "worker.stdin.close(); worker.wait()",
)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("imports", "code"),
    [pytest.param(*SERVICE, marks=pytest.mark.service), WORKER, TABLE],
    ids=["service", "isolated", "worker"],
)
def test_a_child_imports_nothing_from_the_current_folder_and_has_no_key(
    tmp_path: Path, imports: str, code: str
) -> None:
    if "running" in imports:
        pytest.importorskip("torch", reason="needs the extra `local`")
    trace = tmp_path / "trace.txt"
    shadow = SHADOW.format(trace=str(trace))
    script = STARTED.format(imports=imports, code=code, shadows=SHADOWS, shadow=shadow)
    path = os.pathsep.join(["", *filter(None, sys.path)])
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "here",
        env={**os.environ, **KEYS, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "PATH" in names and not names & {*KEYS}
    assert "planted" not in done.stdout
    assert not trace.exists(), trace.read_text()
