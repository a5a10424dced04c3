"""Checkpoints, resumed trainings, and rollouts ahead of the updates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.errors import WorldError
from rolegraph.engine.records import MAIN, Note
from tests.edge import RIGHT, WRONG
from tests.models.tinker_edge import failed
from tests.training.edge import Training, comparable


def test_a_checkpoint_is_kept_where_it_is_due_where_it_is_best_and_at_the_end(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if updates == 1 or seed % 2 else WRONG
    training.run("train.checkpoint_every=2", "train.validation.every=1")
    steps = {checkpoint.step: checkpoint for checkpoint in training.folder.checkpoints()}
    assert list(steps) == [1, 2, 3]
    assert [checkpoint.best for checkpoint in steps.values()] == [True, False, False]
    assert training.folder.best() == steps[1]
    assert steps[1].validation["validation/correct"] == 1.0
    assert [checkpoint.policies[MAIN].version for checkpoint in steps.values()] == [1, 2, 3]
    saved = steps[2].policies[MAIN]
    assert saved.state == "tinker://run/weights/step-000002"
    assert saved.sampler == "tinker://run/sampler_weights/step-000002"


def test_of_equal_validations_the_later_is_the_best_but_not_better_than_the_start(
    training: Training, tokenizer: Path, tmp_path: Path
) -> None:
    every = "train.validation.every=1"
    training.workflow.solve = lambda seed, updates: RIGHT if updates else WRONG
    training.run(every)
    assert training.folder.best().step == 3
    training.workflow.solve = lambda seed, updates: RIGHT
    equal = Training(training.workflow, tokenizer, tmp_path / "equal")
    equal.run(every)
    assert not any(checkpoint.best for checkpoint in equal.folder.checkpoints())


def test_of_a_long_training_the_newest_and_the_best_stay(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if updates == 1 or seed % 2 else WRONG
    every = ("train.checkpoint_every=1", "train.validation.every=1")
    training.run(*every, "train.keep={checkpoints: 1, episodes: 2}")
    folder = training.folder
    assert [checkpoint.step for checkpoint in folder.checkpoints()] == [1, 3]
    assert folder.best().step == 1 and folder.rewind() == folder.checkpoints()[-1]
    deleted = [body["path"] for body in training.service.asked_for("delete_checkpoint")]
    label = "step-000002"
    assert deleted == [f"tinker://run/weights/{label}", f"tinker://run/sampler_weights/{label}"]
    assert [step for step, _ in folder.episodes_files("train")] == [2, 3]
    assert [step for step, _ in folder.episodes_files("validation")] == [0, 1, 2, 3]
    assert len(folder.metrics()) == 4


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_been_stopped(
    training: Training, tokenizer: Path, tmp_path: Path
) -> None:
    whole = training
    whole.run()
    broken = Training(whole.workflow, tokenizer, tmp_path / "broken")
    whole.service.refusals["optim_step"] = iter([None, None, failed("the machine is gone", "server")])
    with pytest.raises(WorldError, match="the machine is gone"):
        broken.run()
    start = broken.folder.rewind()
    assert start is not None
    assert (start.step, start.policies[MAIN].version) == (2, 2)
    asked = len(whole.service.asked)
    broken.run(start=start)
    assert whole.service.asked_for("load_weights")[-1]["path"] == start.policies[MAIN].state
    assert broken.figures() == whole.figures()
    assert comparable(broken.episodes("train", 3)) == comparable(whole.episodes("train", 3))
    assert len(whole.service.asked) - asked == 2 * 2 * 3 + 2 * 2 * 3, (
        "step 3 and its two validations, no more"
    )


def test_a_resumed_run_calls_nothing_best_that_is_worse_than_the_untrained_model(
    training: Training, tokenizer: Path, tmp_path: Path
) -> None:
    training.workflow.solve = lambda seed, updates: RIGHT if updates == 0 or seed % 2 else WRONG
    training.service.refusals["optim_step"] = iter([None, None, failed("the machine is gone", "server")])
    with pytest.raises(WorldError, match="the machine is gone"):
        training.run()
    training.run(start=training.folder.rewind())
    figures = [
        line["validation/correct"] for line in training.folder.metrics() if "validation/correct" in line
    ]
    assert figures == [1.0, 0.0, 0.0]
    assert not any(checkpoint.best for checkpoint in training.folder.checkpoints())


@pytest.mark.parametrize("lost", [(1, 2), (1, 2, 3, 4)])
def test_a_training_that_diverged_is_resumed_with_the_figures_of_a_whole_one(
    lost: tuple[int, ...], training: Training, tmp_path: Path
) -> None:
    """After the first update most answers lose their form, for two steps or up to the end."""

    def solve(seed: int, updates: int) -> str:
        if updates in lost:
            return "?" if seed % 4 else RIGHT
        return RIGHT if seed % 2 else WRONG

    training.workflow.solve = solve
    every = (
        "train.rollouts=4",
        "train.checkpoint_every=1",
        "train.validation.every=1",
        "train.stop=5",
    )
    training.run(*every, steps=5)
    assert any("solver diverges since step 2" in text for text in training.warnings())
    assert ("greedy/correct" in training.figures()[-1]) == (len(lost) == 2), "the last weights are sound"
    for done in (2, 3, 4):
        training.resumed(tmp_path / f"broken-{done}", done, *every, steps=5)


def test_weights_whose_figure_nobody_measured_are_never_the_best(training: Training) -> None:
    figure = "train.validation={every: 1, tasks: 2, rollouts: 1, best: judge_acc}"
    training.run(figure, "roles.judge.when=task.id == 'train0'", "episode.correct=all(solver.right)")
    lines = training.folder.metrics()
    assert len([line for line in lines if "validation/correct" in line]) == 4
    assert not any("validation/judge_acc" in line for line in lines)
    assert not any(checkpoint.best for checkpoint in training.folder.checkpoints())
    warnings = [e.text for e in training.events if isinstance(e, Note) and e.kind == "warning"]
    assert len([text for text in warnings if "judge_acc" in text and "cannot be the best" in text]) == 1


def test_a_mean_of_a_role_that_some_skipped_has_its_number_beside_it(training: Training) -> None:
    figure = "train.validation={every: 1, tasks: 2, rollouts: 1, best: judge_acc}"
    training.workflow.solve = lambda seed, updates: RIGHT
    training.run(figure, "roles.judge.when=task.id == 'validation0'", "episode.correct=all(solver.right)")
    first = training.folder.metrics()[0]
    assert (first["validation/judge_acc"], first["validation/n/judge_acc"]) == (1.0, 1)
    assert first["validation/n/correct"] == 2


# rollouts ahead


def test_rollouts_ahead_are_one_update_behind_and_say_so(training: Training) -> None:
    training.run("train.staleness=1")
    assert [line["staleness/mean"] for line in training.folder.metrics()[1:]] == [0, 1, 1]
    for number, behind in ((1, 0), (2, 1), (3, 1)):
        for episode in training.episodes("train", number):
            for step in (step for t in episode.trajectories for step in t.steps):
                assert (step.weight_version, step.metadata["staleness"]) == (number - 1 - behind, behind)


def test_a_run_that_is_taken_up_again_begins_with_no_rollouts_ahead(training: Training) -> None:
    training.service.refusals["optim_step"] = iter([None, None, failed("the machine is gone", "server")])
    ahead = ("train.staleness=1", "train.checkpoint_every=1")
    with pytest.raises(WorldError, match="the machine is gone"):
        training.run(*ahead)
    training.run(*ahead, start=training.folder.rewind())
    assert [line["staleness/mean"] for line in training.folder.metrics()[1:]] == [0, 1, 0]


def test_the_batches_and_seeds_do_not_depend_on_the_rollouts_ahead(
    training: Training, tokenizer: Path, tmp_path: Path
) -> None:
    training.run()
    seeds = training.workflow.seeds()
    training.service.asked.clear()
    ahead = Training(training.workflow, tokenizer, tmp_path / "ahead")
    ahead.run("train.staleness=2")
    assert training.workflow.seeds() == seeds
    for number in (1, 2, 3):
        ours, theirs = (run.episodes("train", number) for run in (training, ahead))
        assert [e.id for e in ours] == [e.id for e in theirs]


def test_a_running_mean_is_saved_resumed_exactly_and_shown(
    training: Training, tokenizer: Path, tmp_path: Path
) -> None:
    own = ("roles.solver.estimator={ema: {decay: 0.9, by: task.id}}", "roles.judge.estimator=ema")
    training.run(*own)
    broken = Training(training.workflow, tokenizer, tmp_path / "broken")
    training.service.refusals["optim_step"] = iter([None, None, failed("the machine is gone", "server")])
    with pytest.raises(WorldError, match="the machine is gone"):
        broken.run(*own)
    start = broken.folder.rewind()
    assert start is not None
    last = broken.folder.metrics()[-1]
    means = {f"estimator/solver/{key}": mean for key, mean in start.estimators["solver"]["0"].items()}
    assert means == {name: value for name, value in last.items() if name.startswith("estimator/solver/")}
    assert last["estimator/judge"] == start.estimators["judge"]["0"][""]
    broken.run(*own, start=start)
    assert broken.figures() == training.figures()
    assert comparable(broken.episodes("train", 3)) == comparable(training.episodes("train", 3))
    ended = [run.folder.checkpoints()[-1].estimators for run in (broken, training)]
    assert ended[0] == ended[1] != start.estimators
