"""Spec under slime's trainer: episodes as samples with their own rewards, train data with our advantages.

Reads slime's `Sample` and arguments by their fields and imports nothing of slime, whose closure (Megatron,
SGLang) is on few machines. Calls go to slime's SGLang router as token ids, so that the sampled tokens are
trained. slime's train data has one number for a sample, which `--advantage-estimator grpo` passes on to each
token: a sample therefore holds tokens with one advantage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import openai

from rolegraph.engine.compile import Plan
from rolegraph.engine.errors import ContextFull, ModelError, UsageError
from rolegraph.engine.models import Request
from rolegraph.engine.models.sglang import SGLangServer
from rolegraph.engine.models.tokenizer import load_tokenizer
from rolegraph.engine.prompts import ChatFormat, TokenizedPrompt
from rolegraph.engine.records import Episode
from rolegraph.engine.rllm_bridge.prepared import PerEventLoop, PreparedPlan
from rolegraph.engine.run import EpisodeJob, run_episode
from rolegraph.engine.training.advantages import estimate, group_episodes
from rolegraph.engine.training.batches import continues, step_advantages
from rolegraph.engine.training.credit import is_compared
from rolegraph.engine.training.recorded import advantages_by_uid, annotate

KEY = "rolegraph"
"""Key of `Sample.metadata` with the place of the sample in its episode; the first has the whole episode."""


class Segment(NamedTuple):
    """Steps of a trajectory that continue each other token for token, and share an advantage."""

    role: str
    trajectory: int
    """Place of the trajectory in its episode."""
    steps: tuple[int, ...]
    """Places of the steps in the trajectory."""


@dataclass(eq=False)
class SlimeRouter(SGLangServer):
    """SGLang router of slime, whose sampling parameters count for all roles.

    slime recomputes log-probabilities at its own temperature.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def _params(self, request: Request, prompt: TokenizedPrompt) -> dict[str, Any]:
        """Return slime's sampling parameters with the role's limit and stop texts."""
        given, role = self.sampling, request.sampling
        most, stop = given.get("max_new_tokens"), given.get("stop") or ()
        texts = [stop] if isinstance(stop, str) else stop
        return {
            **given,
            "max_new_tokens": role.max_tokens if most is None else min(most, role.max_tokens),
            "stop": [*dict.fromkeys([*texts, *role.stop])] or None,
            "stop_token_ids": [*dict.fromkeys([*(given.get("stop_token_ids") or ()), *self.chat.end_ids])],
        }

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        try:
            return await super()._post(path, body)
        except ModelError as error:
            if "longer than" in str(error):
                raise ContextFull(str(error)) from error
            raise

    def _finish(self, reason: str | None) -> str:
        if reason == "abort":  # slime has all samples that it wants, and a repeated call would wait for ever
            raise ModelError(f"{self.url} aborted the call")
        return super()._finish(reason)


class SpecRollout:
    """slime's functions for one plan.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._prepared = PreparedPlan(plan)
        self._clients = PerEventLoop(_client)

    async def generate(
        self, args: Any, sample: Any, sampling: Mapping[str, Any], *, evaluation: bool = False
    ) -> list[Any]:
        """Run an episode on a sample's task.

        Args:
            args: slime's arguments: `hf_checkpoint`, `sglang_router_ip`, `sglang_router_port`.
            sample: slime's Sample, with the task as `metadata["row"]`.
            sampling: slime's sampling parameters.
            evaluation: Whether to return one sample, whose reward is whether the episode is correct.

        Returns:
            Copies of the sample, one for each segment of a trained role, with tokens, log-probabilities, loss
            mask and reward. An episode without any gives one masked sample, since slime expects some.
        """
        if getattr(args, "rollout_top_p", 1.0) != 1.0:
            raise UsageError(
                "slime replays top_p's tokens, which this rollout does not keep: --rollout-top-p 1"
            )
        url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
        name, chat = args.hf_checkpoint, _chat(args.hf_checkpoint)
        model = SlimeRouter(self._clients.get(), url, None, name, name, chat, None, sampling=sampling)
        table = await self._prepared.table(model)
        job = EpisodeJob(sample.metadata["row"], sample.index or 0)
        episode = await run_episode(self.plan, job, table, isolation=self._prepared.isolation)
        made = [_filled(sample, episode, segment) for segment in segments(self.plan, episode)]
        if evaluation or not made:
            made = [_masked(sample, episode)]
        made[0].metadata[KEY]["episode"] = episode.to_dict()
        return made

    def train_data(self, args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
        """Return slime's train data, with the advantages of each role's estimator as `rewards`.

        Args:
            args: slime's arguments, unused.
            samples: The samples of a step, flat, as `generate` made them.

        Returns:
            For each sample its tokens, response length, advantage times the role's weight, reward, loss mask,
            log-probabilities and rollout. slime divides the loss of a rollout by `rollout_mask_sums`, its
            trained tokens over all roles.
        """
        episodes = [
            Episode.from_dict(s.metadata[KEY]["episode"]) for s in samples if "episode" in s.metadata[KEY]
        ]
        advantages = self._advantages(episodes)
        sums = Counter[int]()
        for sample in samples:
            sums[sample.rollout_id] += sum(sample.loss_mask)
        return {
            "tokens": [sample.tokens for sample in samples],
            "response_lengths": [sample.response_length for sample in samples],
            "rewards": [advantages.get(_place(sample), 0.0) for sample in samples],
            "raw_reward": [sample.reward for sample in samples],
            "truncated": [int(sample.status == sample.Status.TRUNCATED) for sample in samples],
            "sample_indices": [sample.index for sample in samples],
            "rollout_ids": [sample.rollout_id for sample in samples],
            "loss_masks": [list(sample.loss_mask) for sample in samples],
            "rollout_mask_sums": [sums[sample.rollout_id] for sample in samples],
            "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
        }

    def _advantages(self, episodes: Sequence[Episode]) -> dict[tuple[str, int, int], float]:
        """Return the weighted advantage of each segment, by `_place`."""
        trained = self.plan.trained
        groups, _ = group_episodes(episodes, trained, self.plan.policy_of)
        estimators = {name: role.estimator for name, role in trained.items() if role.estimator}
        estimated = estimate(groups, estimators)
        found: dict[tuple[str, int, int], float] = {}
        for episode in annotate(episodes, advantages_by_uid(groups, estimated), {}):
            for segment in segments(self.plan, episode):
                role = trained[segment.role]
                steps = [*step_advantages(episode, episode.trajectories[segment.trajectory], role)]
                values = (value for number in segment.steps for value in steps[number].values if value)
                place = (episode.id, segment.trajectory, segment.steps[0])
                found[place] = next(values, 0.0) * role.spec.weight
        return found


@cache
def _chat(source: str) -> ChatFormat:
    return ChatFormat(load_tokenizer(source), Path(source).name)


def _client() -> openai.AsyncOpenAI:
    """Return the client of slime's router, without a key or a limit on connections."""
    limits = type(openai.DEFAULT_CONNECTION_LIMITS)(max_connections=None)
    http = openai.DefaultAsyncHttpxClient(timeout=None, limits=limits, trust_env=False)
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0, http_client=http)
    client.organization = client.project = None  # of the environment
    return client


