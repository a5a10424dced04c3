r"""Teach the base model, or measure one: `python benchmarks/base_model/teach.py --out DIR | --evaluate DIR`.

A course of turns that an expert plays (`played.py`), from random weights or from what an earlier course left.
Two courses make a teacher, which always works its answers out, and a base model, which guesses in half of its
turns, or in more (`played.GUESSES`), and so leaves something to find:

    teach.py --out teacher --minutes 64 --cool
    teach.py --out model --start teacher --guess 0.5 --slips 0.2 --rate 0.5 --cool --minutes 6 \
        --share drill=4 --share textarena=2 --seed 2

Needs torch 2.9 or newer, for its Muon.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

import torch
from expert import EXPERTS
from measure import measure, table
from played import SLIPS, Turn, turns
from tokenizer import CONTEXT, START, VOCABULARY, build_tokenizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rolegraph import api
from rolegraph.engine.prompts import ChatFormat, Tokenizer

MUON_RATE, ADAM_RATE = 0.02, 0.003
"""Peak learning rates of the matrices, and of the embedding and the norms."""
WARM_UP = 100
"""Steps to the peak."""
MICRO = 8192
"""Largest number of tokens, padding included, that are run together."""
LIKE = 1.25
"""Largest ratio of the lengths of turns that are run together: padding takes as long as text."""
KINDS = sorted({expert.__name__ for expert in EXPERTS.values()})
"""Kinds of turns; the log has the loss of each."""
TOKENIZER_TURNS = 4000
"""Turns from which a tokenizer is made."""
CHECKPOINT_SECONDS = 300
log = logging.getLogger(__name__)


class MicroBatch(NamedTuple):
    """Turns of like length: B of them, of at most T tokens."""

    ids: torch.Tensor
    """Token ids of prompt and response, [B, T]."""
    labels: torch.Tensor
    """Tokens to predict, [B, T]; -100 for those that are no response."""
    kinds: torch.Tensor
    """Kind of each turn, [B], as its position in `KINDS`."""


Batch = list[MicroBatch]


@dataclass(frozen=True, slots=True)
class Course:
    """Options of one run, which the command line takes under the same names."""

    out: Path
    """Folder that gets the model, every five minutes and at the end."""
    start: Path | None = None
    """Model to go on from; None starts from random weights."""
    steps: int = 1_000_000
    minutes: float = 60.0
    """The course ends with `steps` or `minutes`, whichever comes first."""
    batch: int = 64
    """Turns in a step."""
    width: int = 128
    """Width of the network, a multiple of 32; its feed-forward layers are three times as wide."""
    layers: int = 4
    vocabulary: int = VOCABULARY
    """Largest number of byte pairs of a new tokenizer."""
    seed: int = 1
    guess: float = 0.0
    """Share of the turns that guess in place of working the answer out."""
    slips: float = SLIPS
    """Share of the answers that other roles see and that are not taught."""
    rate: float = 1.0
    """Factor of the peak rates: less to add to what a model knows than to teach it."""
    cool: bool = False
    """Let the rate fall to zero over the second half."""
    threads: int = 1
    """Threads of torch."""
    loaders: int = 0
    """Processes that play turns; 0 plays them between the steps."""
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights of specs among the turns, in place of those of `turns.SHARES`."""

    def progress(self, step: int, seconds: float) -> float:
        """Return the part of the course that is done, from 0 to 1."""
        return max(step / self.steps, seconds / 60 / self.minutes)

    def turns(self, seed: int) -> Iterator[Turn]:
        """Return the course's turns."""
        return turns(seed, shares=self.shares, guess=self.guess, slips=self.slips)


def build_model(tokenizer: PreTrainedTokenizerFast, course: Course) -> LlamaForCausalLM:
    """Make a model of random weights."""
    torch.manual_seed(course.seed)
    heads = course.width // 32
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=course.width,
            intermediate_size=3 * course.width,
            num_hidden_layers=course.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=cast("int", tokenizer.convert_tokens_to_ids(START)),
            eos_token_id=cast("int", tokenizer.eos_token_id),
            pad_token_id=cast("int", tokenizer.pad_token_id),
        )
    )


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load a model in float32, and its tokenizer, from this machine alone."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


class Feed(IterableDataset[Batch]):
    """Batches of a course without end; each loading process has turns of its own."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, course: Course) -> None:
        self._tokenizer, self._course = tokenizer, course

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches."""
        worker = get_worker_info()
        made = self._course.turns(self._course.seed * 1000 + (worker.id if worker else 0))
        chat = ChatFormat(cast("Tokenizer", self._tokenizer), "the base model")
        while True:
            yield micro_batches(chat, list(islice(made, self._course.batch)))


def micro_batches(chat: ChatFormat, made: Sequence[Turn]) -> Batch:
    """Sort turns by length and pad them in groups; a turn that exceeds the context is left out."""
    rows = [
        (list(chat.prompt(turn.messages, turn.tools).ids), list(chat.turn(turn.response)), turn.kind)
        for turn in made
    ]
    groups: list[list[tuple[list[int], list[int], str]]] = []
    shortest = 0
    for row in sorted(rows, key=lambda row: len(row[0]) + len(row[1])):
        length = len(row[0]) + len(row[1])
        if length > CONTEXT:
            break
        if not groups or length > LIKE * shortest or (len(groups[-1]) + 1) * length > MICRO:
            groups.append([])
            shortest = length
        groups[-1].append(row)
    return [_padded(group) for group in groups]


