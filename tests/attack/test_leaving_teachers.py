"""Tests that no hidden field leaves by a teacher's prompt, a gate or the text of a likelihood."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rolegraph as rg
from rolegraph.api.workflow import Workflow
from rolegraph.engine.models import Completion, LimitedModel, Request
from rolegraph.engine.records import MAIN, Episode, RunFolder
from rolegraph.engine.training.advantages.ledger import Ledger, Membership, add_advantages, add_signals
from tests.attack.leaks import (
    CANARY,
    CORE,
    QUESTION,
    EchoModel,
    episodes_of,
    leaks,
    outputs,
    rows_of,
    written_runs,
)
from tests.edge import write_spec
from tests.run.test_likelihood import Chat
from tests.training.test_signals import CHAT

pytest.importorskip("gepa", reason="needs the extra `optimize`")

SPEC = """
rolegraph: 2
name: leaking
data: {train: tasks.jsonl, hidden: [note]}
roles:
  solver:
    count: 2
    prompt: "{{ task.question }}"
    reward: {sum: {form: {matches: Make}, likely: {likelihood: {of: "{{ task.gold }}{{ GIVEN }}"}}}}
    estimator: grpo
    signal:
      reverse_kl:
        teacher:
          policy: main
          system: "{{ task.note }}"
          prompt: "{{ self.prompt }} {{ task.note }} {{ reader.action }} PROMPT"
          sees: [note]
        gate: "GATE"
  reader: {needs: [solver], prompt: "{{ solver[0].action }}"}
"""


class ScoringEcho(EchoModel):
    """Model that repeats what it is asked, and keeps the texts that it scores and the prompts of roles."""

    def __init__(self) -> None:
        self.chat, self.scored, self.asked = Chat(), list[str](), list[str]()

    async def complete(self, request: Request) -> Completion:
        self.asked.append(json.dumps(request.messages))
        return await super().complete(request)

    async def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        ids = [*prompt_ids, *response_ids]
        self.scored.append("".join(map(chr, ids)))
        return [-0.5] * len(response_ids)


def signalled(flow: Workflow, model: ScoringEcho, episodes: Sequence[Episode]) -> Ledger:
    """Return episodes as a training records them, with the advantages of their signals."""
    teachers: dict[Any, LimitedModel] = {name: LimitedModel(model, 8) for name in flow.plan.teaching_policies}
    ledger = Membership(flow.plan.trained, flow.plan.policy_of).add(episodes).ledger()
    return add_advantages(asyncio.run(add_signals(ledger, flow.plan, teachers, {MAIN: CHAT})))


@pytest.mark.parametrize(
    ("prompt", "gate", "given"),
    [
        ("x", "1 if task.gold else 0.5", "x"),
        ("{{ task.note[0] + 1 }}", "task.note", "x"),  # nothing of these can be computed
        ("x", "task.gold + 1", "{{ task.gold[0] + 1 }}"),
    ],
)
def test_what_a_teacher_and_a_likelihood_read_leaves_by_nothing(
    prompt: str, gate: str, given: str, tmp_path: Path
) -> None:
    fields = {"question": QUESTION, "gold": CANARY, "note": CANARY}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(fields) + "\n")
    text = SPEC.replace("PROMPT", prompt).replace("GATE", gate).replace("{{ GIVEN }}", given)
    flow = rg.load(write_spec(tmp_path, text))
    assert flow.plan.hidden == {"gold", "note"}
    model = ScoringEcho()
    runs = written_runs(tmp_path, flow, model, rows_of(flow))
    batch = signalled(flow, model, episodes_of(flow, model, rows_of(flow)))
    filled = [*batch.filled_episodes()]
    RunFolder(runs[2]).write_episodes("train", 1, filled)
    if prompt == "x" and given == "x":
        assert any(CORE in text for text in model.scored), "what was shown was used"
        assert batch.signals.metrics["signal/solver/gate"] == 1
    else:
        assert batch.signals.metrics.get("signal/solver/gates_failed") or "reward_error" in str(
            [it.metadata for it in batch.episodes]
        )
    assert not any(CORE in asked for asked in model.asked), "no prompt of a role has it"
    for episode in filled:
        for trajectory in episode.trajectories:
            messages = [step.chat_completions for step in trajectory.steps]
            metadata = [step.metadata for step in trajectory.steps]
            assert CORE not in json.dumps([messages, metadata])
    assert not any(CORE in note.text for note in batch.warnings)
    made = outputs(tmp_path, flow, runs)
    assert not [name for name, content in made.items() if leaks(content)]
