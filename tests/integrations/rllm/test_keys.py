"""Table of the language's keys under rLLM: complete, true for each backend, and read by everyone."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rolegraph as rg
from rolegraph.engine.compile import Plan, compile_file
from rolegraph.engine.errors import UsageError
from rolegraph.engine.spec import Finding
from rolegraph.engine.vocabulary import Dataset
from rolegraph.integrations.rllm import agent_trainer, compile_agent_flow, compile_workflow
from rolegraph.integrations.rllm.checks import FlowRun
from rolegraph.integrations.rllm.estimators import hook_reasons
from rolegraph.integrations.rllm.keys import HEADS, TABLE, Column, Support, findings, flow_findings, markdown
from tests.cli.conftest import Command
from tests.edge import write_spec

ROOT = Path(__file__).parents[3]
DEFAULTS = FlowRun(sampling={"temperature": 1.0, "top_p": 1.0, "max_tokens": 30_720})
HOSTED = "model=tinker:Qwen/Qwen3-8B"
FEW = "data={train: {countdown: {count: 32}}, validation: {countdown: {count: 2, seed: 1}}}"
BASE = ("roles.judge.estimator=grpo", HOSTED, FEW)
NAMED = "model={{provider: tinker, name: Qwen/Qwen3-8B, {}}}"
COLONS = Dataset(("id",), frozenset(), lambda limit: iter([{"id": "a:1"}]))
"""Data set of a package whose ids have colons, which those of files have not."""
STAGE = "train.stages=[{{imitation: {{solver: '<answer>1</answer>'}}, steps: 1{}}}]"
PAST = ("policies={{past: {{of: main{}}}}}", "roles.judge.policy=past", "roles.judge.estimator=null")


def past(keys: str = "") -> tuple[str, ...]:
    return (PAST[0].format(keys), *PAST[1:])


UNCARRIED: Mapping[str, tuple[str, ...] | Mapping[str, tuple[str, ...]]] = {
    "Spec.roles": ("roles.solver.estimator=null", "roles.judge.estimator=null"),
    "Spec.policies": ("policies={judge: {}}", "roles.judge.policy=judge"),
    "Data.train": ("data.train=colons",),
    "Data.validation": ("data.validation=colons",),
    "Data.split": ("data.validation=null", "data.split=0.1"),
    "Data.examples": ("data.examples=1",),
    "RowSplit.share": ("data.validation=null", "data.split={share: 0.2}"),
    "RowSplit.seed": ("data.validation=null", "data.split={share: 0.2, seed: 1}"),
    "Examples.count": ("data.examples={count: 1}",),
    "Examples.sees": ("data.examples={count: 1, sees: solution}",),
    "Examples.by": ("data.examples={count: 1, by: target}",),
    "Examples.seed": ("data.examples={count: 1, seed: 1}",),
    "ModelRef.provider": ("model=openai:gpt-5",),
    "ModelRef.name": ("model=tinker",),
    "ModelRef.base_url": (NAMED.format("base_url: 'http://127.0.0.1:1'"),),
    "ModelRef.checkpoint": (NAMED.format("checkpoint: 'tinker://x'"),),
    "ModelRef.concurrency": (NAMED.format("concurrency: 4"),),
    "ModelRef.price": (NAMED.format("price: {prompt: 1}"),),
    **{f"Price.{key}": (NAMED.format(f"price: {{{key}: 1}}"),) for key in ("prompt", "response", "train")},
    "Sampling.temperature": ("roles.judge.sampling.temperature=ramp(1, 0.5, 9)",),
    "Sampling.top_p": ("roles.judge.sampling.top_p=0.5",),
    "Sampling.max_tokens": ("roles.judge.sampling.max_tokens=7",),
    "Sampling.stop": ("roles.judge.sampling.stop=[END]",),
    "Sampling.seed": ("roles.judge.sampling.seed=3",),
    "Policy.model": ("policies={other: {model: 'tinker:Qwen/Qwen3-4B'}}", "roles.judge.policy=other"),
    "Policy.checkpoint": ("policies={main: {checkpoint: 'tinker://x'}}",),
    "Policy.learning_rate": ("policies={main: {learning_rate: 0.001}}",),
    "Policy.of": past(),
    "Policy.every": past(", every: 2"),
    "Policy.keep": past(", keep: 2"),
    "Policy.pick": past(", pick: latest"),
    "Lora.rank": ("train.lora.rank=8",),
    **{f"Lora.{key}": (f"train.lora.{key}=false",) for key in ("attention", "mlp", "unembed")},
    "Role.reward": ("roles.solver.reward=step",),
    "Role.right": ("roles.solver.right=step > 1",),
    "Role.group": ("roles.solver.group=[task, turn]",),
    "Role.estimator": ("roles.judge.estimator=ema",),
    "Role.signal": (
        "roles.judge.estimator=null",
        "roles.judge.signal={reverse_kl: {teacher: base, center: true}}",
    ),
    "Role.loss": ("roles.judge.loss={dpo: {}}",),
    "Role.model": ("roles.judge.model=tinker:other",),
    "Role.policy": ("policies={judge: {}}", "roles.judge.policy=judge"),
    "Role.weight": ("roles.judge.weight=ramp(1, 2, 9)",),
    "Role.timeout": ("roles.judge.timeout=3",),
    "Grouping.by": ("roles.solver.group={by: self.index}",),
    "Grouping.over": ("roles.solver.group={by: 0, over: batch}",),
    "Grouping.weight": ("roles.solver.group=[{by: task, weight: 0.5}, turn]",),
    "OnFailure.retry": ("roles.judge.on_failure.retry=1",),
    "OnFailure.then": ("roles.judge.on_failure.then=mask",),
    "Train.rollouts": ("train.rollouts=1", "roles.judge.estimator=reinforce"),
    "Train.batch_size": ("train.batch_size=4096",),
    "Train.refill": ("train.refill=2",),
    "Train.steps": ("train.steps=3",),
    "Train.epochs": ("train.epochs=3",),
    "Train.checkpoint_every": ("train.checkpoint_every=3",),
    "Train.stages": (STAGE.format(""),),
    "Train.learning_rate": ("train.learning_rate=0.001",),
    "Train.lora": ("train.lora.rank=8",),
    "Train.schedule": ("train.schedule=cosine",),
    "Train.validation": ("train.validation.every=3",),
    "Train.gradient_clip": {"fireworks": ("train.gradient_clip=0",), "": ("train.gradient_clip=2",)},
    "Train.stop": ("train.stop=3",),
    "Train.keep": ("train.keep={checkpoints: 3}",),
    "Train.sample_from": ("train.sample_from={provider: vllm, base_url: 'http://127.0.0.1:9'}",),
    "Train.staleness": ("train.staleness=1", "roles.judge.on_failure.then=mask"),
    "Stage.imitation": (STAGE.format(""),),
    "Stage.steps": (STAGE.format(""),),
    "Stage.rollouts": (STAGE.format(", rollouts: 2"),),
    "Stage.learning_rate": (STAGE.format(", learning_rate: 0.001"),),
    "Schedule.kind": ("train.schedule=linear",),
    "Schedule.warmup": ("train.schedule={kind: cosine, warmup: 3}",),
    "Schedule.floor": {
        "verl": ("train.schedule={kind: constant, floor: 0.1}",),
        "": ("train.schedule={kind: cosine, floor: 0.1}",),
    },
    "Validation.every": ("train.validation.every=3",),
    "Validation.tasks": ("train.validation.tasks=3",),
    "Validation.rollouts": ("train.validation.rollouts=3",),
    "Validation.workflow": ("train.validation.workflow=solver_only.yaml",),
    "Validation.best": ("train.validation.best=judge_acc",),
    "Keep.checkpoints": ("train.keep={checkpoints: 3}",),
    "Keep.episodes": ("train.keep={episodes: 3}",),
}
"""Value of each key that is not carried everywhere; by column where values differ, "" for the others."""
CARRIED = {
    "Data.train": ("train.batch_size=1",),
    "Sampling.temperature": ("roles.judge.sampling.temperature=1.0",),
    "Role.group": ("roles.solver.group=turn",),
    "Role.estimator": ("roles.judge.estimator=rloo", "roles.solver.estimator=rloo"),
    "Role.loss": ("roles.judge.loss=ppo",),
    "Role.weight": ("roles.judge.weight=0.5",),
    "Grouping.by": ("roles.solver.group=prompt",),
    "Train.staleness": ("train.staleness=1",),
    "Train.gradient_clip": ("train.gradient_clip=2",),
    "Schedule.kind": ("train.schedule=cosine",),
    "Schedule.floor": ("train.schedule={kind: cosine, floor: 0.1}",),
}
"""Values of the keys of which some are carried."""


def models() -> dict[str, Any]:
    return {it.__name__: it for it in runpy.run_path(str(ROOT / "docs" / "reference.py"))["LINKED"]}


def test_every_key_of_the_language_has_a_row() -> None:
    assert {*TABLE} == {f"{name}.{key}" for name, model in models().items() for key in model.model_fields}


def test_every_key_that_is_not_carried_everywhere_has_a_case_below() -> None:
    partly = {key for key, row in TABLE.items() if any(getattr(row, it) is not Support.YES for it in HEADS)}
    assert partly == {*UNCARRIED}
    assert {*CARRIED} <= partly


@cache
def compiled(words: tuple[str, ...], folder: Path) -> Plan:
    splits = [split for split in ("train", "validation") if words == (f"data.{split}=colons",)]
    plan = compile_file(folder / "spec.yaml", [*BASE, *(() if splits else words)])
    return replace(plan, data={**plan.data, **dict.fromkeys(splits, COLONS)})


@cache
def of(column: Column, words: tuple[str, ...], folder: Path, run: FlowRun = DEFAULTS) -> frozenset[Finding]:
    plan = compiled(words, folder)
    return frozenset(flow_findings(plan, run) if column == "flow" else findings(plan, column))


def found(column: Column, *words: str, folder: Path, algorithm: Mapping[str, object] = {}) -> set[Finding]:
    """Return what a column says of solver_judge with these words, besides what it says without them."""
    if algorithm:
        run = FlowRun(algorithm, DEFAULTS.sampling)
        return {*flow_findings(compiled(words, folder), run)} if column == "flow" else set()
    return {*of(column, words, folder)} - of(column, (), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a spec."""
    made = tmp_path_factory.mktemp("spec")
    write_spec(made, "extends: solver_judge.yaml\n")
    return made


