"""Tests of resuming runs that were killed, interrupted or changed."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from rolegraph import api

pytest.importorskip("torch", reason="needs the extra `local`")

from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.folder import RunFolder
from rolegraph.engine.records.ownership import LOCK_FILE
from rolegraph.local.launcher import LocalService
from tests.cli.conftest import ENVIRONMENT, Command
from tests.cli.printed import done, printed
from tests.cli.test_local_run import children, gone
from tests.trainings import SMALL, assert_same, key, metrics, resume, start, train, wait_for_lines

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kill a training with its own service after three steps, and return the folder."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    process = start(out, "solver_judge", *SMALL)
    wait_for_lines(out, 3, process)
    services = children(process.pid)
    process.kill()
    process.wait()
    assert gone(services)
    return out


def test_a_killed_run_with_its_own_service_goes_on_from_the_weights_in_its_folder(
    whole: Path, stopped: Path, rolegraph: Command, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    # The overrides come from the run folder, also if the command names the spec.
    done = rolegraph("train", "solver_judge", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    before = next(line for line in metrics(out) if line["step"] == 0)["validation/correct"]
    shown = re.search(r"^ ?correct +([\d.]+)", done.stdout, re.MULTILINE)
    assert shown is not None and shown[1] == f"{before:.3f}", "before training, not before the resume"
    assert_same(metrics(out), metrics(whole))


def test_a_finished_training_that_is_resumed_loses_the_lock_of_a_killed_command(
    whole: Path, rolegraph: Command, tmp_path: Path
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    (out / LOCK_FILE).write_text("process 1 on elsewhere")
    assert rolegraph("train", "--resume", "--out", str(out)).returncode == 0
    assert not (out / LOCK_FILE).exists()


def test_of_two_commands_that_resume_one_training_one_is_refused(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    pair = [start(out, "--resume") for _ in range(2)]
    said = [process.communicate()[1] for process in pair]
    codes = [process.wait() for process in pair]
    assert sorted(codes) == [0, 2], said
    holder = pair[codes.index(0)].pid
    assert f"process {holder} on " in said[codes.index(2)]
    assert_same(metrics(out), metrics(whole))
    assert [checkpoint.step for checkpoint in RunFolder(out).checkpoints()] == [2, 4]


LOOP = (
    "loops={again: {roles: [solver, judge], times: 2}}",
    "roles.solver.needs={judge: previous}",
    "roles.solver.prompt='{{ task.question }}{% if judge.ran %} Not {{ judge.action }}{% endif %}'",
    "roles.solver.credit=turn",
    "roles.solver.group=turn",
    "roles.solver.weight=ramp(2, 1, 3)",
)


def test_a_loop_of_two_policies_with_a_schedule_that_is_killed_twice_ends_as_an_unbroken_one(
    service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    few = ("train.batch_size=2", "train.rollouts=2", "train.steps=3", "train.validation.tasks=2")
    words = ("two_policies", *SMALL, *LOOP, *few)
    uninterrupted = train(tmp_path / "whole", *words, service=service).folder
    out = tmp_path / "run"
    # The second kill happens in step 3 or in the checkpoint before it.
    for lines, begun in ((1, words), (3, ("--resume",))):
        process = start(out, *begun, service=service)
        wait_for_lines(out, lines, process)
        time.sleep(random.Random(lines).random())
        process.kill()
        process.wait()
        with (out / "metrics.jsonl").open("a") as file:
            file.write('{"step": 99, "half a li')  # a partial line, as after a kill during a write
    resume(rolegraph, out, service)
    assert_same(metrics(out), metrics(uninterrupted))
    ours, theirs = ({f.name for f in (run / "episodes").iterdir()} for run in (out, uninterrupted))
    assert ours == theirs
    for step in (1, 2, 3):
        episodes = [*read_episodes(out / "episodes" / f"train-{step:06}.jsonl")]
        assert {len(trajectory.steps) for episode in episodes for trajectory in episode["solver"]} == {2}
        assert [episode.metadata["scheduled"] for episode in episodes] == [
            {"roles.solver.weight": 2 - (step - 1) / 3}
        ] * len(episodes)

    saved, expected = (RunFolder(run).checkpoints()[-1].policies for run in (out, uninterrupted))
    assert {name: policy.version for name, policy in saved.items()} == {
        name: policy.version for name, policy in expected.items()
    }
    assert saved["solver"].version > 0 and saved["judge"].version > 0
    info = RunFolder(out).training()
    assert info.roles["judge"].policies == ("judge",)
    assert "--resume" in info.resumed[0].command and "--resume" not in info.command
    assert info.started and info.finished and info.started < info.resumed[0].time < info.finished
    assert info.figures["step"] == 3 and "validation/judge_acc" in info.figures


def killed_and_resumed(
    words: tuple[str, ...], service: LocalService, rolegraph: Command, tmp_path: Path
) -> tuple[Path, Path]:
    """Train, and resume from the files that a kill after step 3 would leave, with the same metrics.

    Returns:
        The folders of both.
    """
    whole, out = tmp_path / "whole", tmp_path / "run"

    def keep(event: api.Event) -> None:
        if isinstance(event, api.StepLogged) and event.step == 3:
            shutil.copytree(whole, out)

    train(whole, *words, service=service, observe=keep)
    assert len(metrics(out)) == 4
    resume(rolegraph, out, service)
    assert_same(metrics(out), metrics(whole))
    return whole, out


def test_a_killed_training_goes_on_with_its_past_selves_its_running_means_and_its_teacher(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    words = (
        "solver_judge",
        *SMALL,
        f"policies={{main: {{checkpoint: {whole}}}, past: {{of: main, every: 1, keep: 2}}}}",
        *("roles.judge.policy=past", "roles.judge.estimator=null"),
        "roles.solver.estimator={ema: {by: task.target % 2}}",
        "roles.solver.signal={reverse_kl: {teacher: base, coefficient: 0.5, clip: null, center: true}}",
        # With a refill the order of the tasks depends on what taught, too.
        *("train.batch_size=2", "train.refill=1", "train.validation.tasks=2"),
    )
    uninterrupted, out = killed_and_resumed(words, service, rolegraph, tmp_path)
    for step in (1, 2, 3, 4):
        file = f"train-{step:06d}.jsonl"
        ours, theirs = (
            [(e.id, e.metadata["past"]) for e in read_episodes(run / "episodes" / file)]
            for run in (out, uninterrupted)
        )
        assert ours == theirs
    means, expected = (
        [saved.estimators for saved in RunFolder(run).checkpoints()] for run in (out, uninterrupted)
    )
    assert means == expected
    assert {*means[-1]["solver"]["0"]} == {"0", "1"}
    gaps = [line["signal/solver/reverse_kl"] for line in metrics(out)[1:]]
    assert gaps[0] == pytest.approx(0.0, abs=1e-4) and gaps[-1] != pytest.approx(0.0, abs=1e-4)


def test_an_interrupted_run_says_so_and_leaves_a_report(service: LocalService, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "solver_judge", *SMALL, service=service)
    wait_for_lines(out, 1, process)  # the line of the validation before training
    process.send_signal(signal.SIGINT)
    said, noted = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in noted
    assert f"next: rolegraph train --resume --out {out}" in said
    assert "+0.000" not in said, "nothing has been measured since"
    assert (out / "report.html").exists()
    (again,) = [line for line in printed(said) if "--resume" in line]
    assert "report.html" in done(again, tmp_path, {**ENVIRONMENT, **key(service)})
    assert RunFolder(out).last_checkpoint() is not None


def test_a_changed_spec_is_refused_with_the_difference(whole: Path, rolegraph: Command) -> None:
    before = metrics(whole)
    changed = ("train", "solver_judge", *SMALL, "roles.solver.count=3", "--resume", "--out", str(whole))
    done = rolegraph(*changed)
    assert done.returncode == 2
    assert "-    count: 2" in done.stderr and "+    count: 3" in done.stderr
    assert metrics(whole) == before


def test_a_second_run_does_not_write_over_the_first(whole: Path, rolegraph: Command) -> None:
    done = rolegraph("train", "solver_judge", *SMALL, "--out", str(whole))
    assert done.returncode == 2
    assert "already holds a run; go on with --resume" in done.stderr


def test_a_training_that_is_killed_before_its_report_gets_its_report_on_resume(
    whole: Path, service: LocalService, rolegraph: Command, tmp_path: Path
) -> None:
    out = shutil.copytree(whole, tmp_path / "run")
    for file in (RunFolder(out).report, RunFolder(out).controls_file):
        file.unlink()
    info = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**info, "finished": None, "figures": {}}))
    resume(rolegraph, out, service)
    assert RunFolder(out).is_whole() and RunFolder(out).controls() == RunFolder(whole).controls()
    assert_same(metrics(out), metrics(whole))
