"""Commands of a `next:` line, which a shell runs as they are printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cli.conftest import ENVIRONMENT

COMMAND = f'rolegraph() {{ exec "{sys.executable}" -m rolegraph "$@"; }}'
"""The command by its name, whatever is on the PATH; it takes the shell's place and so its signals."""
KEYED: Mapping[str, str] = {**ENVIRONMENT, "OPENAI_API_KEY": "sk-1234567890"}


SPEC = """
rolegraph: 2
name: own
data: {train: rows.jsonl}
model: openai:tiny
roles:
  solver:
    prompt: "{{ task.question }} Answer in <answer></answer>."
    parser: {tag: answer}
    reward: REWARD
    estimator: grpo
"""


def write_spec(folder: Path, reward: str) -> None:
    """Write `own.yaml`, whose solver has a reward and an `openai:` model."""
    (folder / "own.yaml").write_text(SPEC.replace("REWARD", reward))


def printed(output: str) -> list[str]:
    """Return the commands of a `next:`, as they are printed."""
    lines = output.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("next: "))
    commands = [lines[first].removeprefix("next: ")]
    for line in lines[first + 1 :]:
        if not line.startswith("      rolegraph "):
            break
        commands.append(line.strip())
    return commands


def shell(line: str, folder: Path, environment: Mapping[str, str] = KEYED) -> subprocess.Popen[str]:
    """Start a line of a shell in a folder."""
    return subprocess.Popen(
        ["bash", "-c", f"{COMMAND}\n{line}"],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(line: str, folder: Path, environment: Mapping[str, str] = KEYED) -> str:
    """Run a line of a shell to its end, and return its standard output."""
    process = shell(line, folder, environment)
    output, noted = process.communicate()
    assert process.returncode == 0, (line, noted)
    return output