@pytest.mark.parametrize("column", [*HEADS])
@pytest.mark.parametrize("key", [*UNCARRIED])
def test_the_table_says_what_a_backend_does_with_a_key(key: str, column: Column, folder: Path) -> None:
    support, example = getattr(TABLE[key], column), UNCARRIED[key]
    words = example if isinstance(example, tuple) else example.get(column, example[""])
    said = found(column, *words, folder=folder)
    faults = [it for it in said if it.severity == "error"]
    match support:
        case Support.REFUSED:
            assert faults
        case Support.SOME:
            assert said
        case Support.NO_EFFECT:
            assert said and not faults
        case Support.HOOK:
            assert not faults
            assert hook_reasons(compiled(words, folder), "tinker")
        case Support.YES:
            assert not said
        case Support.ELSEWHERE:
            assert not [it for it in faults if it.path[0] in ("data", "model", "train")]


@pytest.mark.parametrize("column", [*HEADS])
@pytest.mark.parametrize("key", [*CARRIED])
def test_values_that_are_carried_have_nothing_against_them(key: str, column: Column, folder: Path) -> None:
    support = getattr(TABLE[key], column)
    if support in (Support.REFUSED, Support.NO_EFFECT) or (column == "flow" and key == "Grouping.by"):
        pytest.skip("not carried here")
    algorithm = {"adv_estimator": "rloo"} if key == "Role.estimator" else {}
    said = found(column, *CARRIED[key], folder=folder, algorithm=algorithm)
    assert [it for it in said if it.severity == "error" and "max_tokens" not in it.path] == []


