"""`rolegraph preview`: the prompts of each role."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import rolegraph as rg
from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.rows import RowOutput, row_output
from rolegraph.outlook.preview import message_text

if TYPE_CHECKING:
    from rolegraph.outlook.preview import RolePrompts
    from rolegraph.outlook.previewing import Preview

COLOURS = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}
"""Colour of a message's frame, by the message's role."""


@click.command("preview")
@options.source("The model of this machine whose chat template --tokens shows. Default: the spec's.")
@options.count("--limit", 1, "Number of tasks.")
@options.split
@options.path("--with", "recorded", "EPISODES", "Answers and tasks of a run. Default: made-up answers.")
@options.repeated("--role", "only", "NAME", "Only this role.")
@options.flag("--tokens", "Show the chat template's special tokens, and the number of tokens.")
@options.path("--html", "html", "FILE", "Write a page that opens offline, and print nothing here.")
@options.replaces("html")
@row_output
def preview_command(
    source: api.Source, only: tuple[str, ...], html: Path | None, output: RowOutput, **settings: Any
) -> int:
    """Show the prompts of each role of SPEC, in every round and branch that differs, without a model.

    Answers that later roles see are made up, in [brackets], or come from a run with --with: its folder, or
    its episodes.jsonl. Hidden fields of a task stay hidden.
    """
    flow = api.open_source(source)
    names = [role.name for role in flow.plan.roles]
    for name in only:
        if name not in names:
            hint = api.did_you_mean(name, names) or f"expected one of {', '.join(names)}"
            raise api.UsageError(f"--role: no role {name!r}; {hint}")
    preview = rg.preview(flow, **settings)
    if only:
        preview = preview.of(*only)
    if html is not None:
        click.echo(str(preview.save(html)))
    else:
        output.write(preview.records, lambda _: _show(preview))
    return 0


def _show(preview: Preview) -> None:
    console = Console(highlight=False)
    made_up = ", in [brackets]" if preview.answers == "made up" else ""
    console.print(_text(f"{preview.name}: no model was asked; answers are {preview.answers}{made_up}", "dim"))
    if preview.no_tokens:
        console.print(_text(f"no tokens are shown: {preview.no_tokens}", "yellow"))
    for task in preview.tasks:
        console.print()
        console.rule(_text(f"task {task.task.get('id', '')}", "bold"))
        for name, value in task.task.items():
            if name != "id":
                shown_value = _text("hidden", "magenta") if name in task.hidden else _text(value)
                console.print(_text(f"{name}: ", "dim") + shown_value)
        for role_prompts in task.roles:
            _show_role(console, role_prompts)


def _show_role(out: Console, of: RolePrompts) -> None:
    out.print()
    out.print(_text(f"{of.role.name} × {of.role.count}" if of.role.count > 1 else of.role.name, "bold"))
    for fact, value in of.facts.items():
        out.print(_text(f"{fact}: ", "dim") + _text(value))
    for problem in of.problems:
        out.print(_text(problem, "red"))
    for value in of.values:
        verb = "writes" if of.facts["runs"] == "text" else "is asked"
        _panel(out, f"{of.facts['runs']} {verb}", _text(value), "tool")
    for prompt in of.asked:
        tokens = "" if prompt.tokens is None else f"{prompt.tokens:,} tokens"
        heading = " · ".join(filter(None, (of.who(prompt), prompt.note, tokens)))
        if prompt.pieces:
            text_parts = [_text(text, "reverse" if is_special else "") for text, is_special in prompt.pieces]
            _panel(out, heading, Text.assemble(*text_parts), "user")
            continue
        for message in prompt.messages:
            _panel(out, f"{heading} · {message['role']}", _text(message_text(message)), message["role"])
        for function in prompt.functions:
            out.print(_text(f"may call {function.name}: {function.description}", "yellow"))
    if of.more:
        out.print(_text(f"and {of.more} more that differ, of later rounds or other answers", "dim"))
    if not (of.asked or of.values or of.problems or of.role.run):
        out.print(_text("not reached", "dim"))


def _panel(out: Console, title: str, text: Text, speaker: str) -> None:
    out.print(Panel(text, title=_text(title), title_align="left", border_style=COLOURS.get(speaker, "white")))


def _text(value: object, style: str = "") -> Text:
    """Return a value as rich Text in a style, without control characters that could steer the terminal."""
    return Text(api.printable(str(value)), style=style)
