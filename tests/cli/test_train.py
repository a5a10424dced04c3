"""Tests of `rolegraph train` and `rolegraph eval`: output, exit codes and files."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph import api
from rolegraph.engine.records.folder import RunFolder
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import Command
from tests.edge import write_spec
from tests.trainings import STEP, key, train

pytestmark = pytest.mark.service


def test_eval_compares_a_checkpoint_with_the_base_and_keeps_both_as_runs(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    words = ("eval", "solver_judge", "--checkpoint", str(whole), "--base-url", service.base_url)
    words += ("--tasks", "4", "--rollouts", "1", "--json")
    done = rolegraph(*words, **key(service))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["tasks"], document["episodes"]) == (4, 4)
    folder = document["folder"]
    assert folder.startswith("runs/solver_judge-eval-")
    assert document["next"] == [f"rolegraph compare {folder}", f"rolegraph export {whole}"]
    found = document["figures"]
    assert found["judge_acc"]["base"]["n"] == 4
    assert found["solver_acc"]["difference"]["mean"] == pytest.approx(
        found["solver_acc"]["checkpoint"]["mean"] - found["solver_acc"]["base"]["mean"]
    )
    for side in ("base", "checkpoint"):
        info = RunFolder(tmp_path / folder / side).info()
        assert info.figures["solver_acc"] == pytest.approx(found["solver_acc"][side]["mean"])
        assert info.checkpoint == (str(whole) if side == "checkpoint" else None)

    compared = rolegraph("compare", folder)
    rows = {row.split()[0]: row.split() for row in compared.stdout.splitlines() if row.strip()}
    assert {"base", "checkpoint", "difference"} <= {*rows["figure"]}
    assert float(rows["solver_acc"][1]) == pytest.approx(found["solver_acc"]["base"]["mean"], abs=1e-3)
    (told,) = (line for line in compared.stdout.splitlines() if str(whole) in line)
    assert told.split() == ["checkpoint", "–", str(whole)]
    seen = rolegraph("view", folder, "--static", "both.html", "--no-hidden")
    assert seen.stdout == "both.html: 8 episodes\n"

    again = rolegraph(*words, "--out", folder, **key(service))
    assert (again.returncode, "go on with --resume" in again.stderr) == (2, True)
    side = rolegraph("run", "--resume", "--out", f"{folder}/checkpoint")
    assert (side.returncode, f"rolegraph eval --resume --out {folder}" in side.stderr) == (2, True)


def test_an_evaluation_in_which_no_call_is_answered_says_so_and_shows_no_figures(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    (tmp_path / "long.j2").write_text("{{ task.question }} " + "and so on " * 6_000, encoding="utf-8")
    spec = "{rolegraph: 2, name: long, extends: solver_only.yaml, roles: {solver: {prompt: long.j2}}}"
    write_spec(tmp_path, spec, "long.yaml")
    words = ("eval", "long.yaml", "--checkpoint", str(whole))
    words += ("--base-url", service.base_url, "--tasks", "2", "--rollouts", "1", "--out", "refused")
    done = rolegraph(*words, **key(service))
    assert done.returncode == 1
    assert "0.000" not in done.stdout
    for side in ("base", "checkpoint"):
        assert f"{side}: solver/context_full 4" in done.stdout
        assert f"error: 4 of 4 trajectories of {side} got no answer" in done.stderr
    kept = api.Evaluation.read(tmp_path / "refused")
    assert kept.figures == {}
    assert kept.unanswered == ["base", "checkpoint"]


def test_an_evaluation_goes_on_with_the_episodes_that_are_missing(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    words = ("eval", "solver_judge", "--checkpoint", str(whole), "--base-url", service.base_url)
    words += ("--tasks", "2", "--rollouts", "1", "--json", "--out", "kept")
    first = json.loads(rolegraph(*words, **key(service)).stdout)
    (tmp_path / "kept" / "evaluation.json").unlink()
    file = tmp_path / "kept" / "checkpoint" / "episodes.jsonl"
    one, _ = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(one)
    again = rolegraph(*words, "--resume", **key(service))
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["episodes"] == 2 and document["figures"].keys() == first["figures"].keys()
    assert file.read_bytes().startswith(one) and file.read_bytes().count(b"\n") == 2
    other = rolegraph(*words, "--resume", "--seed", "1", **key(service))
    assert (other.returncode, "started with the seed 0" in other.stderr) == (2, True)


def test_a_finished_training_is_told_again_as_a_document(whole: Path, rolegraph: Command) -> None:
    done = rolegraph("train", "--resume", "--out", str(whole), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert f"{document['done']} of {document['steps']} steps" in done.stderr
    assert document["done"] == document["steps"] == RunFolder(whole).info().steps
    assert document["metrics"]["step"] == document["done"]
    assert document["report"] == str(whole / "report.html")
    best = RunFolder(whole).best()
    verb = "export" if best.best else "view"  # weights that are not better are not worth an export
    assert any(command.startswith(f"rolegraph {verb} {whole}") for command in document["next"])


def test_a_training_that_learnt_nothing_names_no_export(
    whole: Path, rolegraph: Command, tmp_path: Path
) -> None:
    idle = shutil.copytree(whole, tmp_path / "idle")
    lines = [json.loads(line) for line in (idle / "metrics.jsonl").read_text("utf-8").splitlines()]
    still = [{**line, "optim/data": 0.0} if "optim/data" in line else line for line in lines]
    (idle / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in still), "utf-8")
    done = rolegraph("train", "--resume", "--out", str(idle), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["next"] == [f"rolegraph view {idle}"]
    steps = RunFolder(whole).info().steps
    assert [
        text for text in document["warnings"] if text.startswith(f"{steps} of {steps} steps had no gradient")
    ]


def test_a_training_leaves_a_log(whole: Path) -> None:
    lines = (whole / "log.txt").read_text("utf-8").splitlines()
    assert any(" INFO step 1: " in line and "tokens/response=" in line for line in lines)
    assert " INFO done: " in lines[-1]


def test_a_budget_in_dollars_ends_a_training_in_time_and_a_larger_one_resumes_it(
    service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    where, price = ("--base-url", service.base_url, "--out", "run"), "{prompt: 1, response: 10, train: 100}"
    words = ("train", "solver_judge", *STEP, "train.steps=2", f"model.price={price}", *where)
    ended = rolegraph(*words, "--budget", "$0.000001", **key(service))
    assert ended.returncode == 0, ended.stderr
    costs = [line["cost/step"] for line in RunFolder(tmp_path / "run").metrics()]
    assert len(costs) == 2 and min(costs) > 0, "the validation before the first step, and a step"
    assert re.search(rf"^1 of 2 steps in .*, \${sum(costs):.4f}$", ended.stdout, re.MULTILINE)
    assert "next: rolegraph train --resume --out run" in ended.stdout
    resumed = rolegraph("train", "--resume", *where, "--budget", "$1", **key(service))
    assert resumed.returncode == 0, resumed.stderr
    assert "2 of 2 steps in " in resumed.stdout


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ((), ["model"]),
        (("policies={solve: {model: local}, judge: {}}",), ["policies.solve.model", "model"]),
    ],
    ids=["one model", "a policy's own model"],
)
def test_a_budget_in_dollars_without_a_price_names_what_to_write_and_leaves_no_folder(
    overrides: tuple[str, ...], keys: list[str], rolegraph: Command, tmp_path: Path
) -> None:
    policies = ("roles.solver.policy=solve", "roles.judge.policy=judge") if overrides else ()
    words = ("train", "solver_judge", *STEP, *overrides, *policies, "--out", "run", "--budget", "$5")
    done = rolegraph(*words)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    (hint,) = re.findall("error: a budget in dollars needs the price of each .*, as in (.*)", done.stderr)
    assert shlex.split(hint) == [f"{key}.price={{prompt: 0.4, response: 1.2, train: 2}}" for key in keys]


def test_metrics_go_to_tensorboard_through_its_own_library(service: LocalService, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    train(out, "solver_judge", *STEP, service=service, track=["tensorboard"])
    assert [*out.glob("tensorboard-*/events.out.tfevents.*")]
