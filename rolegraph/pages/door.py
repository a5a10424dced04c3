"""Commands that look at runs, and options of `rolegraph export` that write chats: `--sft` and its filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import Door, Verb


def _with_chats(
    command: Callable[..., Any],
    *,
    run: str,
    sft: Path | None,
    hidden: bool,
    force: bool,
    where: Mapping[str, str],
    **words: Any,
) -> Any:
    if sft is None:
        if hidden:
            raise api.UsageError("--hidden needs --sft FILE.jsonl")
        return command(run=run, where=where, **words)
    if any(words.values()):
        raise api.UsageError("--sft writes episodes and stands without options for weights and spans")
    from rolegraph.pages.viewing import export_chats

    click.echo(f"{sft}: {export_chats(run, sft, hidden=hidden, force=force, **where)} chats")
    return 0


_FILTERS = options.filters(
    role="With --sft: chats of this role; else episodes with this role.",
    reward="Episodes with a reward in this range, such as 1: for 1 or more.",
    task="Episodes of tasks whose id contains this.",
    text="Episodes with this text.",
    where="Episodes for which this expression holds, such as 'not judge.right'.",
    split="Of a training: train or validation. Default with --sft: train.",
    step="Of a training: episodes of this step.",
)
_CHATS = options.bundle(
    _with_chats,
    options.path("--sft", "sft", "FILE.jsonl", "Write chats for supervised fine-tuning in place of weights."),
    options.force,
    options.flag("--hidden", "With --sft: also chats that may quote fields that no prompt may show."),
)


def _with_episodes(command: Callable[..., Any]) -> Callable[..., Any]:
    return _FILTERS(_CHATS(command))


_COMMANDS = "rolegraph.pages.commands"
DOOR = Door(
    {
        "graph": Verb("Author", "Draw the roles of a spec.", _COMMANDS),
        "runs": Verb("Look", "List runs and trainings with their figures.", _COMMANDS),
        "view": Verb("Look", "Show the episodes of runs in the browser.", _COMMANDS),
        "report": Verb("Look", "Write a training as one page that opens offline.", _COMMANDS),
        "compare": Verb("Look", "Compare runs, trainings or specs.", _COMMANDS),
    },
    {"export": _with_episodes},
)
