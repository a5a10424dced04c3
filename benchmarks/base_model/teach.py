"""Teach the base model, or measure one: `python benchmarks/base_model/teach.py --out DIR | --evaluate DIR`.

The shipped models are four courses of synthetic turns (`turns.py`), each from what the one before left:
MODEL_CARD.md has their options and what came of them. Needs torch 2.9 or newer, for its Muon.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from measure import load, measure, table
from tokenizer import CONTEXT, END, START, build_tokenizer, chat_prompt
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from turns import SHARES, Turn, turns

MUON_RATE, ADAM_RATE = 0.02, 0.003
"""Peak learning rates of the matrices, and of the embedding and the norms."""
WARM_UP = 100
"""Steps to the peak; the rates stay there, as the course ends long before all is learnt."""
MICRO = 16
"""Turns of like length that are run together."""
log = logging.getLogger(__name__)

Batch = list[tuple[torch.Tensor, torch.Tensor]]
"""Micro-batches of (token ids, labels), both [turns, tokens]; -100 labels what is not a response."""


@dataclass(frozen=True, slots=True)
class Course:
    """What one run does."""

    out: Path
    """The folder that gets the model."""
    steps: int = 500
    """Few: what a longer course would still teach is left to reinforcement learning."""
    batch: int = 96
    """Turns in a step, over all workers."""
    seed: int = 1
    workers: int = 3
    """Processes, each with one thread on a CPU; the figures hold for any number."""
    start: Path | None = None
    """A model to go on from; None starts from random weights."""
    judge: float = SHARES["judge"]
    """The share of the judge's turns."""
    guess: float = 0.0
    """The share of the turns that guess in place of working the answer out."""
    rate: float = 1.0
    """The share of the peak rates: less to add to what a model knows than to teach it."""
    cool: bool = False
    """Let the rate fall to zero over the second half."""


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Under a million parameters, random."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=cast("int", tokenizer.convert_tokens_to_ids(START)),
            eos_token_id=cast("int", tokenizer.eos_token_id),
            pad_token_id=cast("int", tokenizer.pad_token_id),
        )
    )
    model.set_attn_implementation("eager")  # Twice as fast as the fused kernel at this size on a CPU.
    return model


def batches(tokenizer: PreTrainedTokenizerFast, stream: Iterator[Turn], size: int) -> Iterator[Batch]:
    """Batches of `size` turns, sorted by length into micro-batches."""
    while True:
        part = list(islice(stream, size))
        prompts = tokenizer([chat_prompt(tokenizer, turn.prompt) for turn in part])["input_ids"]
        responses = tokenizer([turn.response + END for turn in part])["input_ids"]
        rows = sorted(zip(prompts, responses, strict=True), key=lambda row: len(row[0]) + len(row[1]))
        yield [
            _padded(rows[i : i + MICRO], cast("int", tokenizer.pad_token_id)) for i in range(0, size, MICRO)
        ]


def _padded(rows: list[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(prompt) + len(response) for prompt, response in rows) - 1
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response) - 1
        ids[row, :end] = torch.tensor([*prompt, *response[:-1]])
        labels[row, len(prompt) - 1 : end] = torch.tensor(response)
    return ids, labels


class Trainer:
    """A model and its optimizers: Muon for the matrices inside, Adam for the embedding and the norms."""

    def __init__(self, model: LlamaForCausalLM, workers: int = 1) -> None:
        self.model = model.train()
        self.workers = workers
        inside = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        edges = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(inside, momentum=0.95, weight_decay=0.01), MUON_RATE),
            (torch.optim.AdamW(edges, betas=(0.9, 0.98), weight_decay=0.0), ADAM_RATE),
        ]

    def step(self, batch: Batch, rate: float) -> tuple[float, float]:
        """One update at `rate` times the peak; gives back the loss and the share of tokens guessed right."""
        sums = torch.zeros(3)  # Loss, tokens right, tokens.
        for ids, labels in batch:
            ids, labels = ids.to(self.model.device), labels.to(self.model.device)
            asked = labels >= 0
            with torch.autocast(ids.device.type, torch.bfloat16):
                hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
                logits = self.model.lm_head(hidden[asked]).float()
            loss = cross_entropy(logits, labels[asked], reduction="sum")
            loss.backward()
            right = (logits.argmax(-1) == labels[asked]).sum()
            sums += torch.stack([loss.detach(), right.float(), asked.sum().float()]).cpu()
        loss_sum, right_sum, tokens = self._gather(sums)
        for optimizer, peak in self.optimizers:
            optimizer.param_groups[0]["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss_sum / tokens, right_sum / tokens

    def _gather(self, sums: torch.Tensor) -> list[float]:
        """Add up all workers' gradients and sums, divide by the tokens, clip to norm 1."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([*(g.flatten() for g in gradients), sums.to(gradients[0])])
        if self.workers > 1:
            dist.all_reduce(flat)
        flat, sums = flat[:-3], flat[-3:]
        flat /= sums[2] * (flat.norm() / sums[2]).clamp(min=1.0)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        return sums.tolist()


def teach(rank: int, course: Course, meeting: str) -> None:
    """One worker's part; the first one saves. Workers meet in the file `meeting` and add their gradients."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if course.workers > 1:
        torch.set_num_threads(1)
        where = f"file://{meeting}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=course.workers)
    if course.start is None:
        tokenizer = build_tokenizer()
        model = build_model(tokenizer, course.seed)
    else:
        model, tokenizer = load(course.start)
        model.set_attn_implementation("eager")
    if torch.cuda.is_available():
        model.cuda()  # pyright: ignore[reportCallIssue]
    trainer = Trainer(model, course.workers)
    size = course.batch // course.workers
    feed = batches(tokenizer, turns(course.seed * 1000 + rank, judge=course.judge, guess=course.guess), size)
    began = time.monotonic()
    for step in range(course.steps):
        rate = course.rate * min((step + 1) / WARM_UP, 1.0)
        if course.cool:
            rate *= min(1.0, 2 * (1 - step / course.steps))
        loss, right = trainer.step(next(feed), rate)
        if rank == 0 and step % 50 == 0:
            seconds = time.monotonic() - began
            log.info(f"{step:5d} {seconds:5.0f} s  loss {loss:.3f}  right {right:.3f}")
    if rank == 0:
        model.save_pretrained(course.out)
        tokenizer.save_pretrained(course.out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python benchmarks/base_model/teach.py", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="teach a model and put it there")
    what.add_argument("--evaluate", type=Path, metavar="DIR", help="measure the model that is there")
    for name, default in (("steps", 500), ("batch", 96), ("seed", 1), ("workers", 3), ("sets", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--start", type=Path, metavar="DIR", help="go on from the model that is there")
    parser.add_argument("--judge", type=float, default=SHARES["judge"], help="the share of judge turns")
    parser.add_argument("--guess", type=float, default=0.0, help="the share of turns that guess")
    parser.add_argument("--rate", type=float, default=1.0, help="the share of the usual learning rates")
    parser.add_argument("--cool", action="store_true", help="let the rate fall to zero in the second half")
    given = parser.parse_args()
    if given.evaluate:
        sys.stdout.write(table(measure(given.evaluate, given.sets)) + "\n")
        return
    course = Course(**{field.name: getattr(given, field.name) for field in fields(Course)})
    with tempfile.TemporaryDirectory() as folder:
        spawn(teach, (course, f"{folder}/meeting"), nprocs=course.workers)


if __name__ == "__main__":
    main()
