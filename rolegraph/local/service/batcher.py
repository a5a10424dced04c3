"""Continuous batching of sampling jobs, whatever their adapters.

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

from rolegraph.local import limits
from rolegraph.local.service.decoder import Decoder
from rolegraph.local.service.errors import RequestError
from rolegraph.local.service.free_memory import MEMORY_SHARE, free_memory
from rolegraph.local.service.local_model import LocalModel, TopTokens, padded_batches
from rolegraph.local.service.lora import LoraAdapter
from rolegraph.local.service.sampling import SampleRequest

T = TypeVar("T")

_EXHAUSTED = (
    "the GPU's memory is full: not even one sequence fits beside the model; lower sampling.max_tokens, "
    "shorten the prompts, or end other programs on the GPU (nvidia-smi lists them)"
)

PATIENCE = 8
"""Number of steps for which a few waiting sequences are held back, because reading their prompts delays all
others."""


@dataclass(eq=False)
class SampleJob:
    """One request to sample: sequences of one prompt, and optionally the prompt's own log-probabilities."""

    weights: str | None
    """Path of the checkpoint to sample from; None for the base model."""
    requests: Sequence[SampleRequest]
    want_prompt_logprobs: bool = False
    prompt_top: int = 0
    """Number of likeliest tokens to return at each position of the prompt."""
    owner: str = ""
    """Id of the client; owners take turns."""
    progress: Callable[[], object] | None = None
    """Function called after every step, on the compute thread."""
    prompt_logprobs: list[float] = field(default_factory=list[float])
    """Log-probabilities of the prompt's tokens at temperature 1; NaN for the first."""
    top_prompt: list[TopTokens] = field(default_factory=list[TopTokens])
    """The likeliest tokens at each position of the prompt except the first."""
    done: Future[None] = field(default_factory=Future[None])
    """Future of the job's end; cancelling it stops the sampling."""

    @property
    def adapter(self) -> LoraAdapter | None:
        """Adapter that the job samples with; None for the base model."""
        return self.requests[0].adapter

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to compute."""
        return (not self.is_unscored) and all(request.reason is not None for request in self.requests)

    @property
    def is_unscored(self) -> bool:
        """True until the requested log-probabilities of the prompt are computed."""
        return (self.want_prompt_logprobs or self.prompt_top > 0) and not self.prompt_logprobs

    def finish(self, error: Exception | None = None) -> None:
        """Complete the future `done` with a result or with `error`, unless the client has cancelled it."""
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
        kept_queues = {owner: deque(filter(keep, queue)) for owner, queue in self._queues.items()}
        self._queues = OrderedDict((owner, queue) for owner, queue in kept_queues.items() if queue)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))


class Batcher:
    """Sampler that answers many jobs in one batch of a model.

    The argument `load` is a function that returns an adapter with the weights of a checkpoint path.
    """

    def __init__(self, model: LocalModel, load: Callable[[str], LoraAdapter]) -> None:
        self._model, self._load = model, load
        self._alone: list[Batcher] = []
        """Batchers with one job each, made after a batch failed."""
        self._clear()

    def _clear(self) -> None:
        self._decoder = Decoder(self._model)
        self._jobs: list[SampleJob] = []
        self._waiting = FairQueue[SampleRequest]()
        self._unscored = FairQueue[SampleJob]()
        """Jobs whose prompts have no log-probabilities yet, but need them."""
        self._waited = 0
        """Steps since sequences last joined."""
        tokens_in_memory = self._model.cache_bytes.tokens(free_memory(self._model.device) // MEMORY_SHARE)
        self._most_tokens = min(limits.LIVE_TOKENS.most, tokens_in_memory)
        """Largest number of tokens, with padding, of the sequences in a batch."""

    def add(self, job: SampleJob) -> None:
        """Load the weights of a job and queue it; an error of loading is set on the job instead of raised."""
        if job.done.done():
            return
        try:
            adapter = None if job.weights is None else self._load(job.weights)
        except Exception as error:  # reported to the client of this job
            job.finish(error)
            return
        for request in job.requests:
            request.adapter = adapter
        self._queue(job)

    def _queue(self, job: SampleJob) -> None:
        self._jobs.append(job)
        for request in job.requests:
            if request.reason is None:
                self._waiting.add(job.owner, request)
        if job.is_unscored:
            self._unscored.add(job.owner, job)

    @property
    def busy(self) -> bool:
        """True while there are unfinished jobs."""
        return bool(self._jobs or self._alone)

    def step(self) -> None:
        """Sample one more token of every running sequence; an error fails only the jobs that cause it."""
        try:
            self._advance()
        except torch.OutOfMemoryError:
            self._shrink()
        except Exception as error:  # reported to the client of the job at fault
            self._split(error)
        if not self._jobs:
            self._clear()  # frees the memory of the batch
        for batcher in self._alone:
            batcher.step()
        self._alone = [batcher for batcher in self._alone if batcher.busy]

    def _shrink(self) -> None:
        """Restart all jobs with half as many tokens in a batch; fail the jobs if not even one token fits."""
        jobs, half_tokens = self._jobs, self._most_tokens // 2
        self._clear()
        self._most_tokens = min(self._most_tokens, half_tokens)
        for job in jobs:
            if half_tokens:
                self._restart(job)
            else:
                job.finish(RequestError(_EXHAUSTED, status=507))

    def _restart(self, job: SampleJob) -> None:
        """Queue a job again from its beginning."""
        job.prompt_logprobs, job.top_prompt = [], []
        for request in job.requests:
            request.restart()
        self._queue(job)

    def _split(self, error: Exception) -> None:
        """Restart each job of a failed batch in a batch of its own, so that only faulty jobs fail.

        If the batch has a single job, that job fails with `error`.
        """
        jobs = self._jobs
        self._clear()
        if len(jobs) == 1:
            jobs[0].finish(error)
            return
        for job in jobs:
            self._alone.append(Batcher(self._model, self._load))
            self._alone[-1]._restart(job)

    def _score_waiting(self) -> None:
        """Compute the requested log-probabilities of waiting prompts, up to `limits.READ_TOKENS` tokens in a
        call."""
        jobs: list[SampleJob] = []
        tokens = 0
        while self._unscored:
            tokens += len(self._unscored.peek().requests[0].prompt)
            if jobs and tokens > limits.READ_TOKENS.most:
                break
            jobs.append(self._unscored.pop())
        for adapter in {job.adapter for job in jobs}:
            self._score(adapter, [job for job in jobs if job.adapter == adapter])

    def _score(self, adapter: LoraAdapter | None, jobs: Sequence[SampleJob]) -> None:
        scores = {job: [float("nan")] for job in jobs}
        scored_jobs = [job for job in jobs if len(job.requests[0].prompt) > 1]
        prompts = [job.requests[0].prompt for job in scored_jobs]
        targets = [torch.tensor(prompt[1:]) for prompt in prompts]
        with torch.inference_mode():
            for numbers, logprobs in self._model.logprobs(
                adapter, [prompt[:-1] for prompt in prompts], targets, limits.READ_TOKENS.most
            ):
                prompt_logprobs = logprobs.split([len(targets[number]) for number in numbers])
                for number, logprobs_ in zip(numbers, prompt_logprobs, strict=True):
                    scores[scored_jobs[number]] += logprobs_.tolist()
            for job in scored_jobs:
                if job.prompt_top:
                    prompt = job.requests[0].prompt[:-1]
                    job.top_prompt = self._model.top_tokens(adapter, prompt, job.prompt_top)
        for job, logprobs in scores.items():
            job.prompt_logprobs = logprobs  # last: who reads meanwhile takes the job as scored by it

    def _advance(self) -> None:
        for job in [job for job in self._jobs if job.done.done()]:
            cancelled_requests = set(job.requests)
            self._decoder.remove(job.requests)
            self._waiting.filter(lambda request, unwanted=cancelled_requests: request not in unwanted)
            self._unscored.filter(lambda waiting, job=job: waiting is not job)
            self._jobs.remove(job)
        self._score_waiting()
        self._decoder.step()
        for batch in padded_batches(
            self._joining(), lambda request: len(request.prompt), limits.READ_TOKENS.most
        ):
            self._decoder.add(batch)
        for job in list(self._jobs):
            if job.progress is not None:
                job.progress()
            if error := next((it.error for it in job.requests if it.error is not None), None):
                job.finish(error)  # the next step removes its sequences
            elif job.is_complete:
                self._jobs.remove(job)
                job.finish()

    def _joining(self) -> list[SampleRequest]:
        """Remove and return the waiting sequences that join the batch now.

        Empty while only a few sequences wait, for at most PATIENCE steps.
        """
        live, waiting = self._decoder.live, self._waiting
        self._waited += 1
        if not waiting or (len(waiting) * 4 < len(live) and self._waited < PATIENCE):
            return []
        self._waited = 0
        admitted: list[SampleRequest] = []
        longest = max((request.length for request in live), default=0)
        state = self._model.cache_bytes.state_tokens
        while waiting and len(live) + len(admitted) < limits.LIVE.most:
            longest = max(longest, waiting.peek().length)
            if (live or admitted) and (longest + state) * (len(live) + len(admitted) + 1) > self._most_tokens:
                break
            admitted.append(waiting.pop())
        return admitted
