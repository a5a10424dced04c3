"""Tests of the weights of one's own model folder: they are asked, and each `next:` runs as printed."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.records import RunFolder, read_episodes
from tests.cli.conftest import Command
from tests.local.conftest import make_model

pytestmark = pytest.mark.service

SPEC = """
rolegraph: 2
name: own
data: {train: rows.jsonl}
policies: {coder: {lora: {rank: 4}}}
roles:
  solver:
    prompt: "{{ task.question }}"
    parser: text
    reward: {length: {under: 9999}}
    estimator: reinforce
  coder:
    needs: solver
    policy: coder
    prompt: "code {{ task.question }}"
    parser: text
    reward: {length: {under: 9999}}
    estimator: reinforce
  critic: {needs: solver, prompt: "{{ task.question }}", parser: text}
episode: {correct: coder.right}
sampling: {max_tokens: 12}
train:
  {batch_size: 2, rollouts: 2, steps: 1, learning_rate: 0.1, validation: {every: 0, tasks: 2, rollouts: 1}}
"""
"""Spec that names no model: one role of each of two policies, and one that is not trained."""
HELD_OUT = ("own.yaml", "data.validation=rows.jsonl")
MODEL = ("--model", "local:the model")
Answers = dict[tuple[str, str], str]
"""Text of each answer, by episode and role."""


@pytest.fixture
def own(
    rolegraph: Command,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Command]:
    """Write the spec, its rows and a model folder; services stay between the commands of a test."""
    make_model(tmp_path / "the model")
    (tmp_path / "own.yaml").write_text(SPEC)
    rows = ({"question": f"q{number}?", "answer": "1"} for number in range(3))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))  # a socket's path has a limit
    monkeypatch.setenv("ROLEGRAPH_WARM", "600")
    monkeypatch.delenv("CI", raising=False)
    yield rolegraph
    assert rolegraph("serve", "--stop").returncode == 0


def next_of(rolegraph: Command, *words: str) -> list[list[str]]:
    """Run a command with `--json` and return the words of its next commands, as a shell splits them."""
    done = rolegraph(*words, "--json")
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(command) for command in json.loads(done.stdout)["next"]]
    assert all(command[0] == "rolegraph" for command in commands)
    return [command[1:] for command in commands]


def answers_of(folder: Path) -> Answers:
    """Return the answers of a run."""
    episodes = read_episodes(RunFolder(folder).episodes)
    return {(e.id, t.name): t.steps[0].model_response for e in episodes for t in e.trajectories}


def asked(rolegraph: Command, folder: Path, *words: str) -> Answers:
    """Run the spec in a new folder, and return its answers."""
    done = rolegraph("run", *words, "--out", folder.name)
    assert done.returncode == 0, done.stderr
    return answers_of(folder)


def changed(before: Answers, after: Answers) -> set[str]:
    """Return the roles of which some answer differs."""
    assert before.keys() == after.keys()
    return {role for (_, role), text in after.items() if text != before[_, role]}


def test_a_command_on_a_model_without_a_tensor_ends_with_its_name(own: Command, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file, name = tmp_path / "the model" / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
    weights = load_file(file)
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    done = own("run", "own.yaml", *MODEL, "--limit", "1")
    assert done.returncode == 2, done.stderr
    assert f"{name} is missing" in done.stderr and "Traceback" not in done.stderr


def test_trained_weights_are_asked_and_each_next_command_runs_as_it_is_printed(
    own: Command, tmp_path: Path
) -> None:
    verbs: list[str] = []

    def follow(commands: Sequence[Sequence[str]], *further: str) -> None:
        for command in commands:
            done = own(*command, *further)
            assert done.returncode == 0, (command, done.stderr)
            verbs.append(command[0])

    base = asked(own, tmp_path / "base", "own.yaml", *MODEL)
    one_name = f"local:{tmp_path / 'the model'}"
    assert RunFolder(tmp_path / "base").info().model == one_name
    following = next_of(own, "train", "own.yaml", *MODEL, "--out", "taught it")
    (run,) = (command for command in following if command[0] == "run")
    trained = asked(own, tmp_path / "trained", *run[1:])
    assert changed(base, trained) == {"solver", "coder"}, "the critic is not trained"
    info = RunFolder(tmp_path / "trained").info()
    assert info.checkpoint == "taught it, taught it#coder"
    assert info.model == RunFolder(tmp_path / "taught it").info().model == one_name
    weights = [word for word in run[1:] if word.startswith("policies.")]
    assert trained == asked(own, tmp_path / "no_model", "own.yaml", *weights, *MODEL)
    follow(following)

    # Each policy takes its model from the training; the critic's is the shipped one then.
    untold = asked(own, tmp_path / "untold", "own.yaml", *weights)
    assert changed(trained, untold) == {"critic"}
    told = RunFolder(tmp_path / "untold").info()
    assert (told.model, told.checkpoint) == (f"local:{tmp_path / 'the model'}", info.checkpoint)

    follow(next_of(own, *run, "--out", "again"))
    shipped = next_of(own, "run", "own.yaml", *weights, "--out", "once more")
    assert [command[0] for command in shipped] == ["fetch", "run"], "the shipped model cannot be the critic"
    shutil.rmtree(tmp_path / "taught it" / "adapter-main")
    compared = next_of(own, "eval", *HELD_OUT, "--checkpoint", "taught it", "--tasks", "2", "--rollouts", "1")
    follow(compared)
    assert compared[0][0] == "compare"  # an export follows only where the figure rose
    sides = [RunFolder(folder).info() for folder in sorted((tmp_path / "runs").glob("own-eval-*/*"))[:2]]
    assert {side.model for side in sides} == {f"local:{tmp_path / 'the model'}"}, "both have one base"
    follow(next_of(own, "validate", "own.yaml", *MODEL))
    follow(next_of(own, "forecast", "own.yaml", *MODEL))
    follow(next_of(own, "forecast", "own.yaml", *MODEL, "--from", "base"))
    assert {*verbs} == {"run", "train", "export", "compare", "forecast"}


def test_a_checkpoint_of_another_model_is_refused_with_the_model_s_name(own: Command, tmp_path: Path) -> None:
    words = (
        "own.yaml",
        *MODEL,
        "roles.coder=null",
        "roles.critic=null",
        "policies=null",
        "episode.correct=solver.right",
    )
    assert own("train", *words, "--out", "taught").returncode == 0
    other = make_model(tmp_path / "other", seed=1)
    refused = own("run", *words, "model.checkpoint=taught", "--model", f"local:{other}", "--out", "x")
    assert refused.returncode == 2
    assert f"--model local:{tmp_path / 'the model'}" in refused.stderr
    assert not (tmp_path / "x" / "episodes.jsonl").exists() or not answers_of(tmp_path / "x")
