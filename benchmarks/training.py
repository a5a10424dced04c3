"""What training costs through the local service: rollouts and updates, beside plain transformers and peft.

    python benchmarks/training.py                  # a Markdown table
    python benchmarks/training.py --repetitions 5

The load is a step of `solver_judge` as the README trains it: tasks × rollouts, two solver samples each, then
a judge's; then one update on all of them. The service is driven through the Tinker SDK. The plain loops get
the same prompts, answer lengths, adapter, data, loss and optimizer, in this process, with as many threads as
is best for them (`--threads`), and no HTTP. All take turns; a cell is the median.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["TINKER_TELEMETRY"] = "0"

import click
import tinker
import torch
from peft import LoraConfig, get_peft_model
from stub import judge_prompt, solver_prompt
from tinker import types
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolegraph.engine.prompts.chat import ChatFormat
from rolegraph.local.launcher import BASE_MODEL, running

RANK = 32
MAX_TOKENS = 64
LEARNING_RATE = 1e-4
BATCH_TOKENS = 4096
"""Padded tokens of one forward and backward pass, as in the service."""
EQUAL_LENGTH = 24
"""Tokens of each answer where all are to have the same."""


@dataclass(frozen=True)
class Sample:
    """One answer."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]

    @property
    def input(self) -> list[int]:
        """What the model reads to score it."""
        return [*self.prompt, *self.tokens[:-1]]


Phases = list[list[Sample]]


class Clock:
    """Seconds of each stage, over repetitions."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds.setdefault(stage, []).append(time.perf_counter() - started)

    def median(self, stage: str) -> float:
        return statistics.median(self.seconds[stage])


def questions(tasks: int) -> list[dict[str, Any]]:
    """Countdown tasks, each its own."""
    ask = "Use {}, {} exactly once each, with + - * / and parentheses, to make {}."
    return [{"question": ask.format(3 + n, 12 + n, 15 + 2 * n)} for n in range(tasks)]


def advantages(count: int) -> list[float]:
    """Of either sign, and the same for all."""
    return torch.randn(count, generator=torch.Generator().manual_seed(0)).tolist()


class Service:
    """The local service through the SDK."""

    def __init__(self, client: tinker.ServiceClient, name: str, chat: ChatFormat) -> None:
        self.chat = chat
        self.training = client.create_lora_training_client(base_model=name, rank=RANK, seed=1).result()
        self.publish()

    async def ask(self, text: str, seed: int, length: int | None) -> Sample:
        prompt = list(self.chat.prompt([{"role": "user", "content": text}]).ids)
        stop = [] if length else list(self.chat.end_ids)
        params = types.SamplingParams(max_tokens=length or MAX_TOKENS, seed=seed, stop=stop)
        answer = await self.sampling.sample(types.ModelInput.from_ints(prompt), 1, params)
        sequence = answer.sequences[0]
        return Sample(prompt, sequence.tokens, sequence.logprobs or [])

    async def episode(self, task: dict[str, Any], seed: int, length: int | None) -> list[Sample]:
        solvers = await asyncio.gather(*(self.ask(solver_prompt(task), seed + n, length) for n in range(2)))
        texts = [self.chat.answer(s.tokens, stop=(), thinking=False)[1] for s in solvers]
        return [*solvers, await self.ask(judge_prompt(task, texts), seed + 2, length)]

    async def rollout(self, tasks: Sequence[dict[str, Any]], seed: int, length: int | None) -> Phases:
        """Samples of the solvers, and of the judges; `length` tokens each, where it is given."""
        episodes = await asyncio.gather(
            *(self.episode(task, seed + 3 * number, length) for number, task in enumerate(tasks))
        )
        return [[s for e in episodes for s in e[:2]], [e[2] for e in episodes]]

    def update(self, samples: Sequence[Sample], clock: Clock) -> None:
        data = [_datum(s, a) for s, a in zip(samples, advantages(len(samples)), strict=True)]
        with clock.time("forward_backward"):
            self.training.forward_backward(data, "ppo").result()
        with clock.time("optim_step"):
            self.training.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()

    def publish(self) -> None:
        self.sampling = self.training.save_weights_and_get_sampling_client().result()


def _datum(sample: Sample, advantage: float) -> types.Datum:
    before = len(sample.prompt) - 1
    inputs = {
        "target_tokens": torch.tensor([*sample.prompt[1:], *sample.tokens]),
        "logprobs": torch.tensor([0.0] * before + sample.logprobs),
        "advantages": torch.tensor([0.0] * before + [advantage] * len(sample.tokens)),
    }
    given = {key: types.TensorData.from_torch(value) for key, value in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(sample.input), loss_fn_inputs=given)


class Plain:
    """transformers, peft and torch, in a loop as one would write it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        base: Any = AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32)
        config = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear")
        self.model: Any = get_peft_model(base, config).eval()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-12)

    @torch.inference_mode()
    def rollout(self, phases: Phases, *, merged: bool) -> None:
        """As many sequences as were sampled, in two batches; each batch ends with its longest answer."""
        if merged:
            self.model.merge_adapter()
        for samples in phases:
            ids, mask = padded([s.prompt for s in samples], left=True)
            length = max(len(s.tokens) for s in samples)
            self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                top_k=0,
                min_new_tokens=length,
                max_new_tokens=length,
                output_logits=True,
                return_dict_in_generate=True,
            )
        if merged:
            self.model.unmerge_adapter()

    def update(self, samples: Sequence[Sample]) -> None:
        """PPO's loss over padded batches of like length."""
        order = sorted(
            zip(samples, advantages(len(samples)), strict=True), key=lambda pair: len(pair[0].input)
        )
        batches: list[list[tuple[Sample, float]]] = [[]]
        for pair in order:
            if (len(batches[-1]) + 1) * len(pair[0].input) > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(pair)
        for batch in batches:
            self._backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _backward(self, batch: Sequence[tuple[Sample, float]]) -> None:
        ids, mask = padded([s.input for s, _ in batch], left=False)
        targets, old, weights = torch.zeros_like(ids), torch.zeros(ids.shape), torch.zeros(ids.shape)
        for row, (sample, advantage) in enumerate(batch):
            answer = slice(len(sample.prompt) - 1, len(sample.input))
            targets[row, answer] = torch.tensor(sample.tokens)
            old[row, answer] = torch.tensor(sample.logprobs)
            weights[row, answer] = advantage
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logprobs = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        ratio = torch.where(weights != 0, logprobs - old, 0.0).exp()
        (-torch.minimum(ratio * weights, ratio.clamp(0.8, 1.2) * weights).sum()).backward()


