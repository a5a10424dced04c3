"""Sampling through the local service, beside transformers with merged weights in one process.

    python benchmarks/sampling.py                           # a Markdown table
    python benchmarks/sampling.py --old FOLDER              # and the service of another checkout

The load is 128 answers of equal length to prompts of `solver_judge`'s solver, all in flight at once. The peer
is one call of `generate` on the same prompts, with a model whose adapter is merged. The service runs in a
process of its own and is asked through the Tinker SDK: by a request for each prompt, by one for each answer,
and by one for each of many policies. Everything takes turns; a cell is the median of the repetitions, and
ratios are to the peer's time in the same repetition.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["TINKER_TELEMETRY"] = "0"

import click
import tinker
import torch
from stub import solver_prompt
from tinker import types
from training import RANK, padded, questions
from transformers import AutoTokenizer

from rolegraph.engine.prompts.chat import ChatFormat
from rolegraph.local.launcher import BASE_MODEL, KEY_VARIABLE
from rolegraph.local.service.adapters import load_model

KEY = "tml-benchmark"
ANSWERS = 128
"""Answers in flight."""
PROMPTS, POLICIES = 16, 32


class Peer:
    """transformers, with the weights merged."""

    def __init__(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        self.model: Any = load_model(Path(BASE_MODEL), torch.float32).eval()
        self.ids, self.mask = padded(prompts, left=True)
        self.tokens = tokens

    @torch.inference_mode()
    def generate(self) -> None:
        """Sample an answer to each prompt, with its logits."""
        self.model.generate(
            input_ids=self.ids,
            attention_mask=self.mask,
            do_sample=True,
            top_k=0,
            min_new_tokens=self.tokens,
            max_new_tokens=self.tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )


@contextmanager
def serving(checkout: Path) -> Generator[tinker.ServiceClient]:
    """Serve the shipped model from a checkout, in a process of its own."""
    options = json.dumps({"model_dir": str(BASE_MODEL)})
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "rolegraph.local.service", options],
        env={**os.environ, "PYTHONPATH": str(checkout), KEY_VARIABLE: KEY},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child:
        url = f"http://127.0.0.1:{int(child.stdout.readline())}"
        yield tinker.ServiceClient(base_url=url, api_key=KEY)
        child.terminate()


class Service:
    """Sampling clients of a service, one for each of its policies."""

    def __init__(self, client: tinker.ServiceClient, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        name = str(BASE_MODEL)
        trainings = [
            client.create_lora_training_client(base_model=name, rank=RANK, seed=seed)
            for seed in range(POLICIES)
        ]
        self.policies = [t.result().save_weights_and_get_sampling_client().result() for t in trainings]
        self.inputs = [types.ModelInput.from_ints(list(prompt)) for prompt in prompts]
        self.tokens, self.seed = tokens, 0

    async def _sample(self, policies: Sequence[tinker.SamplingClient], requests: int) -> None:
        """Ask for all answers, in as many requests."""
        samples = ANSWERS // requests
        self.seed += 1
        futures: list[Awaitable[types.SampleResponse]] = []
        for number in range(requests):
            seed = ANSWERS * self.seed + number
            params = types.SamplingParams(max_tokens=self.tokens, seed=seed, stop=[])
            policy = policies[number % len(policies)]
            prompt = self.inputs[number * samples % len(self.inputs)]
            futures.append(policy.sample(prompt, samples, params))
        for answer in await asyncio.gather(*futures):
            assert [len(s.tokens) for s in answer.sequences] == [self.tokens] * samples

    async def by_prompt(self) -> None:
        """Ask once for the answers to a prompt."""
        await self._sample(self.policies[:1], PROMPTS)

    async def by_answer(self) -> None:
        """Ask once for each answer, as `rolegraph train` does: each has a seed of its own."""
        await self._sample(self.policies[:1], ANSWERS)

    async def by_policy(self) -> None:
        """Ask each policy once for its share of the answers."""
        await self._sample(self.policies, len(self.policies))


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option(
    "--old", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout."
)
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Of an answer.")
@click.option("--repetitions", type=click.IntRange(min=1), default=7, show_default=True)
def main(old: Path | None, tokens: int, repetitions: int) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    chat = ChatFormat(AutoTokenizer.from_pretrained(BASE_MODEL), str(BASE_MODEL))
    texts = [solver_prompt(task) for task in questions(PROMPTS) for _ in range(ANSWERS // PROMPTS)]
    prompts = [list(chat.prompt([{"role": "user", "content": text}]).ids) for text in texts]
    checkouts = {"old": old} if old else {}
    checkouts["new"] = Path(__file__).parent.parent
    with ExitStack() as stack:
        calls: dict[str, Callable[[], object]] = {"transformers": Peer(prompts, tokens).generate}
        for name, checkout in checkouts.items():
            client = stack.enter_context(serving(checkout))
            service = Service(client, prompts, tokens)
            for title, ask in (
                (f"{PROMPTS} requests", service.by_prompt),
                (f"{ANSWERS} requests", service.by_answer),
                (f"{POLICIES} policies", service.by_policy),
            ):
                calls[f"{name}, {title}"] = lambda ask=ask: asyncio.run(ask())
        gc.collect()
        gc.freeze()  # a client has no torch whose objects to walk
        report(measure(calls, repetitions), tokens)


def measure(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of each call in each repetition; the calls take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repetition in range(repetitions + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if repetition:  # the first warms up
                seconds[name].append(time.perf_counter() - started)
    return seconds


def report(seconds: dict[str, list[float]], tokens: int) -> None:
    peer = next(iter(seconds.values()))
    click.echo("| | tokens/s | of transformers' rate |\n|---|---:|---:|")
    for name, each in seconds.items():
        rate = ANSWERS * tokens / statistics.median(each)
        ratio = statistics.median(p / s for p, s in zip(peer, each, strict=True))
        click.echo(f"| {name} | {rate:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