def segments(plan: Plan, episode: Episode) -> Iterator[Segment]:
    """Yield the segments of an episode's trained trajectories; those in no group are left out.

    Where turns are compared, a segment has steps of one turn.
    """
    for place, trajectory in enumerate(episode.trajectories):
        role = plan.trained.get(trajectory.name)
        if role is None or not is_compared(trajectory, role):
            continue
        run: list[int] = []
        for number, step in enumerate(trajectory.steps):
            before = trajectory.steps[run[-1]] if run else step
            if run and not (
                continues(step, before) and (not role.compares_turns or step.round == before.round)
            ):
                yield Segment(role.name, place, tuple(run))
                run = []
            if step.response_ids and not step.masked:
                run.append(number)
        if run:
            yield Segment(role.name, place, tuple(run))


def _place(sample: Any) -> tuple[str, int, int]:
    note = sample.metadata[KEY]
    return note["id"], note["trajectory"], note["step"]


def _filled(sample: Any, episode: Episode, segment: Segment) -> Any:
    """Return a copy of a sample with the tokens of a segment."""
    trajectory = episode.trajectories[segment.trajectory]
    steps = [trajectory.steps[number] for number in segment.steps]
    made = _copy(sample, episode, segment)
    start = len(steps[0].prompt_ids)
    tokens, mask, logprobs = [*steps[0].prompt_ids], list[int](), list[float]()
    for step in steps:
        # The tokens so far are the beginning of this step's prompt; its remainder was not sampled.
        added = len(step.prompt_ids) - len(tokens)
        tokens = [*step.prompt_ids, *step.response_ids]
        mask += [0] * added + [1] * len(step.response_ids)
        logprobs += [0.0] * added + [*step.logprobs]
    made.tokens, made.response_length = tokens, len(tokens) - start
    made.loss_mask, made.rollout_log_probs = mask, logprobs
    made.response = "\n".join(step.model_response or "" for step in steps)
    made.reward = float(trajectory.reward or 0.0)
    cut = steps[-1].metadata.get("finish_reason") == "length"
    made.status = sample.Status.TRUNCATED if cut else sample.Status.COMPLETED
    return made


def _masked(sample: Any, episode: Episode) -> Any:
    """Return a copy of a sample from which nothing is learnt: one masked token."""
    made = _copy(sample, episode, Segment("", -1, (0,)))
    ids = next(([*s.prompt_ids] for t in episode.trajectories for s in t.steps if s.prompt_ids), [0])
    made.tokens, made.response_length = [*ids, ids[-1]], 1
    made.loss_mask, made.rollout_log_probs, made.remove_sample = [0], [0.0], True
    made.reward = float(episode.is_correct)
    made.status = sample.Status.COMPLETED
    return made


def _copy(sample: Any, episode: Episode, segment: Segment) -> Any:
    """Return a copy of a sample that shares its rollout, as slime wants of the samples of one rollout."""
    made = copy(sample)
    made.rollout_id = sample.index if sample.rollout_id is None else sample.rollout_id
    note = {"id": episode.id, "trajectory": segment.trajectory, "step": segment.steps[0]}
    made.metadata = {**sample.metadata, KEY: note}
    return made
