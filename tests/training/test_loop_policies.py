"""Training loop with several policies: each is trained, sampled, saved and resumed by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolegraph.engine.errors import WorldError
from tests.edge import WRONG
from tests.models.tinker_edge import GAP, GRAD_NORM, failed
from tests.training.edge import Training

APART = ("policies={solver: {}, judge: {learning_rate: 0.02}}", "roles.solver.policy=solver")
TWO = (*APART, "roles.judge.policy=judge")


def test_each_policy_learns_from_the_trajectories_of_its_own_roles(training: Training) -> None:
    training.run(*TWO, "roles.judge.weight=3")
    created = training.service.asked_for("create_model")
    solver, judge = (f"{body['session_id']}:train:{body['model_seq_id']}" for body in created)
    sent = training.service.asked_for("forward_backward")
    assert {body["model_id"] for body in sent} == {solver, judge}
    for model, role in ((solver, "solver"), (judge, "judge")):
        written = [
            step.advantage / (8 if role == "solver" else 4)
            for number in (1, 2, 3)
            for episode in training.episodes("train", number)
            for t in episode.trajectories
            for step in t.steps
            if t.name == role and isinstance(step.advantage, float) and abs(step.advantage) > 1e-6
        ]
        given = [d.inputs["advantages"][-1] for b in sent if b["model_id"] == model for d in b["data"]]
        assert given == pytest.approx(written), "a weight alone in its policy changes nothing"
    rates = [step["adam_params"]["learning_rate"] for step in training.service.asked_for("optim_step")]
    assert sorted(set(rates)) == [0.01, 0.02]


def test_figures_of_several_policies_end_with_their_names(training: Training) -> None:
    training.run(*TWO)
    for line in training.folder.metrics()[1:]:
        assert (line["optim/learning_rate/solver"], line["optim/learning_rate/judge"]) == (0.01, 0.02)
        assert line["optim/grad_norm/judge"] == GRAD_NORM
        assert line["optim/loss/judge"] == line["loss/judge/mean"]
        assert line["optim/kl/judge"] == pytest.approx(GAP)
        assert line["optim/share/judge"] == 1.0
        assert not {"optim/grad_norm", "optim/learning_rate"} & line.keys()


def test_a_loss_that_the_service_does_not_give_is_no_figure(training: Training) -> None:
    training.service.gives_loss = False
    training.run(*TWO)
    assert not [name for line in training.folder.metrics() for name in line if "loss/" in name]
    assert training.folder.metrics()[-1]["optim/kl/judge"] == pytest.approx(GAP)


def test_an_answer_has_the_version_of_its_own_policy(training: Training) -> None:
    training.workflow.solve = lambda seed, updates: WRONG  # so that no solver ever learns
    training.run(*TWO, "roles.judge.reward={length: {over: 1}}", "roles.judge.estimator=reinforce")
    episodes = training.episodes("train", 3)
    versions = {(t.name, s.weight_version) for e in episodes for t in e.trajectories for s in t.steps}
    assert versions == {("solver", 0), ("judge", 2)}
    (*_, last) = training.folder.checkpoints()
    assert {name: saved.version for name, saved in last.policies.items()} == {"solver": 0, "judge": 3}


def test_all_policies_go_on_from_their_own_state(training: Training, tokenizer: Path, tmp_path: Path) -> None:
    training.run(*TWO)
    broken = Training(training.workflow, tokenizer, tmp_path / "broken")
    # Two policies are updated in a step: the fifth is of step 3.
    training.service.refusals["optim_step"] = iter([None] * 4 + [failed("the machine is gone", "server")])
    with pytest.raises(WorldError, match="the machine is gone"):
        broken.run(*TWO)
    start = broken.folder.rewind()
    assert start is not None and start.step == 2
    broken.run(*TWO, start=start)
    loaded = [body["path"] for body in training.service.asked_for("load_weights")]
    assert sorted(loaded) == sorted(saved.state for saved in start.policies.values())
    assert len({*loaded}) == 2
    assert broken.figures() == training.figures()


def test_a_frozen_role_with_a_policy_speaks_with_its_latest_weights(training: Training) -> None:
    frozen = ("roles.judge.estimator=null", "roles.judge.policy=solver")
    training.run(*APART, *frozen)
    judges = [e.trajectories[-1] for e in training.episodes("train", 3)]
    assert {step.weight_version for t in judges for step in t.steps} == {2}
    assert {"loss/solver/mean"} <= training.folder.metrics()[-1].keys()
    assert "loss/judge/mean" not in training.folder.metrics()[-1]