def test_the_docs_have_the_table() -> None:
    assert markdown() in (ROOT / "docs" / "rllm.md").read_text("utf-8"), (
        "paste what rolegraph.integrations.rllm.keys.markdown() returns"
    )


SPECS = [
    ("policies: {other: {}}\nroles: {judge: {policy: other}}", "cannot train other beside it"),
    ("roles: {judge: {group: episode}}", "cannot group judge by episode"),
    ("roles: {solver: {group: [task, turn]}}", "solver adds the advantages of several"),
    ("roles: {solver: {group: {by: self.index}}}", "cannot group solver by self.index"),
    ("roles: {solver: {group: {by: 0, over: batch}}}", "cannot compare solver over the batch"),
    # Their neighbours.
    (
        "policies: {past: {of: main}}\nroles: {judge: {policy: past, estimator: null}}",
        "past are past selves",
    ),
    ("roles: {judge: {weight: 1 + step}}", "no number can follow it"),
    ("roles: {judge: {estimator: ema}}", "no state of an estimator between steps, as ema needs"),
    ("roles: {judge: {loss: {dpo: {}}}}", "rLLM cannot compute dpo"),
    ("train: {refill: 2}", "draws one batch for a step"),
    ("train: {stages: [{imitation: best, steps: 2}]}", "no stages of imitation"),
]