def padded(rows: Sequence[Sequence[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, place], mask[number, place] = torch.tensor(row), 1
    return ids, mask


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--tasks", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--rollouts", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Of plain loops.")
def main(tasks: int, rollouts: int, repetitions: int, threads: int) -> None:
    torch.set_num_threads(threads)
    chat = ChatFormat(AutoTokenizer.from_pretrained(BASE_MODEL), str(BASE_MODEL))
    clock, plain, load = Clock(), Plain(), [task for task in questions(tasks) for _ in range(rollouts)]
    drawn, trained = 0.0, 0.0
    with running(BASE_MODEL) as local:
        client = tinker.ServiceClient(base_url=local.base_url, api_key=local.api_key)
        service = Service(client, local.model_name, chat)
        for turn in range(repetitions + 1):
            click.echo(f"repetition {turn} of {repetitions} (0 warms up)", err=True)
            samples = repetition(service, plain, clock, load=load, seed=10_000 * turn)
            if turn == 0:
                clock.seconds.clear()
            else:
                drawn += sum(len(s.tokens) for s in samples) / repetitions
                trained += sum(len(s.input) for s in samples) / repetitions
    report(clock, drawn, trained, 3 * len(load) * EQUAL_LENGTH)


def repetition(
    service: Service, plain: Plain, clock: Clock, *, load: list[dict[str, Any]], seed: int
) -> list[Sample]:
    """Everybody once; returns what was sampled."""
    samples: list[Sample] = []
    for kind, length in ((" equal", EQUAL_LENGTH), ("", None)):
        with clock.time("sample" + kind):
            phases = asyncio.run(service.rollout(load, seed, length))
        with clock.time("generate" + kind):
            plain.rollout(phases, merged=False)
        with clock.time("merged" + kind):
            plain.rollout(phases, merged=True)
        samples = [sample for phase in phases for sample in phase]
    with clock.time("update"):
        service.update(samples, clock)
    with clock.time("plain update"):
        plain.update(samples)
    with clock.time("sampling weights"):
        service.publish()
    return samples


def report(clock: Clock, drawn: float, trained: float, equal: float) -> None:
    compared = [
        ("rollout", "sample", "generate", "transformers, peft", drawn),
        ("rollout", "sample", "merged", "the same, weights merged", drawn),
        ("rollout, equal lengths", "sample equal", "generate equal", "transformers, peft", equal),
        ("rollout, equal lengths", "sample equal", "merged equal", "the same, weights merged", equal),
        ("update", "update", "plain update", "transformers, peft, torch", trained),
    ]
    click.echo("| | service, tokens/s | plain, tokens/s | service / plain | plain is |")
    click.echo("|---|---:|---:|---:|---|")
    for title, ours, theirs, what, tokens in compared:
        service, plain = tokens / clock.median(ours), tokens / clock.median(theirs)
        click.echo(f"| {title} | {service:,.0f} | {plain:,.0f} | {service / plain:.2f} | {what} |")
    click.echo("\n| stage of a step | seconds |\n|---|---:|")
    for stage in ("sample", "forward_backward", "optim_step", "sampling weights"):
        click.echo(f"| {stage} | {clock.median(stage):.3f} |")
    click.echo(f"\nA step draws {drawn:,.0f} tokens and trains on {trained:,.0f}.")


if __name__ == "__main__":
    main()
