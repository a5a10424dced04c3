"""CPU time and memory of a model folder in the local service, beside peft + transformers and llama.cpp.

    python benchmarks/real_model.py local:smollm2-135m
    python benchmarks/real_model.py local:smollm2-135m --gguf FILE      # needs llama-cpp-python

Each system has a process of its own with one thread. The cases take turns; a cell is the median of the
repetitions. The peers get the same tokens, the same adapter of rank 32 on every linear layer, the same loss
and optimizer. llama.cpp samples from the base model, in the quantization of the file. Prints a Markdown
table.
"""

# torch, peft and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import click
import torch

from rolegraph.engine.shipped import model_folder

RANK = 32
PEER_BATCH = 8
"""Sequences of a pass of peft + transformers."""
VOCABULARY = 49_152


@dataclass(frozen=True)
class Case:
    """An update from, or the sampling of, `answers` answers to each of some prompts of random tokens."""

    title: str
    update: bool
    prompts: int
    answers: int
    prompt: int
    shortest: int
    longest: int

    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Return the prompt and the answer of each sequence."""
        draw = random.Random(0)

        def tokens(count: int) -> list[int]:
            return [draw.randrange(20, VOCABULARY) for _ in range(count)]

        made: list[tuple[list[int], list[int]]] = []
        for _ in range(self.prompts):
            prompt = tokens(self.prompt)
            for _ in range(self.answers):
                made.append((prompt, tokens(draw.randint(self.shortest, self.longest))))
        return made


CASES = {
    "update": Case("update, 8 prompts × 8 answers of 10 to 33 tokens", True, 8, 8, 70, 10, 33),
    "update-short": Case(
        "update, 8 prompts of 79 tokens × 8 answers of 7 to 19 tokens", True, 8, 8, 79, 7, 19
    ),
    "update-few": Case("update, 2 prompts × 8 answers of 10 to 33 tokens", True, 2, 8, 70, 10, 33),
    "update-long": Case("update, 4 unlike prompts, 200 tokens each", True, 4, 1, 70, 200, 200),
    "sample": Case("sampling, 4 prompts × 8 answers of 16 tokens", False, 4, 8, 70, 16, 16),
    "sample-long": Case("sampling, 8 unlike prompts, 200 tokens each", False, 8, 1, 70, 200, 200),
}


class System(ABC):
    """A way to compute the cases; each returns the number of tokens that it computed."""

    @abstractmethod
    def update(self, case: Case) -> int: ...

    @abstractmethod
    def sample(self, case: Case) -> int: ...


class Rolegraph(System):
    """The compute part of the local service."""

    def __init__(self, source: str) -> None:
        from rolegraph.local.service.local_model import LocalModel
        from rolegraph.local.service.lora import LoraShape
        from rolegraph.local.service.trainer import TrainingRun

        self.model = LocalModel(model_folder(source), threads=1)
        self.run = TrainingRun(self.model, LoraShape(RANK, seed=0))

    def update(self, case: Case) -> int:
        from rolegraph.local.service.bodies import AdamSettings
        from rolegraph.local.service.prefixes import rows_of
        from rolegraph.local.service.trainer import Datum

        data: list[Datum] = []
        for number, (prompt, answer) in enumerate(case.sequences()):
            tokens, counted = [*prompt, *answer], torch.zeros(len(prompt) + len(answer) - 1)
            counted[len(prompt) - 1 :] = 1
            inputs = {
                "target_tokens": torch.tensor(tokens[1:]),
                "logprobs": counted * -10,
                "advantages": counted * (-1) ** number,
            }
            data.append(Datum(tokens[:-1], inputs))
        self.run.forward_backward(data, "importance_sampling", {})
        self.run.step(AdamSettings(learning_rate=1e-4))
        return sum(map(len, rows_of([datum.tokens for datum in data], share=True)))

    def sample(self, case: Case) -> int:
        from rolegraph.local.service.batcher import Batcher, SampleJob
        from rolegraph.local.service.sampling import SampleRequest

        self.model.freeze(self.run.adapter)
        batcher = Batcher(self.model, lambda _: self.run.adapter)
        pairs = case.sequences()
        for prompt, answer in pairs:
            batcher.add(SampleJob("adapter", [SampleRequest(prompt, len(answer))]))
        while batcher.busy:
            batcher.step()
        return case.prompts * case.prompt + sum(len(answer) - 1 for _, answer in pairs)


class Peft(System):
    """peft + transformers: padded batches, a loss over all logits, and `generate`."""

    def __init__(self, source: str) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        plain: Any = AutoModelForCausalLM.from_pretrained(model_folder(source), dtype=torch.float32)
        kinds = sorted({n.split(".")[-1] for n, m in plain.named_modules() if isinstance(m, torch.nn.Linear)})
        self.model: Any = get_peft_model(
            plain, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=kinds, ensure_weight_tying=False)
        )
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0
        )

    def update(self, case: Case) -> int:
        pairs, computed = case.sequences(), 0
        for start in range(0, len(pairs), PEER_BATCH):
            batch = pairs[start : start + PEER_BATCH]
            ids, mask = _padded([[*prompt, *answer] for prompt, answer in batch])
            logits = self.model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1]).logits
            logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            counted = mask[:, 1:].float()
            counted[:, : case.prompt - 1] = 0
            signs = torch.tensor([(-1) ** n for n in range(start, start + len(batch))])
            (-(logprobs + 10).exp() * counted * signs[:, None]).sum().backward()
            computed += int(mask[:, :-1].sum())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return computed

    @torch.inference_mode()
    def sample(self, case: Case) -> int:
        pairs = case.sequences()
        ids, mask = _padded([prompt for prompt, _ in pairs])
        count = case.longest
        self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            min_new_tokens=count,
            max_new_tokens=count,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return len(pairs) * (case.prompt + count - 1)


class LlamaCpp(System):
    """llama.cpp's decoder with a sequence for each answer; equal prompts are computed once."""

    def __init__(self, source: str) -> None:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        self.lib: Any = llama_cpp
        self.silence = self.lib.llama_log_callback(lambda *_: None)  # C keeps no reference
        self.lib.llama_log_set(self.silence, None)
        self.lib.llama_backend_init()
        options = self.lib.llama_model_default_params()
        self.model = self.lib.llama_model_load_from_file(source.encode(), options)

    def update(self, case: Case) -> int:
        raise NotImplementedError

    def sample(self, case: Case) -> int:
        lib, pairs = self.lib, case.sequences()
        options = lib.llama_context_default_params()
        options.n_ctx, options.n_seq_max = len(pairs) * (case.prompt + case.longest), len(pairs)
        options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = 1
        options.kv_unified = True
        context = lib.llama_init_from_model(self.model, options)
        memory = lib.llama_get_memory(context)
        chooser = lib.llama_sampler_init_dist(1)
        last: list[int] = []
        for first in range(0, len(pairs), case.answers):
            self._decode(context, [(token, place, first) for place, token in enumerate(pairs[first][0])])
            for number in range(first, first + case.answers):
                if number > first:
                    lib.llama_memory_seq_cp(memory, first, number, 0, -1)
                last.append(lib.llama_sampler_sample(chooser, context, -1))
        for place in range(case.prompt, case.prompt + case.longest - 1):
            self._decode(context, [(token, place, number) for number, token in enumerate(last)], every=True)
            last = [lib.llama_sampler_sample(chooser, context, number) for number in range(len(last))]
        lib.llama_free(context)
        return case.prompts * case.prompt + len(pairs) * (case.longest - 1)

    def _decode(self, context: Any, tokens: Sequence[tuple[int, int, int]], *, every: bool = False) -> None:
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for n, (token, place, sequence) in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, place, 1
            batch.seq_id[n][0], batch.logits[n] = sequence, every or n == len(tokens) - 1
        assert self.lib.llama_decode(context, batch) == 0
        self.lib.llama_batch_free(batch)