@pytest.mark.skipif(find_spec("rllm") is None, reason="needs rLLM: uv pip install --group rllm .")
@pytest.mark.rllm
@pytest.mark.parametrize(("text", "message"), SPECS)
def test_a_spec_is_refused_with_one_message_wherever_rllm_would_train_it(
    text: str, message: str, rolegraph: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = str(write_spec(tmp_path, f"extends: solver_judge.yaml\n{text}\n"))
    assert any(message in it.message for it in rg.check(spec, backend="tinker").diagnostics)
    for words in (
        ("validate", spec, "--backend", "verl", HOSTED),
        ("train", spec, "--trainer", "rllm", "--out", str(tmp_path / "run")),
        ("eject", spec),
    ):
        done = rolegraph(*words)
        assert done.returncode == 2
        assert message in done.stderr, words

    from rllm.cli.main import cli
    from rllm.data.utils import task_from_row
    from rllm.types import AgentConfig

    monkeypatch.setenv("ROLEGRAPH_SPEC", spec)
    told = CliRunner().invoke(
        cli, ["train", "countdown", "--agent", "rolegraph", "--evaluator", "rolegraph", "--model", "m"]
    )
    assert told.exit_code == 1
    assert "".join(message.split()) in "".join(told.output.split())

    with pytest.raises(UsageError) as refused:
        compile_workflow(spec)
    assert message in str(refused.value)
    if "stages" in text:
        with pytest.raises(UsageError, match=message):
            compile_agent_flow(spec)
        return
    flow, evaluator = compile_agent_flow(spec)
    with pytest.raises(UsageError) as refused:
        agent_trainer(backend="tinker", config=None, agent_flow=flow, evaluator=evaluator)
    assert message in str(refused.value)
    task = task_from_row({"id": "t0", "question": "", "nums": [3, 4], "target": 7}, "t0")
    with pytest.raises(UsageError) as refused:
        flow.run(task, AgentConfig("http://127.0.0.1:9/v1", "policy", "t0:0"))
    assert message in str(refused.value)
