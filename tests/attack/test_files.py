"""Files of a stranger that are costly or odd: models, specs, sweeps, runs; and odd standard outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rolegraph as rg
from rolegraph.engine.records import Checkpoint
from rolegraph.engine.records.info import RunInfo
from rolegraph.local.card import model_card
from tests.cli.conftest import ENVIRONMENT, Command
from tests.models.edges import chat_answer, serving

JOINED = 130
TICKS = "`" * 4
FENCE = re.compile(r"^(`{4,})(yaml|jinja)\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("bases", [["a"], ["b", "a"]], ids=["its own base", "a circle"])
def test_an_adapter_of_an_adapter_is_a_mistake(rolegraph: Command, tmp_path: Path, bases: list[str]) -> None:
    for name, base in zip(bases, [*bases[1:], bases[0]], strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    done = rolegraph("run", "solver_judge", "--limit", "1", "--model", "local:a")
    assert (done.returncode, "adapter" in done.stderr) == (2, True), done.stderr


def test_a_picture_of_many_arrows_is_small(tmp_path: Path) -> None:
    lines = ["rolegraph: 2", "name: g", "data: {train: countdown}", "roles:"]
    for number in range(JOINED):
        needs = [f"r{other}" for other in range(number)]
        prompt = "".join(f"{{{{{role}.action}}}}" for role in needs) or "x"
        role = {"prompt": prompt, "needs": needs}
        lines.append(f"  r{number}: {json.dumps(role)}")
    (tmp_path / "g.yaml").write_text("\n".join(lines))
    arrows = JOINED * (JOINED - 1) // 2
    assert len(rg.graph(rg.load(tmp_path / "g.yaml")).svg) < 200 * arrows


def test_a_sweep_of_too_many_points_is_not_begun(rolegraph: Command, tmp_path: Path) -> None:
    values = ",".join(map(str, range(100)))
    keys = ("seed", "roles.solver.count", "train.rollouts", "train.steps", "train.batch_size")
    grid = [f"{key}={values}" for key in keys]
    done = rolegraph("run", "solver_judge", "-m", *grid)
    assert (done.returncode, "sweep_points" in done.stderr) == (2, True), done.stderr
    (tmp_path / "stranger").mkdir()
    sweep = {"kind": "run", "spec": "solver_judge", "overrides": grid, "version": rg.__name__}
    (tmp_path / "stranger" / "sweep.json").write_text(json.dumps(sweep))
    done = rolegraph("run", "-m", "--resume", "--out", "stranger")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "internal" not in done.stderr


def test_a_model_card_keeps_a_stranger_s_texts_in_their_place() -> None:
    odd = f"x`{TICKS}\n# Heading\n<script>\n{TICKS}\nimport os"
    info = RunInfo(name=odd, hash=odd, roles={}, templates={odd: odd, "": ""}, version=odd)
    saved = Checkpoint(step=1, policies={}, validation={})
    for spec in (odd, "data: {train: [" + "x, " * 3_000 + "y]}", "data: " + "z" * 900_000, "[", "- a"):
        card = model_card(
            info, saved, spec, policy=odd, base='"); evil("', digest=odd, merged=False, before=None
        )
        blocks = {found[2]: found[3].rstrip() for found in FENCE.finditer(card)}
        assert blocks["yaml"] == spec.strip()
        code = card[card.index("## Use") :]
        assert 'from_pretrained("\\"); evil(\\"")' in code
        outside = FENCE.sub("", card)
        assert "\n# Heading" not in outside and "\n<script>" not in outside
        head = yaml.safe_load(card.split("---")[1])
        assert head["base_model"] == '"); evil("'
        assert len(card) < 2 * len(spec) + 20_000


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--resume", "--out", "odd"),
        ("compare", "odd", "odd"),
        ("preview", "solver_judge", "--with", "odd"),
        ("report", "odd"),
        ("run", "solver_judge", "--model", "replay:odd"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_in_the_place_of_episodes_is_a_message(
    rolegraph: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        assert rolegraph("run", "solver_judge", *model, "--limit", "1", "--out", "odd").returncode == 0
        (tmp_path / "odd" / "episodes.jsonl").unlink()
        (tmp_path / "odd" / "episodes.jsonl").mkdir()
        done = rolegraph(*words)
    assert done.returncode in (1, 2)
    assert done.stderr and "internal error" not in done.stderr and "Traceback" not in done.stderr


def command(*words: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    line = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "rolegraph", *words]
    return subprocess.run(line, env={**ENVIRONMENT, **environment}, capture_output=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "words", [("list",), ("graph", "solver_judge"), ("validate", "solver_judge", "--json")]
)
def test_a_full_output_is_the_machine_s_fault(words: tuple[str, ...]) -> None:
    done = command(*words, shell=">/dev/full")
    assert done.returncode == 1
    assert b"internal error" not in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("shell", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_take_no_file_s_number(tmp_path: Path, shell: str) -> None:
    """Print from a library, by number: the text must not come to stand in a file of the run."""
    (tmp_path / "noisy.py").write_text(
        "import os, rolegraph as rg\n@rg.reward('noisy')\ndef noisy(task, action):\n"
        "    [os.write(number, b'noi' + b'se') for number in (1, 2)]\n    return 1.0\n"
    )
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        noisy = ("roles.solver.reward=noisy", "--import", str(tmp_path / "noisy.py"))
        out = tmp_path / "out"
        done = command("run", "solver_judge", *noisy, *model, "--limit", "1", "--out", str(out), shell=shell)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert not [file for file in out.rglob("*") if file.is_file() and b"noise" in file.read_bytes()]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "words", [("list",), ("preview", "solver_judge"), ("validate", "solver_judge", "--json"), ("list", "“”")]
)
def test_an_output_that_is_not_utf_8_shows_what_it_can(words: tuple[str, ...], encoding: str) -> None:
    done = command(*words, LC_ALL="C.UTF-8", PYTHONIOENCODING=encoding)
    assert done.returncode == (2 if "“”" in words else 0), done.stderr
    assert b"internal error" not in done.stderr
    assert (done.stdout + done.stderr).decode("utf-8" if encoding == "ascii" else encoding)


def test_a_library_that_prints_leaves_the_json_document_alone(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, rolegraph as rg\nprint('imported')\n@rg.reward('noisy')\ndef noisy(task, action):\n"
        "    print('called'); os.write(1, b'raw')\n    return 1.0\n"
    )
    with serving(lambda body: chat_answer("<answer>1</answer>")) as endpoint:
        model = ("--model", "openai:tiny", "--base-url", endpoint.base_url)
        noisy = ("roles.solver.reward=noisy", "--import", str(tmp_path / "noisy.py"))
        out = ("--limit", "1", "--out", str(tmp_path / "out"), "--json")
        done = command("run", "solver_judge", *noisy, *model, *out)
    assert json.loads(done.stdout)["episodes"] == 1
    assert all(word in done.stderr for word in (b"imported", b"called", b"raw")), done.stderr
    assert os.fsencode(tmp_path) in done.stdout
