"""Search for better templates with gepa (GEPA, arXiv 2507.19457).

gepa's own folder is a pickle, which could run untrusted code, and resuming from it restarts its random
draws. Here episodes and reflections are on disk, and gepa draws the same from the same seed: a stopped
search is run again from the start, and only missing episodes and reflections are made.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import import_module
from typing import Any, TypeVar

from rolegraph.api import jobs
from rolegraph.api.running import RunJob, finished_in
from rolegraph.api.workflow import OpenWorkflow, Workflow, open_source
from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import ModelError, UsageError, WorldError
from rolegraph.engine.models import LimitedModel, Request
from rolegraph.engine.records import Episode, Message, Note, Observer, RunFolder, Source, Task
from rolegraph.engine.records.episodes import read_episodes
from rolegraph.engine.records.identity import CallId, NodeId, derive_seed
from rolegraph.engine.records.jsonl import JsonlWriter, json_line, parse_json, read_jsonl
from rolegraph.engine.shipped import MODELS, model_folder
from rolegraph.engine.spec import ModelRef, Sampling
from rolegraph.engine.spec.sources import PROVIDERS
from rolegraph.engine.training.analysis.compare import by_task
from rolegraph.engine.vocabulary import Split
from rolegraph.integrations.gepa import reflection
from rolegraph.integrations.gepa.page import Candidate, OptimizationRecord, RefusedTemplate
from rolegraph.integrations.gepa.reflection import DataItem, SearchPlan, Templates

T = TypeVar("T")
REFLECTION_TOKENS = 8192
"""Largest number of tokens of a reflection."""


@dataclass
class Search:
    """One run of gepa's search as its GEPAAdapter: gepa runs in a thread, models are called on the event
    loop."""

    plan: SearchPlan
    opened: OpenWorkflow
    reflector: LimitedModel
    observe: Observer
    concurrency: int
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _work: asyncio.Task[Any] | None = None
    _fault: BaseException | None = None
    """First error. gepa continues after some errors, but the search must end."""
    _load: Callable[[Source], Workflow] = field(default_factory=lambda: cache(open_source))
    _made: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    """Episodes that the search used, each as (candidate, split, task id)."""
    _refused: list[RefusedTemplate] = field(default_factory=list[RefusedTemplate])
    _asked: int = 0

    def run(self) -> OptimizationRecord:
        """Run gepa's search until the budget is used, and return its candidates; blocks, so call it in a
        thread.

        Raises:
            UsageError: The folder's file of reflections belongs to another search.
            WorldError: A model does not answer, or the disk is full.
        """
        plan = self.plan
        result: Any = import_module("gepa").optimize(
            seed_candidate=dict(plan.templates),
            trainset=[*plan.train],
            valset=[*plan.validation],
            adapter=self,
            reflection_minibatch_size=plan.minibatch,
            skip_perfect_score=plan.score == reflection.CORRECT,
            stop_callbacks=self._is_over,
            logger=self,
            track_best_outputs=False,
            seed=plan.seed,
        )
        task_ids = [task["id"] for _, task in plan.validation]
        fronts = result.per_val_instance_best_candidates
        candidates = tuple(
            Candidate(
                templates=templates,
                parents=tuple(parent for parent in result.parents[index] if parent is not None),
                scores={task_ids[number]: score for number, score in result.val_subscores[index].items()},
                figures=result.val_aggregate_subscores[index],
                best_on=tuple(task_ids[number] for number, winners in fronts.items() if index in winners),
                folder=f"candidates/{identity(templates)}-{plan.validation[0][0]}",
            )
            for index, templates in enumerate(result.candidates)
        )
        return OptimizationRecord(
            name=plan.workflow.name,
            score=plan.score,
            budget=plan.budget,
            episodes=len(self._made) * plan.rollouts,
            reflections=self._asked,
            refused=tuple(self._refused),
            candidates=candidates,
        )

    async def result(self) -> OptimizationRecord:
        """Return the result of `run` in a thread; if it is cancelled, wait until the folders are closed."""
        search_task = asyncio.ensure_future(asyncio.to_thread(self.run))
        try:
            return await asyncio.shield(search_task)
        except asyncio.CancelledError:
            self._fault = self._fault or asyncio.CancelledError()
            if self._work is not None:
                self._work.cancel()
            await asyncio.gather(search_task, return_exceptions=True)
            raise

    def log(self, message: str) -> None:
        """Do nothing: gepa's log adds nothing to the record."""

    def evaluate(self, batch: Sequence[DataItem], candidate: Templates, capture_traces: bool = False) -> Any:
        """Return the scores of a candidate on tasks, as gepa's EvaluationBatch.

        Args:
            batch: Tasks of one split.
            candidate: Templates that compile.
            capture_traces: True to return the episodes as well.
        """
        split, tasks = batch[0][0], {task["id"]: task for _, task in batch}
        episodes = self._wait(self._episodes(candidate, split, tasks))
        all_episodes = [episode for rollouts in episodes.values() for episode in rollouts]
        figures = by_task(self.plan.workflow, all_episodes).items()
        rows = [{name: means[t["id"]] for name, means in figures if t["id"] in means} for _, t in batch]
        evaluation: Any = import_module("gepa.core.adapter").EvaluationBatch
        return evaluation(
            outputs=[task["id"] for _, task in batch],
            scores=[self._score(metrics) for metrics in rows],
            trajectories=[(task, episodes[task["id"]]) for _, task in batch] if capture_traces else None,
            objective_scores=rows,
        )

    def make_reflective_dataset(
        self, candidate: Templates, eval_batch: Any, components_to_update: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the trajectories by component unchanged; gepa hides exceptions of this callback, so it does
        no work.
        """
        return {name: [{"episodes": it} for it in eval_batch.trajectories] for name in components_to_update}

    def propose_new_texts(
        self, candidate: Templates, reflective_dataset: Mapping[str, Any], components_to_update: Sequence[str]
    ) -> dict[str, str]:
        """Return new templates that compile, by name; a template that the model could not improve is left
        out."""
        proposals = {
            name: self._wait(self._proposed(candidate, name, reflective_dataset[name]))
            for name in components_to_update
        }
        return {name: text for name, text in proposals.items() if text != candidate[name]}

    def _is_over(self, state: Any) -> bool:
        """Return True if another iteration might exceed the budget of episodes, so that gepa stops.

        Raises the error that ended the search, if there is one.
        """
        if self._fault is not None:
            raise self._fault
        return (state.total_num_evals + self.plan.iteration) * self.plan.rollouts > self.plan.budget

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and block the search's thread until its result.

        An error ends the search: it is kept and raised by every later call.
        """
        try:
            return asyncio.run_coroutine_threadsafe(self._unless_ended(work), self._loop).result()
        except BaseException as error:
            self._fault = self._fault or error
            raise

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine; raise the error that ended the search, if there is one."""
        if self._fault is not None:
            work.close()
            raise self._fault
        self._work = asyncio.current_task()
        return await work

    def _score(self, figures: Mapping[str, float]) -> float:
        if self.plan.score != reflection.MEAN_REWARD:
            return figures.get(self.plan.score, 0.0)
        rewards = [value for name, value in figures.items() if name.startswith("reward/")]
        return sum(rewards) / len(rewards) if rewards else 0.0

    async def _episodes(
        self, candidate: Templates, split: Split, tasks: Mapping[str, Task]
    ) -> dict[str, list[Episode]]:
        """Run the episodes of a candidate that its folder lacks; return all rollouts by task id, in order."""
        plan, candidate_id = self.plan, identity(candidate)
        flow = self._load(reflection.with_templates(plan.source, candidate))
        folder = RunFolder(plan.folder / "candidates" / f"{candidate_id}-{split}")
        info = jobs.describe(flow, "run", split=split, own_tasks=True, rollouts=plan.rollouts, seed=plan.seed)
        rows, resumed = [*tasks.values()], folder.info_file.exists()
        with jobs.damage_explained(RunFolder(plan.folder)):
            finished_keys = finished_in(folder)
        job = RunJob(flow, folder, info, rows, finished_keys, resumed=resumed)
        if missing_count := job.episodes - job.done:
            self.observe(Note(f"candidate {candidate_id}, {split} tasks …", episodes=missing_count))
            opened_flow = await self.opened.with_flow(flow)
            with job.open_folder(self.observe) as (notify, writer):
                await job.write_missing(opened_flow, writer, notify, concurrency=self.concurrency)
        self._made |= {(candidate_id, split, task) for task in tasks}
        episodes: dict[str, list[Episode]] = {task: [] for task in tasks}
        for episode in sorted(read_episodes(folder.episodes), key=lambda episode: episode.rollout):
            if episode.task_id in episodes and episode.rollout < plan.rollouts:
                episodes[episode.task_id].append(episode)
        return episodes

    async def _proposed(self, candidate: Templates, name: str, records: Sequence[Mapping[str, Any]]) -> str:
        """Ask the model for a better text of template `name`; return the first that compiles, else the old
        text."""
        plan, role = self.plan.workflow, name.partition(".")[0]
        feedback_records = [reflection.feedback(plan, role, *record["episodes"]) for record in records]
        proposal: Any = import_module("gepa.strategies.instruction_proposal").InstructionProposalSignature
        prompt: str = proposal.prompt_renderer(
            {
                "current_instruction_doc": candidate[name],
                "dataset_with_feedback": [record for group in feedback_records for record in group],
                "prompt_template": reflection.reflection_prompt(plan, name),
            }
        )
        messages: list[Message] = [{"role": "user", "content": prompt}]
        for _ in range(reflection.TRIES):
            answer = await self._reflect(messages)
            new_text: str = proposal.output_extractor(answer)["new_instruction"].replace("\r\n", "\n")
            if not (faults := reflection.template_faults(self.plan.source, {**candidate, name: new_text})):
                return new_text
            self._refused.append(RefusedTemplate(name, faults))
            refusal_message = {"role": "user", "content": reflection.REFUSED.format(faults=faults)}
            messages = [*messages, {"role": "assistant", "content": answer}, refusal_message]
        return candidate[name]

    async def _reflect(self, messages: Sequence[Message]) -> str:
        """Return the model's answer to a reflection prompt; a resumed search takes recorded answers from the
        folder."""
        number, file, seed = self._asked, self.plan.folder / "reflections.jsonl", self.plan.seed
        lines = [line.value for line in read_jsonl(file, parse_json, "a reflection")] if file.exists() else []
        self._asked += 1
        if number < len(lines):
            if lines[number]["messages"] != json.loads(json_line(messages)):
                fault = f"{file}:{number + 1} answers another prompt; its episodes or the code have changed"
                raise UsageError(f"{fault}. Choose another folder with --out")
            return lines[number]["answer"]
        self.observe(Note("reflecting …"))
        call = CallId("reflection", number, NodeId("reflector"))
        sampling = Sampling(max_tokens=REFLECTION_TOKENS)
        try:
            request = Request(messages, sampling, derive_seed(seed, "reflection", number), call)
            completion, _, _ = await self.reflector.complete(request)
        except ModelError as error:
            raise WorldError(f"the reflecting model gave no answer: {error}") from error
        line = json_line({"messages": [*messages], "answer": completion.text})
        with JsonlWriter(file, "reflections") as writer:
            writer.append(line, "a reflection", sync=True)
        return json.loads(line)["answer"]


def identity(templates: Templates) -> str:
    """Return the name of a candidate's folder, a digest of its templates."""
    return sha256(json.dumps(sorted(templates.items())).encode()).hexdigest()[:12]


def reflecting_model(plan: Plan, name: str | None, url: str | None) -> ModelRef:
    """Return the model that proposes templates; raises UsageError for a model that cannot."""
    ref = plan.spec.model
    if name is not None:
        provider, _, model = name.partition(":")
        if provider not in PROVIDERS:
            choices = ", ".join(f"{provider_name}:NAME" for provider_name in PROVIDERS)
            raise UsageError(f"--reflect-with {name} is no model; expected one of {choices}")
        ref = ModelRef.model_validate({"provider": provider, "name": model or None})
    if url is not None:
        ref = ref.model_copy(update={"base_url": url})
    if ref.served_here and model_folder(ref.name).resolve() in {path.resolve() for path in MODELS.values()}:
        raise UsageError(
            f"the shipped model {ref} cannot reflect: it knows only the answers that it was taught, and "
            "cannot write a prompt; name a general model with "
            "--reflect-with openai:NAME, tinker:NAME or local:FOLDER"
        )
    return ref
