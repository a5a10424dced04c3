"""Calls to sample, gathered by the weights that they want and drawn together.

`step` moves everything on by one token: it lets waiting sequences join, and hands finished jobs back.
Runs on the compute thread; only `add` may be called from others. Knows no HTTP and no asyncio.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.decoder import Decoder
from rolegraph.engine.local.service.policy import LocalModel, TopTokens, padded_batches
from rolegraph.engine.local.service.rounds import FairQueue
from rolegraph.engine.local.service.sampling import SampleRequest

PATIENCE = 8
"""Steps that a few waiting sequences wait for more to join with them: reading prompts holds the others up."""


@dataclass(eq=False)
class SampleJob:
    """One call to sample: sequences of one prompt, and the prompt's own log-probabilities."""

    weights: str | None
    """The checkpoint's path; None for the base model."""
    requests: Sequence[SampleRequest]
    want_prompt_logprobs: bool = False
    prompt_top: int = 0
    """How many of the likeliest tokens are wanted at each of the prompt's."""
    owner: str = ""
    """Whose it is: owners take turns."""
    progress: Callable[[], None] | None = None
    """Called when there are new tokens."""
    prompt_logprobs: list[float] = field(default_factory=list[float])
    """Temperature 1; NaN for the first token, which nothing precedes."""
    top_prompt: list[TopTokens] = field(default_factory=list[TopTokens])
    """The likeliest in the place of each token but the first."""
    done: Future[None] = field(default_factory=Future[None])
    """Cancel it to stop the drawing."""

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to compute."""
        return (not self.is_unscored) and all(request.reason is not None for request in self.requests)

    @property
    def is_unscored(self) -> bool:
        """Whether its prompt's log-probabilities are wanted, and are not there."""
        return (self.want_prompt_logprobs or self.prompt_top > 0) and not self.prompt_logprobs

    def finish(self, error: Exception | None = None) -> None:
        """Tell whoever waits, unless they have given up."""
        with suppress(InvalidStateError):
            self.done.set_exception(error) if error else self.done.set_result(None)


class _Group:
    """What is drawn from one set of weights."""

    def __init__(self, decoder: Decoder, adapter: str | None) -> None:
        self.decoder, self.adapter = decoder, adapter
        self.jobs: list[SampleJob] = []
        self.waiting = FairQueue[SampleRequest]()
        self.unscored = FairQueue[SampleJob]()
        """Those whose prompts' log-probabilities are still to be computed."""
        self.waited = 0

    def take(self, job: SampleJob) -> None:
        """Take a job on."""
        self.jobs.append(job)
        for request in job.requests:
            self.waiting.add(job.owner, request)
        if job.is_unscored:
            self.unscored.add(job.owner, job)


class Batcher:
    """Draws for many jobs. `load` makes a checkpoint's weights an adapter and returns its name."""

    def __init__(self, policy: LocalModel, load: Callable[[str], str]) -> None:
        self._policy, self._load = policy, load
        self._arrived: deque[SampleJob] = deque()
        self._groups: dict[str | SampleJob | None, _Group] = {}
        """By weights; a job that is drawn alone has a group of its own."""
        self._lock = threading.Lock()

    def add(self, job: SampleJob) -> None:
        """Take a job on. From any thread."""
        with self._lock:
            self._arrived.append(job)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._arrived or self._groups)

    def in_use(self) -> set[str | None]:
        """The adapters that sequences are being drawn from."""
        return {group.adapter for group in self._groups.values()}

    def step(self) -> None:
        """Draw one more token of every sequence. What goes wrong is told to those whose jobs it hits."""
        self._sort_arrived()
        for key, group in list(self._groups.items()):
            try:
                self._advance(group)
            except Exception as error:  # belongs to one of the jobs of this group, which reports it
                del self._groups[key]
                self._part(group, error)
                continue
            if not group.jobs:
                del self._groups[key]

    def _part(self, group: _Group, error: Exception) -> None:
        """Draw each of a group's jobs alone, from its start: what ails one is not the others' fault."""
        if len(group.jobs) == 1:
            group.jobs[0].finish(error)
            return
        for job in group.jobs:
            job.prompt_logprobs, job.top_prompt = [], []
            for request in job.requests:
                request.restart()
            alone = self._groups[job] = _Group(Decoder(self._policy, group.adapter), group.adapter)
            alone.take(job)

    def _sort_arrived(self) -> None:
        with self._lock:
            arrived = list(self._arrived)
            self._arrived.clear()
        for job in arrived:
            if job.done.done():
                continue
            try:
                if job.weights not in self._groups:
                    adapter = None if job.weights is None else self._load(job.weights)
                    self._groups[job.weights] = _Group(Decoder(self._policy, adapter), adapter)
            except Exception as error:  # belongs to this job
                job.finish(error)
                continue
            self._groups[job.weights].take(job)

    def _score(self, adapter: str | None, unscored: FairQueue[SampleJob]) -> None:
        """The log-probabilities of some waiting prompts: one forward pass, between two tokens."""
        jobs, tokens = list[SampleJob](), 0
        while unscored:
            tokens += len(unscored.first().requests[0].prompt)
            if jobs and tokens > limits.READ_TOKENS.most:
                break
            jobs.append(unscored.take())
        for job in jobs:
            job.prompt_logprobs = [float("nan")]
        longer = [job for job in jobs if len(job.requests[0].prompt) > 1]
        prompts = [job.requests[0].prompt for job in longer]
        targets = [torch.tensor(prompt[1:]) for prompt in prompts]
        with torch.inference_mode():
            for numbers, logprobs in self._policy.logprobs(
                adapter, [prompt[:-1] for prompt in prompts], targets, limits.READ_TOKENS.most
            ):
                by_prompt = logprobs.split([len(targets[number]) for number in numbers])
                for number, values in zip(numbers, by_prompt, strict=True):
                    longer[number].prompt_logprobs += values.tolist()
            for job in longer:
                if job.prompt_top:
                    prompt = job.requests[0].prompt[:-1]
                    job.top_prompt = self._policy.likeliest(adapter, prompt, job.prompt_top)

    def _advance(self, group: _Group) -> None:
        for job in [job for job in group.jobs if job.done.done()]:
            unwanted = set(job.requests)
            group.decoder.remove(job.requests)
            group.waiting.keep(lambda request, unwanted=unwanted: request not in unwanted)
            group.unscored.keep(lambda other, job=job: other is not job)
            group.jobs.remove(job)
        self._score(group.adapter, group.unscored)
        group.decoder.step()
        for batch in padded_batches(
            self._joining(group), lambda request: len(request.prompt), limits.READ_TOKENS.most
        ):
            group.decoder.add(batch)
        for job in list(group.jobs):
            if job.progress is not None:
                job.progress()
            if job.is_complete:
                group.jobs.remove(job)
                job.finish()

    def _joining(self, group: _Group) -> list[SampleRequest]:
        """The waiting sequences that join now: when enough are there, or they have waited long enough."""
        live = group.decoder.live
        group.waited += 1
        if not group.waiting or (len(group.waiting) * 4 < len(live) and group.waited < PATIENCE):
            return []
        group.waited = 0
        longest, joining = max((request.length for request in live), default=0), list[SampleRequest]()
        while group.waiting and len(live) + len(joining) < limits.LIVE.most:
            longest = max(longest, group.waiting.first().length)
            if (live or joining) and longest * (len(live) + len(joining) + 1) > limits.LIVE_TOKENS.most:
                break
            joining.append(group.waiting.take())
        return joining