def _padded(rows: Sequence[tuple[list[int], list[int], str]]) -> MicroBatch:
    width = max(len(prompt) + len(response) for prompt, response, _ in rows) - 1
    ids = torch.zeros((len(rows), width), dtype=torch.long)  # any token: nothing before it sees the padding
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, response, _) in enumerate(rows):
        end = len(prompt) + len(response) - 1
        ids[row, :end] = torch.tensor([*prompt, *response[:-1]])
        labels[row, len(prompt) - 1 : end] = torch.tensor(response)
    return MicroBatch(ids, labels, torch.tensor([KINDS.index(kind) for *_, kind in rows]))


class Trainer:
    """A model and its optimizers: Muon for the matrices inside, Adam for the embedding and the norms."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model.train()
        inside = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        edges = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(inside, momentum=0.95, weight_decay=0.01), MUON_RATE),
            (torch.optim.AdamW(edges, betas=(0.9, 0.98), weight_decay=0.0), ADAM_RATE),
        ]

    def step(self, batch: Batch, rate: float) -> torch.Tensor:
        """Make one update at `rate` times the peak.

        Returns:
            For each kind the sum of the losses, the number of tokens guessed right and the number of tokens,
            [kinds, 3].
        """
        device = self.model.device
        sums = torch.zeros((len(KINDS), 3), device=device)
        for ids, labels, kinds in batch:
            ids, labels, kinds = ids.to(device), labels.to(device), kinds.to(device)
            asked = labels >= 0
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden[asked])
            losses = cross_entropy(logits, labels[asked], reduction="none")
            losses.sum().backward()
            right = (logits.argmax(-1) == labels[asked]).float()
            figures = torch.stack([losses.detach(), right, torch.ones_like(right)], dim=1)
            sums.index_add_(0, kinds[:, None].expand_as(labels)[asked], figures)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= sums[:, 2].sum()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, peak in self.optimizers:
            optimizer.param_groups[0]["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return sums.cpu()


def teach(course: Course) -> None:
    """Run a course and save the model that comes out."""
    torch.set_num_threads(course.threads)
    if course.start is None:
        tokenizer = build_tokenizer(islice(course.turns(0), TOKENIZER_TURNS), course.vocabulary)
        model = build_model(tokenizer, course)
    else:
        model, tokenizer = load(course.start)
    if torch.cuda.is_available():
        model.cuda()  # pyright: ignore[reportCallIssue]
    log.info(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens")
    trainer = Trainer(model)
    loader = DataLoader(Feed(tokenizer, course), batch_size=None, num_workers=course.loaders)
    began = saved = logged = time.monotonic()
    sums = torch.zeros((len(KINDS), 3))
    for step, batch in enumerate(loader):
        now = time.monotonic()
        progress = course.progress(step, now - began)
        if progress >= 1 or now - logged > 30:
            log.info(f"{step:6d} {now - began:5.0f} s  {_line(sums)}")
            logged, sums = now, torch.zeros_like(sums)
        if progress >= 1 or now - saved > CHECKPOINT_SECONDS:
            model.save_pretrained(course.out)
            tokenizer.save_pretrained(course.out)
            saved = now
        if progress >= 1:
            break
        rate = course.rate * min((step + 1) / WARM_UP, 1.0)
        sums += trainer.step(batch, rate * (min(1.0, 2 * (1 - progress)) if course.cool else 1.0))


def _line(sums: torch.Tensor) -> str:
    """Write the mean loss a token and the share of tokens guessed right, over all turns and of each kind."""
    total, rows = sums.sum(0).tolist(), sums.tolist()
    each = (f"{kind} {row[0] / row[2]:.2f}" for kind, row in zip(KINDS, rows, strict=True) if row[2])
    tokens = max(1.0, total[2])
    return f"loss {total[0] / tokens:.3f}  right {total[1] / tokens:.3f}  {' '.join(each)}"


def main() -> None:
    """Run the command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(
        prog="python benchmarks/base_model/teach.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="teach a model and put it there")
    what.add_argument("--evaluate", type=Path, metavar="DIR", help="measure the model that is there")
    parser.add_argument("--start", type=Path, metavar="DIR", help="go on from the model that is there")
    for option in fields(Course):
        if isinstance(option.default, int | float) and option.type != "bool":
            parser.add_argument(f"--{option.name}", type=type(option.default), default=option.default)
    parser.add_argument("--cool", action="store_true", help="let the rate fall to zero in the second half")
    share = "weight of a spec among the turns; may be given several times"
    parser.add_argument("--share", action="append", default=[], metavar="SPEC=WEIGHT", help=share)
    parser.add_argument("--spec", action="append", help="spec to measure, instead of all")
    parser.add_argument("--tasks", type=int, default=16, help="tasks to measure each spec on")
    given = parser.parse_args()
    given.shares = {spec: float(weight) for spec, weight in (share.split("=") for share in given.share)}
    if given.evaluate:
        measured = measure(given.evaluate, given.spec or api.shipped_specs(), tasks=given.tasks)
        sys.stdout.write(table(*asyncio.run(measured)) + "\n")
        return
    teach(Course(**{field.name: getattr(given, field.name) for field in fields(Course)}))


if __name__ == "__main__":
    main()
