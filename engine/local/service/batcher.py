"""Continuous batching of sampling jobs; those whose adapters have one host share a batch.

`Batcher.step` samples one token of every sequence, admits waiting sequences and finishes jobs. Everything
runs on the compute thread. Knows no HTTP and no asyncio.
"""

# torch leaves parts of its types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import nn

from rolegraph.engine.limits import service as limits
from rolegraph.engine.local.service.decoder import Decoder
from rolegraph.engine.local.service.local_model import LocalModel, TopTokens, padded_batches
from rolegraph.engine.local.service.sampling import SampleRequest

T = TypeVar("T")

PATIENCE = 8
"""Steps for which a few waiting sequences are held back: reading prompts delays all others."""


@dataclass(eq=False)
class SampleJob:
    """One request to sample: sequences of one prompt, and optionally the prompt's own log-probabilities."""

    weights: str | None
    """Path of the checkpoint to sample from; None for the base model."""
    requests: Sequence[SampleRequest]
    want_prompt_logprobs: bool = False
    prompt_top: int = 0
    """Number of likeliest tokens to return for each position of the prompt."""
    owner: str = ""
    """Id of the client; owners take turns."""
    progress: Callable[[], object] | None = None
    """Callback after every step, on the compute thread."""
    prompt_logprobs: list[float] = field(default_factory=list[float])
    """Log-probabilities of the prompt's tokens at temperature 1; NaN for the first."""
    top_prompt: list[TopTokens] = field(default_factory=list[TopTokens])
    """The likeliest tokens for each position of the prompt but the first."""
    done: Future[None] = field(default_factory=Future[None])
    """Future of the job's end; cancelling it stops the sampling."""

    @property
    def adapter(self) -> str | None:
        """Name of the adapter that holds the weights."""
        return self.requests[0].adapter

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to compute."""
        return (not self.is_unscored) and all(request.reason is not None for request in self.requests)

    @property
    def is_unscored(self) -> bool:
        """True if log-probabilities of the prompt are wanted and not computed yet."""
        return (self.want_prompt_logprobs or self.prompt_top > 0) and not self.prompt_logprobs

    def finish(self, error: Exception | None = None) -> None:
        """Resolve `done`, unless it was cancelled."""
        with suppress(InvalidStateError):
            self.done.set_exception(error) if error else self.done.set_result(None)


class FairQueue(Generic[T]):
    """Items by owner: the owners alternate, and the items of one owner keep their order.

    >>> queue = FairQueue[int]()
    >>> for owner, item in [("a", 1), ("a", 2), ("b", 3)]:
    ...     queue.add(owner, item)
    >>> [queue.pop() for _ in range(len(queue))]
    [1, 3, 2]
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def add(self, owner: str, item: T) -> None:
        """Append an item to its owner's items."""
        self._queues.setdefault(owner, deque()).append(item)

    def peek(self) -> T:
        """Return the item that `pop` removes next; raises StopIteration if the queue is empty."""
        return next(iter(self._queues.values()))[0]

    def pop(self) -> T:
        """Remove and return the next item; raises KeyError if the queue is empty."""
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[owner] = queue
        return item

    def filter(self, keep: Callable[[T], bool]) -> None:
        """Remove the items for which `keep` returns False."""
        for owner, queue in list(self._queues.items()):
            kept = deque(item for item in queue if keep(item))
            if kept:
                self._queues[owner] = kept
            else:
                del self._queues[owner]

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))


class _Group:
    """The jobs that are sampled in one batch."""

    def __init__(self, model: LocalModel) -> None:
        self.decoder = Decoder(model)
        self.jobs: list[SampleJob] = []
        self.waiting = FairQueue[SampleRequest]()
        self.unscored = FairQueue[SampleJob]()
        """Jobs whose prompts' log-probabilities are still to be computed."""
        self.waited = 0
        """Steps since sequences last joined."""

    def add(self, job: SampleJob) -> None:
        """Queue the sequences that a job samples, and its prompt if the job asks for prompt logprobs."""
        self.jobs.append(job)
        for request in job.requests:
            self.waiting.add(job.owner, request)
        if job.is_unscored:
            self.unscored.add(job.owner, job)


