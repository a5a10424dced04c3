"""Custom backend under rLLM's trainer, and the grouping hook's figures there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("rllm", reason="needs rLLM: uv pip install --group rllm .")

from rllm.data.utils import interleave_tasks
from rllm.trainer.backend_protocol import BackendProtocol

from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Services
from rolegraph.engine.records import Source
from rolegraph.integrations.rllm.launch import prepare
from rolegraph.integrations.rllm.trainer import backend_class, trainer
from tests.edge import write_spec
from tests.integrations.rllm.edge import RecordedEngine, is_judge, tasks
from tests.integrations.rllm.test_grouping import UnevenAnswers

pytestmark = pytest.mark.rllm
HERE = f"{__name__}:Own"


class Own(BackendProtocol[Any, Any]):
    """Backend that trains nothing and keeps its arguments."""

    seen: ClassVar[list[tuple[list[str], dict[str, float]]]] = []
    options: ClassVar[list[tuple[bool, int]]] = []

    def init_rollout_engine(self, **kwargs: Any) -> RecordedEngine:
        self.engine = RecordedEngine(UnevenAnswers())
        return self.engine

    def validate_config(self) -> None:
        assert self.config.model.name == "somebody/s"

    def shutdown(self) -> None:
        self.options.extend((is_judge(p), o["max_tokens"]) for p, o in self.engine.calls)

    async def generate_episodes(
        self, batch: Any, agent_workflow_engine: Any, is_validation: bool = False, **kwargs: Any
    ) -> Any:
        tasks, ids = interleave_tasks(batch, self.config.rllm.rollout.n)
        return await agent_workflow_engine.execute_tasks(tasks, ids, is_validation=is_validation, **kwargs)

    def transform_to_backend_batch(self, trainer_state: Any, **kwargs: Any) -> Any:
        return [group.group_role for group in trainer_state.trajectory_groups]

    async def process_backend_batch(self, trainer_state: Any, **kwargs: Any) -> None:
        """Compute no figures for steps that have advantages, as rLLM's tinker backend does."""

    async def compute_advantages(self, trainer_state: Any, algorithm_config: Any, **kwargs: Any) -> None:
        """Do nothing."""

    async def update_policy(self, trainer_state: Any, **kwargs: Any) -> None:
        """Do nothing."""

    async def on_batch_end(self, trainer_state: Any) -> None:
        self.seen.append((trainer_state.backend_batch, dict(trainer_state.metrics)))


def test_a_backend_of_one_s_own_trains_and_the_hook_s_figures_reach_its_trackers(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, tasks(8))))
    spec = write_spec(tmp_path, "extends: solver_judge.yaml\ndata: {train: rows.jsonl, validation: null}\n")
    words = [
        "model=tinker:somebody/s",
        "train.steps=2",
        "train.batch_size=4",
        "train.rollouts=4",
        "roles.judge.on_failure.then=mask",
        "roles.judge.sampling.max_tokens=16",
    ]
    run = prepare(Source.of(str(spec), *words), HERE)
    Own.seen, Own.options = [], []
    with Services() as services:
        trainer(run.run, run.hydra_overrides(), services).train()
    assert len(Own.seen) == 2
    for roles, figures in Own.seen:
        assert sorted(roles) == ["judge"] * 4 + ["solver"] * 4
        assert {f"{kind}/{role}/mean" for kind in ("reward", "advantage") for role in set(roles)} <= set(
            figures
        )
        assert figures["reward/solver/mean"] == pytest.approx(2 / 3, abs=0.1)
        assert figures["advantage/solver/std"] > 0.5
    limits = {judged: {tokens for it, tokens in Own.options if it is judged} for judged in (True, False)}
    assert limits == {True: {16}, False: {run.run.plan.roles[0].samplings[0].max_tokens}}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.integrations.rllm.nowhere:Own", "No module named"),
        (f"{__name__}:Missing", "has no attribute"),
        (f"{__name__}:tasks", "expected a subclass of rLLM's BackendProtocol"),
    ],
)
def test_a_backend_that_is_not_there_is_said_to_be_so(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        backend_class(name)


def test_rllm_s_own_are_found_by_their_names() -> None:
    assert backend_class("tinker").name == "tinker"
    assert asyncio.iscoroutinefunction(backend_class("tinker").update_policy)
