"""Runs whose hidden fields hold a canary, and everything that may be sent of them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rolegraph as rg
from rolegraph.api.jobs import describe
from rolegraph.api.tracking import episode_table
from rolegraph.api.workflow import Workflow
from rolegraph.engine.compile.leaving import disclosure_rule_of
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Completion, Request
from rolegraph.engine.records import Checkpoint, Episode, RunFolder, read_episodes
from rolegraph.engine.records.episodes import EpisodeWriter
from rolegraph.engine.run import Isolation, jobs, run_episode, run_jobs
from rolegraph.engine.training.advantages.ledger import credit_rows
from rolegraph.local.card import model_card
from rolegraph.pages.report import write_report
from rolegraph.pages.view.pages import PageLinks, Pages
from rolegraph.pages.viewing import export_chats
from tests.edge import limited
from tests.pages.view.runs import learnt

CORE = "zx9Canary7f3q"
CANARY = f'{CORE} "<é>&'
"""Value of each hidden field; what stands beside `CORE` is written otherwise in JSON and in HTML."""
QUESTION = "Make 7 from 3 and 4"
FORMS = '<answer>1</answer> <verdict>correct</verdict> \\boxed{1} {"a": 1}'


class EchoModel:
    """Model that repeats what it is asked, and gives each form of answer."""

    async def complete(self, request: Request) -> Completion:
        asked = " ".join(str(message.get("content")) for message in request.messages)
        text = f"{asked[-2000:]} {FORMS}"
        ids = [*range(len(text))]
        return Completion(
            text, prompt_ids=(1, 2), response_ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop"
        )

    async def aclose(self) -> None: ...


def rows_of(flow: Workflow, hidden: Any = CANARY) -> list[Mapping[str, Any]]:
    """Return a task whose hidden fields hold the canary."""
    shown = {"question": QUESTION, "nums": [3, 4], "target": 7}
    return [{**shown, **dict.fromkeys(flow.plan.hidden, hidden), "id": "t"}]


def episodes_of(flow: Workflow, model: Any, rows: list[Mapping[str, Any]]) -> list[Episode]:
    """Run a workflow twice on each row."""

    async def played() -> list[Episode]:
        async with Isolation(flow.plan.imports) as isolation:
            models = limited(flow.plan, model)
            made = run_jobs(
                jobs(rows, 2, 0), lambda job: run_episode(flow.plan, job, models, isolation=isolation)
            )
            return sorted([it async for it in made], key=lambda it: (it.task_id, it.rollout))

    return asyncio.run(played())


def with_steps(episode: Episode, **fields: Any) -> Episode:
    """Return a copy with other fields, and other metadata, of each step."""
    metadata = fields.pop("metadata", {})
    return episode._replace(
        trajectories=[
            it._replace(
                steps=[step._replace(**fields, metadata={**step.metadata, **metadata}) for step in it.steps]
            )
            for it in episode.trajectories
        ]
    )


def written_runs(
    folder: Path, flow: Workflow, model: Any, rows: list[Mapping[str, Any]]
) -> tuple[Path, Path, Path]:
    """Write a run, the same with the other verdict on each episode, and a training; return their folders."""
    episodes = episodes_of(flow, model, rows)
    turned = [it._replace(is_correct=not it.is_correct) for it in episodes]
    for name, written in (("run", episodes), ("turned", turned)):
        run = RunFolder(folder / name)
        run.begin(describe(flow, "run", seed=0), flow.plan.resolved)
        with run.ending(), EpisodeWriter(run.episodes) as writer:
            for episode in written:
                writer.append(episode)
    training = RunFolder(folder / "training")
    training.begin(describe(flow, "train", seed=0), flow.plan.resolved)
    # A training adds the advantages of signals before those of estimators, and demonstrations.
    ledger = learnt(flow.plan, [with_steps(it, advantage=0.5) for it in episodes])
    demonstration = {"demonstration": {"text": CANARY, "ids": [1]}}
    made = ledger.filled_episodes()
    training.write_credit(1, credit_rows(ledger, 1))
    training.write_episodes("train", 1, [with_steps(it, metadata=demonstration) for it in made])
    training.write_episodes("validation", 1, episodes)
    training.add_metrics({"step": 1.0})
    return folder / "run", folder / "turned", folder / "training"


def outputs(folder: Path, flow: Workflow, runs: tuple[Path, Path, Path]) -> dict[str, bytes]:
    """Make everything that may be sent of the runs that `written_runs` wrote; by name."""
    run, turned, training = runs
    rule = disclosure_rule_of(flow.plan)
    made: dict[str, bytes] = {}
    for name, of in (("run", run), ("training", training)):
        file = folder / f"{name}.html"
        rg.view(of).write(file, hidden=False)
        made[f"static page of a {name}"] = file.read_bytes()
    made["report"] = write_report(training).read_bytes()
    made["report in the viewer"] = Pages(rg.view(training).runs, PageLinks()).report(0).encode()
    rg.compare(run, turned, html=folder / "compare.html")
    made["comparison"] = (folder / "compare.html").read_bytes()
    made["comparison in a terminal"] = repr(rg.compare(run, turned).flips).encode()
    for name, recorded in (("preview", None), ("preview with a run", run)):
        rg.preview(flow, recorded=recorded, **({} if recorded else {"limit": 1})).save(
            folder / "preview.html"
        )
        made[name] = (folder / "preview.html").read_bytes()
    for of in (run, training):
        chats = folder / f"{of.name}.jsonl"
        try:
            export_chats(of, chats)
            made[f"chats of a {of.name}"] = chats.read_bytes()
        except UsageError as error:  # every chat may quote a hidden field
            made[f"chats of a {of.name}"] = str(error).encode()
    episodes = [*read_episodes(run / "episodes.jsonl")]
    made["table of a tracker"] = json.dumps(episode_table(episodes, rule).lists()).encode()
    made["model card"] = card_of(training).encode()
    made["feedback"] = feedback_of(flow, episodes).encode()
    return made


def card_of(training: Path) -> str:
    """Return the model card of a training's weights."""
    folder = RunFolder(training)
    saved = Checkpoint(step=1, policies={}, validation={"correct": 0.5})
    return model_card(
        folder.info(),
        saved,
        folder.spec(),
        policy="main",
        base="base",
        digest="d",
        merged=False,
        before=None,
    )


def feedback_of(flow: Workflow, episodes: list[Episode]) -> str:
    """Return what a reflecting model gets of each role."""
    from rolegraph.integrations.gepa.reflection import feedback

    first = [it for it in episodes if it.task_id == episodes[0].task_id]
    return repr([feedback(flow.plan, role.name, first[0].task, first) for role in flow.plan.asking])


def leaks(content: bytes, core: str = CORE) -> bool:
    """Return whether bytes hold a word: as it is, in other cases, escaped, or in base64."""
    # Three alignments; the characters at both ends depend on the neighbours.
    coded = [base64.b64encode(b"x" * offset + core.encode())[4:-4] for offset in range(3)]
    return core.lower().encode() in content.lower() or any(it in content for it in coded)