class Batcher:
    """Sampler that answers many jobs in shared batches of one model.

    `load` returns the name of an adapter that holds the weights of a checkpoint path.
    """

    def __init__(self, model: LocalModel, load: Callable[[str], str]) -> None:
        self._model, self._load = model, load
        self._groups: dict[nn.Module | SampleJob, _Group] = {}
        """Groups by the host of their adapters; a job that is sampled alone is the key of its group."""

    def add(self, job: SampleJob) -> None:
        """Queue a job, or finish it with the error that loading its weights raises."""
        if job.done.done():
            return
        try:
            adapter = None if job.weights is None else self._load(job.weights)
        except Exception as error:  # reported to the client of this job
            job.finish(error)
            return
        for request in job.requests:
            request.adapter = adapter
        self._groups.setdefault(self._model.host(adapter), _Group(self._model)).add(job)

    @property
    def busy(self) -> bool:
        """True while there are unfinished jobs."""
        return bool(self._groups)

    def adapters_in_use(self) -> set[str | None]:
        """Return the adapters of the unfinished jobs."""
        return {job.adapter for group in self._groups.values() for job in group.jobs}

    def step(self) -> None:
        """Sample one more token of every sequence; an error ends only the jobs that cause it."""
        for key, group in list(self._groups.items()):
            try:
                self._advance(group)
            except Exception as error:  # reported to the client of the job at fault
                del self._groups[key]
                self._split(group, error)
                continue
            if not group.jobs:
                del self._groups[key]

    def _split(self, group: _Group, error: Exception) -> None:
        """Restart each job of a failed group alone, so that only the jobs at fault fail; end a single job."""
        if len(group.jobs) == 1:
            group.jobs[0].finish(error)
            return
        for job in group.jobs:
            job.prompt_logprobs, job.top_prompt = [], []
            for request in job.requests:
                request.restart()
            alone = self._groups[job] = _Group(self._model)
            alone.add(job)

    def _score_waiting(self, unscored: FairQueue[SampleJob]) -> None:
        """Compute log-probabilities of the prompts of waiting jobs, up to `limits.READ_TOKENS` tokens."""
        jobs: list[SampleJob] = []
        tokens = 0
        while unscored:
            tokens += len(unscored.peek().requests[0].prompt)
            if jobs and tokens > limits.READ_TOKENS.most:
                break
            jobs.append(unscored.pop())
        for adapter in {job.adapter for job in jobs}:
            self._score(adapter, [job for job in jobs if job.adapter == adapter])

    def _score(self, adapter: str | None, jobs: Sequence[SampleJob]) -> None:
        for job in jobs:
            job.prompt_logprobs = [float("nan")]
        longer = [job for job in jobs if len(job.requests[0].prompt) > 1]
        prompts = [job.requests[0].prompt for job in longer]
        targets = [torch.tensor(prompt[1:]) for prompt in prompts]
        with torch.inference_mode():
            for numbers, logprobs in self._model.logprobs(
                adapter, [prompt[:-1] for prompt in prompts], targets, limits.READ_TOKENS.most
            ):
                by_prompt = logprobs.split([len(targets[number]) for number in numbers])
                for number, values in zip(numbers, by_prompt, strict=True):
                    longer[number].prompt_logprobs += values.tolist()
            for job in longer:
                if job.prompt_top:
                    prompt = job.requests[0].prompt[:-1]
                    job.top_prompt = self._model.top_tokens(adapter, prompt, job.prompt_top)

    def _advance(self, group: _Group) -> None:
        for job in [job for job in group.jobs if job.done.done()]:
            unwanted = set(job.requests)
            group.decoder.remove(job.requests)
            group.waiting.filter(lambda request, unwanted=unwanted: request not in unwanted)
            group.unscored.filter(lambda waiting, job=job: waiting is not job)
            group.jobs.remove(job)
        self._score_waiting(group.unscored)
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
        """Return the waiting sequences that join the decoding now; a few alone wait up to PATIENCE steps."""
        live = group.decoder.live
        group.waited += 1
        if not group.waiting or (len(group.waiting) * 4 < len(live) and group.waited < PATIENCE):
            return []
        group.waited = 0
        joining: list[SampleRequest] = []
        longest = max((request.length for request in live), default=0)
        while group.waiting and len(live) + len(joining) < limits.LIVE.most:
            longest = max(longest, group.waiting.peek().length)
            if (live or joining) and longest * (len(live) + len(joining) + 1) > limits.LIVE_TOKENS.most:
                break
            joining.append(group.waiting.pop())
        return joining