SYSTEMS: dict[str, Callable[[str], System]] = {
    "Rolegraph": Rolegraph,
    "peft + transformers": Peft,
    "llama.cpp": LlamaCpp,
}


def _padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = [torch.tensor(row) for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(tensors, batch_first=True), pad([torch.ones_like(row) for row in tensors], batch_first=True)


def child(name: str, source: str) -> None:
    """Answer each line of standard input, a case, with its CPU seconds, its tokens and the peak in GB."""
    torch.set_num_threads(1)
    system = SYSTEMS[name](source)
    for line in sys.stdin:
        case = CASES[line.strip()]
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        started = time.process_time()
        tokens = system.update(case) if case.update else system.sample(case)
        seconds = time.process_time() - started
        status = Path("/proc/self/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) / 1e6
        print(seconds, tokens, peak, flush=True)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("model")
@click.option("--gguf", type=click.Path(exists=True), help="The same model for llama.cpp.")
@click.option("--case", "names", multiple=True, type=click.Choice([*CASES]), default=[*CASES])
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--child", "system", type=click.Choice([*SYSTEMS]), hidden=True)
def main(model: str, gguf: str | None, names: Sequence[str], repetitions: int, system: str | None) -> None:
    if system is not None:
        return child(system, model)
    sources = {"Rolegraph": model, "peft + transformers": model, **({"llama.cpp": gguf} if gguf else {})}
    results: dict[tuple[str, str], list[list[float]]] = {}
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, source, "--child", name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name, source in sources.items()
        }
        for _ in range(repetitions):
            for case in names:
                for name, process in children.items():
                    if not (CASES[case].update and name == "llama.cpp"):
                        results.setdefault((case, name), []).append(ask(process, case))
                        click.echo(f"{case}, {name}: {results[case, name][-1]}", err=True)
        for process in children.values():
            assert process.stdin is not None
            process.stdin.close()
    report(results)


def ask(process: subprocess.Popen[str], case: str) -> list[float]:
    """Let a process compute a case; return its CPU seconds, its tokens and the peak in GB."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{case}\n")
    process.stdin.flush()
    return [float(value) for value in process.stdout.readline().split()]


def report(results: dict[tuple[str, str], list[list[float]]]) -> None:
    click.echo("| | | tokens computed | CPU s | of peft's | ms per computed token | peak, GB |")
    click.echo("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for (case, name), rows in results.items():
        seconds, tokens = statistics.median(row[0] for row in rows), rows[0][1]
        peers = results[case, "peft + transformers"]
        ratio = statistics.median(row[0] / peer[0] for row, peer in zip(rows, peers, strict=True))
        click.echo(
            f"| {CASES[case].title} | {name} | {tokens:,.0f} | {seconds:.1f} | {ratio:.2f} "
            f"| {1000 * seconds / tokens:.1f} | {max(row[2] for row in rows):.2f} |"
        )


if __name__ == "__main__":
    main()
