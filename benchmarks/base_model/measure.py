"""What a model folder can do on the shipped prompts: solvers, judge and validator, sampled and scored.

In goes a Hugging Face folder; out come figures over sets of 64 validation tasks with 2 rollouts each, two
solvers a rollout, at temperature 1. It samples in this process; the service and the engine are not used.
"""

# torch and transformers leave parts of their types unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from tokenizer import chat_prompt
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from turns import NOTHING, ask_judge, ask_solver, ask_validator

from rolegraph.roles.countdown import CountdownTask, generate, last_answer, reward

TASKS, ROLLOUTS, SOLVERS, BATCH = 64, 2, 2, 128
_VERDICT = re.compile(r"<verdict>(correct|incorrect)</verdict>")

Figures = Mapping[str, float]


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model in float32, and its tokenizer, from this machine alone."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


@torch.no_grad()
def respond(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    temperature: float = 1.0,
    max_tokens: int = 256,
) -> list[str]:
    """One response to each prompt, in order; temperature 0 is greedy. Draws from torch's global generator."""
    responses = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for begin in range(0, len(order), BATCH):
        part = order[begin : begin + BATCH]
        texts = [chat_prompt(tokenizer, prompts[i]) for i in part]
        batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        ids = model.generate(**batch, max_new_tokens=max_tokens, **how)  # pyright: ignore[reportAttributeAccessIssue]
        for i, row in zip(part, ids[:, batch["input_ids"].shape[1] :], strict=True):
            responses[i] = str(tokenizer.decode(row, skip_special_tokens=True))
    return responses


def measure(folder: Path, sets: int = 8) -> list[Figures]:
    """The figures of each set of 64 tasks × 2 rollouts, from its own seed."""
    model, tokenizer = load(folder)
    return [_one_set(model, tokenizer, seed) for seed in range(sets)]


def table(figures: Sequence[Figures]) -> str:
    """One line a figure: its mean over the sets, its smallest and its largest."""
    lines = ["| figure | mean | smallest | largest |", "| --- | --- | --- | --- |"]
    for name in figures[0]:
        values = [by_name[name] for by_name in figures]
        lines.append(f"| {name} | {fmean(values):.3f} | {min(values):.3f} | {max(values):.3f} |")
    return "\n".join(lines)


def _one_set(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> Figures:
    torch.manual_seed(seed)
    tasks = [task for task in generate(TASKS, seed=seed, split="validation") for _ in range(ROLLOUTS)]
    solved = respond(model, tokenizer, [ask_solver(task) for task in tasks for _ in range(SOLVERS)])
    answers = [last_answer(text) for text in solved]
    tagged = [NOTHING if answer is None else f"<answer>{answer}</answer>" for answer in answers]
    actions = [tagged[i : i + SOLVERS] for i in range(0, len(tagged), SOLVERS)]
    right = [[_right(task, action) for action in pair] for task, pair in zip(tasks, actions, strict=True)]

    judged = respond(model, tokenizer, list(map(ask_judge, tasks, actions)))
    choices = [_index(text) for text in judged]
    picks = ["" if c is None else pair[c] for c, pair in zip(choices, actions, strict=True)]
    picked = [_right(task, pick) for task, pick in zip(tasks, picks, strict=True)]

    checked = respond(model, tokenizer, list(map(ask_validator, tasks, picks)))
    verdicts = [match and match[1] for match in map(_VERDICT.search, checked)]
    agreed = [v == ("correct" if good else "incorrect") for v, good in zip(verdicts, picked, strict=True)]

    return {
        "solver_acc": fmean(map(fmean, right)),
        "judge_acc": fmean(picked),
        "judge right where its two candidates differ": fmean(
            [pick for pick, pair in zip(picked, right, strict=True) if len(set(pair)) > 1]
        ),
        "validator verdict right": fmean(agreed),
        "solver turns that show steps": fmean(not text.startswith("<") for text in solved),
        "judge turns that check": fmean(not text.startswith("<") for text in judged),
        "validator turns that check": fmean(not text.startswith("<") for text in checked),
        "solver well-formed": fmean(answer is not None for answer in answers),
        "judge well-formed": fmean(choice is not None for choice in choices),
        "validator well-formed": fmean(verdict is not None for verdict in verdicts),
        "solver tokens": _tokens(tokenizer, solved),
        "judge tokens": _tokens(tokenizer, judged),
        "validator tokens": _tokens(tokenizer, checked),
    }


def _right(task: CountdownTask, action: str) -> bool:
    return reward(action, task["nums"], task["target"]) > 0


def _index(text: str) -> int | None:
    answer = last_answer(text)
    return int(answer) - 1 if answer in ("1", "2") else None


def _tokens(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> float:
    return fmean(len(ids) + 1 for ids in tokenizer(list(texts))["input_ids"])
