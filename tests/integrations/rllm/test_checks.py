"""Checks of specs and overrides for each of rLLM's backends: place, message and fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import rolegraph as rg
from rolegraph.engine.compile.compiler import CompileResult
from rolegraph.engine.spec.diagnostics import Diagnostic
from rolegraph.engine.vocabulary import Dataset
from rolegraph.integrations.rllm.backends import TRAITS
from rolegraph.integrations.rllm.compose import compose
from rolegraph.integrations.rllm.keys import findings
from rolegraph.integrations.rllm.names import Backend
from rolegraph.integrations.rllm.override_checks import override_findings
from tests.cli.conftest import Command
from tests.edge import solver_judge, write_spec

HOSTED = "model=tinker:Qwen/Qwen3-8B"
FOLDER = "model=local:somewhere/model"
SERVED = (
    "roles.judge.model={provider: local, base_url: 'http://127.0.0.1:9'}",
    "roles.judge.estimator=null",
)
APART = "roles.solver.group=turn"
RENDERER = "++rollout_engine.renderer_name=llama3"


def check(backend: Backend, *words: str, spec: str = "solver_judge") -> CompileResult:
    return rg.check(spec, *words, backend=backend)


ALWAYS = ("tokenizer and the training shape", "does not clip gradients", "prompts of more than 2,048")
"""Warnings for every spec: on fireworks, on tinker, and on verl with a model that is not local."""


def apart(compiled: CompileResult) -> list[Diagnostic]:
    """Return the diagnostics without those warnings."""
    return [d for d in compiled.diagnostics if not any(text in d.message for text in ALWAYS)]


def only(compiled: CompileResult) -> Diagnostic:
    """Return the only diagnostic besides those warnings."""
    (found,) = apart(compiled)
    return found


@pytest.mark.parametrize("backend", ["tinker", "verl"])
@pytest.mark.parametrize("spec", ["solver_judge", "solver_judge_validator"])
def test_a_shipped_spec_has_nothing_against_it(backend: Backend, spec: str) -> None:
    assert apart(check(backend, spec=spec)) == []


@pytest.mark.parametrize("backend", ["tinker", "verl"])
def test_a_loop_in_a_loop_runs_and_a_group_by_its_outer_round_is_refused(backend: Backend) -> None:
    spec = ("roles.verifier.group=turn", "loops.outer.roles=refine", "loops.outer.times=2")
    assert apart(check(backend, *spec, spec="solver_verifier_loop")) == []
    by = ("roles.verifier.group={by: self.outer}", *spec[1:])
    assert (
        "cannot group verifier by self.outer"
        in only(check(backend, *by, spec="solver_verifier_loop")).message
    )


@pytest.mark.parametrize("backend", ["tinker", "verl"])
def test_conversations_that_are_shared_or_fork_and_a_call_of_a_role_s_tools_run(backend: Backend) -> None:
    chat = ("roles.solver.count=1", "roles.solver.memory={chat: one}", "roles.judge.memory={chat: one}")
    assert apart(check(backend, *chat)) == []
    fork = ("roles.solver.count=1", "roles.judge.memory={fork: solver}")
    assert apart(check(backend, *fork)) == []
    run = (
        'roles.state={needs: solver, run: {function: calculator, of: solver, with: \'{"expression": "1"}\'}}'
    )
    assert apart(check(backend, "roles.solver.tools=[calculator]", "roles.solver.max_calls=2", run)) == []


ERRORS: list[tuple[Backend, tuple[str, ...], str, str]] = [
    # The model
    ("tinker", ("model=openai:gpt-5",), "a model of openai cannot be trained", "model"),
    ("verl", ("model=replay:x.jsonl",), "a model of replay cannot be trained", "model"),
    ("tinker", ("model=tinker",), "needs the model's name", "model"),
    ("tinker", (FOLDER,), "which chat template", "model"),
    ("tinker", (FOLDER, RENDERER), "there is no model folder", "model"),
    ("tinker", ("model=local:some/vl-model", RENDERER), "for a vision model", "model"),
    ("fireworks", ("model=local",), "not a folder", "model"),
    (
        "verl",
        ("model={provider: tinker, name: m, base_url: 'http://127.0.0.1:1'}",),
        "calls no endpoint",
        "model",
    ),
    (
        "tinker",
        ("model={provider: tinker, name: m, checkpoint: 'tinker://x'}",),
        "begins at the model itself",
        "model",
    ),
    # Roles
    ("tinker", (HOSTED, "roles.judge.model=tinker:other"), "a model of its own", "roles.judge.model"),
    (
        "tinker",
        (HOSTED, "roles.judge.policy=judge", "policies={judge: {}}"),
        "rLLM has one engine",
        "policies",
    ),
    (
        "verl",
        (HOSTED, "policies={main: {checkpoint: 'tinker://x'}}"),
        "begins at the model itself",
        "policies",
    ),
    (
        "verl",
        (HOSTED, "roles.judge.model=local", "roles.judge.estimator=null"),
        "wherever Ray runs",
        "roles.judge.model",
    ),
    ("tinker", ("roles.judge.estimator=best",), "no weights", "roles.judge.loss"),
    ("verl", (HOSTED, "roles.judge.loss=importance_sampling"), "falls back to ppo", "roles.judge.loss"),
    ("verl", (HOSTED, "roles.judge.loss=cispo"), "verl has no cispo for a role", "roles.judge.loss"),
    (
        "tinker",
        ("roles.judge.loss=gspo",),
        "tinker has no gspo for a role",
        "roles.judge.loss",
    ),
    (
        "tinker",
        ("roles.judge.loss={cispo: {clip_high_threshold: 3}}",),
        "no settings of a role's loss to tinker",
        "roles.judge.loss",
    ),
    ("fireworks", (HOSTED, "roles.judge.loss=ppo"), "one loss for all roles", "roles.judge.loss"),
    ("tinker", ("roles.judge.loss=cross_entropy",), "no weights", "roles.judge.loss"),
    # Groups
    ("tinker", ("roles.solver.group={by: self.index}",), "cannot group solver by self.index", "roles.solver"),
    ("verl", (HOSTED, "roles.solver.group=episode"), "cannot group solver by episode", "roles.solver.group"),
    ("tinker", ("roles.solver.group=[task, turn]",), "adds the advantages of several", "roles.solver.group"),
    ("verl", (HOSTED, "roles.judge.estimator=ema"), "no state of an estimator", "roles.judge.estimator"),
    # The asynchronous loop
    (
        "tinker",
        ("train.staleness=1", "roles.judge.estimator=null", "roles.judge.model=local:other"),
        "judge is not trained",
        "train.staleness",
    ),
    (
        "tinker",
        ("train.staleness=1", "roles.judge.on_failure.then=mask"),
        "masks its failures",
        "train.staleness",
    ),
    (
        "tinker",
        ("train.staleness=1", "roles.judge.estimator=prpo"),
        "passes it one task",
        "roles.judge.estimator",
    ),
    ("tinker", ("train.staleness=1", "train.rollouts=1"), "drops groups of one", "train.rollouts"),
    ("tinker", ("train.staleness=1", "roles.solver.group=prompt"), "that share a prompt", "train.staleness"),
    (
        "tinker",
        ("train.staleness=1", "loops={l: {roles: [solver], times: 2, until: 'solver[0].ran'}}", APART),
        "may be skipped",
        "train.staleness",
    ),
    # Sampling
    ("tinker", ("sampling.stop=[END]",), "takes no `stop`", "sampling.stop"),
    (
        "tinker",
        ("roles.judge.sampling.temperature=0.5",),
        "learns from samples of the policy itself",
        "roles.judge.sampling.temperature",
    ),
    ("verl", (HOSTED, "roles.judge.sampling.temperature=0.5"), "at one temperature", "roles.judge.sampling"),
    # The schedule and the data
    ("verl", (HOSTED, "train.schedule=linear"), "no linear schedule", "train.schedule"),
    ("tinker", (HOSTED, "train.refill=2"), "draws one batch for a step", "train.refill"),
    ("verl", (HOSTED, "train.stages=[{imitation: best, steps: 2}]"), "no stages", "train.stages"),
    (
        "verl",
        (
            HOSTED,
            "policies={past: {of: main}}",
            "roles.judge.policy=past",
            "roles.judge.estimator=null",
        ),
        "past are past selves",
        "policies",
    ),
    ("tinker", ("train.batch_size=4096",), "train nothing", "train.batch_size"),
    ("tinker", ("data.train=null",), "no training data", "data.train"),
    ("tinker", ("roles.solver.group={by: turn, over: batch}",), "over the batch", "roles.solver.group"),
    ("verl", (HOSTED, "roles.solver.group={by: 0, over: batch}"), "over the batch", "roles.solver.group"),
    (
        "tinker",
        ("roles.judge.weight=ramp(1, 2, 9)",),
        "no number can follow it",
        "roles.judge.weight",
    ),
    ("tinker", ("roles.solver.reward=step",), "tells a workflow no step", "roles.solver.reward"),
    # Overrides for rLLM
    ("tinker", ("++data.train_batch_size=4",), "overwrites", "++data.train_batch_size"),
    ("tinker", ("rllm/backend=verl",), "chosen by its flag", "rllm/backend"),
    ("tinker", ("rllm.algorithm.adv_estimator=rloo",), "is in the spec", "rllm.algorithm.adv_estimator"),
    ("tinker", ("rllm.algorithm.loss_fn=pppo",), "did you mean 'ppo'", "rllm.algorithm.loss_fn"),
    (
        "tinker",
        ("rllm.algorithm.loss_fn=cross_entropy",),
        "has no loss cross_entropy",
        "rllm.algorithm.loss_fn",
    ),
    ("verl", (HOSTED, "rllm.algorithm.loss_fn=ppo"), "stops at the first update", "rllm.algorithm.loss_fn"),
    ("fireworks", (HOSTED, "rllm.algorithm.loss_fn=ppo"), "stops when it starts", "rllm.algorithm.loss_fn"),
    ("tinker", ("rllm.rollout.n=1",), "drops groups of one member, and judge's", "rllm.rollout.n"),
    ("tinker", ("++training.group_size=1",), "drops groups of one", "training.group_size"),
    ("tinker", ("train.rollouts=1",), "drops groups of one member, and judge's", "roles.judge"),
    (
        "tinker",
        ("rllm.rejection_sample.multiplier=0",),
        "no task at all for 0",
        "rllm.rejection_sample.multiplier",
    ),
    (
        "tinker",
        ("rllm.rejection_sample.multiplier=2",),
        "without rejection sampling",
        "rllm.rejection_sample.multiplier",
    ),
    (
        "verl",
        (HOSTED, "rllm.compact_filtering.enable=true", "rllm.compact_filtering.mask_env_done=true"),
        "drops every episode",
        "rllm.compact_filtering.mask_env_done",
    ),
    ("verl", (HOSTED, "++trainer.n_gpus_per_node=0"), "without a GPU", "trainer.n_gpus_per_node"),
    ("tinker", ("rllm.trainer.save_freq=0",), "keeps no checkpoint", "rllm.trainer.save_freq"),
]


@pytest.mark.parametrize(("backend", "words", "message", "at"), ERRORS)
def test_a_mistake_is_refused(backend: Backend, words: tuple[str, ...], message: str, at: str) -> None:
    compiled = check(backend, *words)
    found = [str(d) for d in compiled.diagnostics if d.severity == "error"]
    assert any(message in text for text in found), found
    assert compiled.plan is None


WARNINGS: list[tuple[Backend, tuple[str, ...], str]] = [
    ("verl", (HOSTED, "train.lora.unembed=false"), "does not choose layers"),
    ("fireworks", (HOSTED, "train.lora.mlp=false"), "does not choose layers"),
    ("tinker", ("train.schedule={kind: linear, floor: 0.1}",), "no floor"),
    ("tinker", ("train.validation.best=judge_acc",), "no best one"),
    ("tinker", ("roles.judge.estimator=null",), "with the policy's newest weights"),
    ("tinker", ("sampling.seed=3",), "without a seed"),
    ("fireworks", (HOSTED, "roles.judge.sampling.max_tokens=16"), "one limit for all roles"),
    ("tinker", ("rllm.algorithm.kl_beta=0.1",), "never adds it to the loss"),
    ("tinker", ("rllm.algorithm.rollout_correction.tis_mode=token",), "nothing of tinker's reads it"),
    ("verl", (HOSTED, "rllm.stepwise_advantage.mode=per_step"), "into broadcast"),
    ("tinker", ("rllm.workflow.workflow_args.timeout=5",), "from Python"),
    ("tinker", ("rllm.trainer.save_freq=5",), "train.checkpoint_every"),
    ("verl", (HOSTED, "++actor_rollout_ref.actor.optim.clip_grad=9"), "train.gradient_clip"),
    ("tinker", ("rllm.algorithm.loss_fn=cispo",), "overrides the loss that each role has"),
    ("tinker", ("rllm.compact_filtering.mask_env_done=true",), "compact_filtering.enable is false"),
    ("verl", (HOSTED, "rllm.trainer.save_freq=-1"), "keeps no checkpoint"),
]


@pytest.mark.parametrize(("backend", "words", "message"), WARNINGS)
def test_an_option_without_effect_is_said_and_let_through(
    backend: Backend, words: tuple[str, ...], message: str
) -> None:
    compiled = check(backend, *words)
    found = only(compiled)
    assert message in found.message
    assert found.severity == "warning"
    assert compiled.plan is not None


@pytest.mark.parametrize("backend", ["tinker", "verl"])
@pytest.mark.parametrize("unit", ["credit=margin", "group=turn", "group=prompt"])
def test_loops_and_their_turns_train_there(backend: Backend, unit: str) -> None:
    words = (HOSTED, "loops={l: {roles: [solver, judge], times: 2}}", f"roles.solver.{unit}")
    assert apart(check(backend, *words)) == []


def test_what_works_elsewhere_is_no_fault_there() -> None:
    assert apart(check("verl", HOSTED, "train.gradient_clip=0.5")) == []
    assert apart(check("verl", HOSTED, "rllm.algorithm.kl_beta=0.1")) == []
    assert apart(check("tinker", "roles.judge.estimator=opo")) == []
    assert apart(check("verl", HOSTED, "roles.judge.estimator=opo")) == []
    assert apart(check("verl", HOSTED, "roles.judge.estimator={grpo: {std: false}}")) == []
    assert apart(check("tinker", "roles.judge.estimator=null", "roles.judge.model=local:other")) == []
    assert apart(check("verl", HOSTED, *SERVED)) == []


@pytest.mark.parametrize(("backend", "message"), [("verl", "verl has"), ("fireworks", "fireworks has")])
def test_advantages_by_token_need_tinker(backend: Backend, message: str) -> None:
    compiled = check(backend, HOSTED, spec="solver_judge_distill")
    assert f"{message} one advantage for a trajectory" in only(compiled).message
    assert apart(check("tinker", spec="solver_judge_distill")) == []


def test_a_demonstration_cannot_be_imitated_under_rllm() -> None:
    words = (
        "roles.judge.estimator=null",
        "roles.judge.signal={imitation: {demonstration: x}}",
    )
    assert (
        "imitates turns"
        in only(
            check("tinker", *words, "roles.judge.reward=null", "episode={correct: all(solver.right)}")
        ).message
    )


@pytest.mark.parametrize("backend", ["tinker", "verl"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roles.solver.signal={reverse_kl: {teacher: base}}"], "rLLM adds no signal to the advantages"),
        (
            [
                "roles.solver.estimator=null",
                "roles.solver.signal={reverse_kl: {teacher: base, center: true}}",
            ],
            "the mean of solver's signal is over a whole step",
        ),
        (
            [
                "roles.solver.estimator=null",
                "roles.solver.signal={reverse_kl: {teacher: {base: main, prompt: x}}}",
            ],
            "rLLM asks solver's teacher after the role's own prompt",
        ),
        (
            [
                "roles.solver.estimator=null",
                "roles.solver.signal={reverse_kl: {teacher: base, gate: reward}}",
            ],
            "rLLM asks solver's teacher after the role's own prompt",
        ),
        (
            ["roles.solver.reward={sum: {right: countdown}, normalize: term}"],
            "rLLM compares the rewards of solver, and not their terms",
        ),
        (["roles.solver.reward={likelihood: {of: x, exp: true}}"], "the reward of solver reads a likelihood"),
    ],
)
def test_a_signal_that_rllm_cannot_add_or_center_is_named(
    backend: Backend, words: list[str], message: str
) -> None:
    found = [*apart(check(backend, *(HOSTED,) * (backend == "verl"), *words))]
    assert [diagnostic for diagnostic in found if message in diagnostic.message]


def test_the_start_may_teach_a_role_of_a_tinker_backend_alone() -> None:
    words = ("roles.solver.estimator=null", "roles.solver.signal={reverse_kl: {teacher: base}}")
    assert apart(check("tinker", *words)) == []


def test_a_fault_stands_where_it_is_written(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, "extends: solver_judge.yaml\nroles:\n  judge:\n    estimator: ema\n")
    found = only(check("verl", HOSTED, spec=str(spec)))
    assert (found.place.line, found.place.column) == (4, 16)
    assert "train without --trainer rllm" in found.hint


def test_a_role_may_not_be_called_what_rllm_takes_for_no_name(tmp_path: Path) -> None:
    role = "  default_traj_name:\n    prompt: Hi\n    model: local:other\n"
    spec = write_spec(tmp_path, f"extends: solver_judge.yaml\nroles:\n{role}")
    assert "renames trajectories" in str(only(check("tinker", spec=str(spec))))


def test_a_packages_dataset_with_colons_in_its_ids_is_refused() -> None:
    plan = solver_judge("train.batch_size=1")
    rows = [{"id": "cd:1", "question": ""}, {"id": "cd:2", "question": ""}]
    data = Dataset(("id", "question"), frozenset(), lambda limit: iter(rows))
    found = findings(replace(plan, data={"train": data}), "tinker")
    assert any("'cd:1' has a colon" in finding.message for finding in found)


def test_validate_shows_a_backends_faults_and_ends_with_2(rolegraph: Command) -> None:
    done = rolegraph("validate", "solver_judge", "--backend", "verl", HOSTED, "roles.judge.estimator=ema")
    assert done.returncode == 2
    assert "no state of an estimator between steps, as ema needs" in done.stderr
    assert "solver_judge: 1 fault" in done.stdout


def test_validate_shows_warnings_and_ends_with_0(rolegraph: Command) -> None:
    words = ("--backend", "tinker", "train.gradient_clip=0.5", "rllm.algorithm.kl_beta=0.1")
    done = rolegraph("validate", "solver_judge", *words)
    assert done.returncode == 0
    assert done.stderr.count("warning:") == 2
    assert "tinker does not clip gradients, at 0.5" in done.stderr
    assert "command line:1:1" in done.stderr


def test_that_tinker_clips_no_gradient_is_always_said_unless_none_is_to_be_clipped() -> None:
    (found,) = check("tinker").diagnostics
    assert "tinker does not clip gradients, at 1 or at all" in found.message
    assert check("tinker", "train.gradient_clip=0").diagnostics == ()


def test_a_word_that_keeps_groups_of_one_makes_single_rollouts_fit() -> None:
    kept = "rllm.rejection_sample.min_trajs_per_group=1"
    for rollouts in ("train.rollouts=1", "rllm.rollout.n=1"):
        words = ("roles.solver.estimator=reinforce", rollouts, kept)
        assert check("tinker", *words).plan is not None


def test_a_model_folder_without_a_model_is_said_and_for_ray_s_machines_only_warned_of(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "it has no config.json" in only(check("tinker", f"model=local:{empty}", RENDERER)).message
    found = only(check("verl", f"model=local:{tmp_path / 'gone'}"))
    assert "there is no model folder" in found.message
    assert found.severity == "warning"


def test_what_verl_cuts_prompts_at_is_said_where_the_model_is_elsewhere() -> None:
    (found,) = check("verl", HOSTED).diagnostics
    assert "prompts of more than 2,048 tokens" in found.message
    assert check("verl", HOSTED, "rllm.data.max_prompt_length=4096").diagnostics == ()
    assert check("verl").diagnostics == ()


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        ("++rllm.trianer.save_freq=5", ["rLLM has no key rllm.trianer.save_freq"]),
        (
            "++rllm.trainer.save_freq=5",
            ["rllm.trainer.save_freq overrides the spec's train.checkpoint_every"],
        ),
        ("++rllm.rollout.train.top_k=3", []),
        ("++training.optimizer=x", []),
    ],
)
def test_an_added_key_that_rllm_does_not_have_is_warned_of(override: str, messages: list[str]) -> None:
    known = {"rllm.trainer.save_freq", "rllm.trainer.test_freq"}
    found = override_findings([override], TRAITS["tinker"], None, known)
    assert [finding.message for finding in found] == messages
    unchecked = override_findings(["++rllm.trianer.save_freq=5"], TRAITS["tinker"], None)
    assert not list(unchecked)


def test_an_unknown_key_is_refused_by_hydra_and_an_added_one_is_warned_of() -> None:
    pytest.importorskip("rllm", reason="needs rLLM")
    with pytest.raises(rg.UsageError, match="save_frq"):
        compose(["rllm/backend=tinker", "rllm.trainer.save_frq=3"], "tinker")
    found = only(check("tinker", "++rllm.trainer.save_frq=3"))
    assert "did you mean 'rllm.trainer.save_freq'" in found.hint


def test_without_a_backend_nothing_of_rllm_is_checked(rolegraph: Command) -> None:
    assert rolegraph("validate", "solver_judge", "train.gradient_clip=0.5").stderr == ""


def test_what_is_refused_is_not_launched(rolegraph: Command) -> None:
    done = rolegraph(
        "train", "solver_judge", "--trainer", "rllm", "--backend", "tinker", "sampling.stop=[END]"
    )
    assert done.returncode == 2
    assert "takes no `stop`" in done.stderr


@pytest.mark.parametrize(("version", "code"), [("0.8.0", 0), ("0.8.1", 0), ("0.9.1", 0), ("0.10.0", 2)])
def test_a_version_of_verl_that_rllm_does_not_work_with_is_named(
    version: str, code: int, rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / f"verl-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("solver_judge", "--backend", "verl", "--model", "tinker:Qwen/Qwen3-4B")
    done = rolegraph("validate", *words)
    assert done.returncode == code, done.stderr
    started = rolegraph("train", *words[:1], "--trainer", "rllm", *words[1:], "--print-config")
    assert started.returncode == code
    for run in (done, started):
        assert (f"verl {version} is installed" in run.stderr) == bool(code)
