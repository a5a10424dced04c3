"""`rolegraph preview SPEC`: what each role is asked on real tasks, with no model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rolegraph.engine.cli import completion, options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rolegraph import Message, Preview, RolePrompts, Split

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
COLOURS = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}
"""Of who speaks, by the role of a message."""


@click.command("preview")
@click.argument("spec", shell_complete=completion.specs)
@options.overrides
@options.count("--limit", 1, "How many tasks.")
@click.option(
    "--split",
    type=click.Choice(["validation", "train"]),
    help="Which tasks. Default: validation, if the spec has it.",
)
@click.option(
    "--with",
    "recorded",
    type=click.Path(path_type=Path),
    metavar="EPISODES",
    help="Answers and tasks of a run: its folder, or its episodes.jsonl. Default: made-up answers.",
)
@click.option("--role", "only", multiple=True, metavar="NAME", help="Only this role; may be given again.")
@click.option(
    "--tokens", is_flag=True, help="Show the chat template's special tokens, and how many tokens there are."
)
@options.model("Whose chat template --tokens shows: local[:FOLDER]. Default: the spec's.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page that opens offline, and show nothing here.",
)
@options.imports
@options.allow
def command(
    spec: str,
    overrides: tuple[str, ...],
    limit: int,
    split: Split | None,
    recorded: Path | None,
    only: tuple[str, ...],
    tokens: bool,
    model: str | None,
    html: Path | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
) -> int:
    """Show what each role of SPEC is asked, in every round and branch that differs; no model is asked.

    Answers that later roles see are made up, in [brackets], or come from a run with --with. Hidden fields of
    a task stay hidden.
    """
    import rolegraph as rg

    flow = rg.load(spec, *overrides, model=model, imports=imports, allow=allow)
    names = [role.name for role in flow.plan.roles]
    for name in only:
        if name not in names:
            hint = rg.did_you_mean(name, names) or f"there is {', '.join(names)}"
            raise rg.UsageError(f"--role: there is no role {name!r}; {hint}")
    seen = rg.preview(flow, split, limit=limit, recorded=recorded, tokens=tokens)
    if only:
        seen = seen.of(*only)
    if html is not None:
        click.echo(str(seen.save(html)))
    else:
        _show(seen)
    return 0


def _show(seen: Preview) -> None:
    from rich.console import Console

    out = Console(highlight=False)
    made_up = ", in [brackets]" if seen.answers == "made up" else ""
    out.print(_text(f"{seen.name}: no model was asked; answers are {seen.answers}{made_up}", "dim"))
    if seen.no_tokens:
        out.print(_text(f"no tokens are shown: {seen.no_tokens}", "yellow"))
    for task in seen.tasks:
        out.print()
        out.rule(_text(f"task {task.task.get('id', '')}", "bold"))
        for name, value in task.task.items():
            if name != "id":
                shown = _text("hidden", "magenta") if name in task.hidden else _text(value)
                out.print(_text(f"{name}: ", "dim") + shown)
        for of in task.roles:
            _show_role(out, of)


def _show_role(out: Console, of: RolePrompts) -> None:
    from rich.text import Text

    out.print()
    out.print(_text(f"{of.role.name} × {of.role.count}" if of.role.count > 1 else of.role.name, "bold"))
    for fact, value in of.facts.items():
        out.print(_text(f"{fact}: ", "dim") + _text(value))
    for problem in of.problems:
        out.print(_text(problem, "red"))
    for value in of.values:
        _panel(out, f"{of.facts['runs']} is asked", _text(value), "tool")
    for asked in of.asked:
        tokens = "" if asked.tokens is None else f"{asked.tokens:,} tokens"
        head = " · ".join(filter(None, (of.who(asked), asked.note, tokens)))
        if asked.pieces:
            parts = [_text(text, "reverse" if special else "") for text, special in asked.pieces]
            _panel(out, head, Text.assemble(*parts), "user")
            continue
        for message in asked.messages:
            _panel(out, f"{head} · {message['role']}", _text(_said(message)), message["role"])
        for function in asked.functions:
            out.print(_text(f"may call {function.name}: {function.description}", "yellow"))
    if of.more:
        out.print(_text(f"and {of.more} more that differ, of later rounds or other answers", "dim"))
    if not (of.asked or of.values or of.problems or of.role.run):
        out.print(_text("not reached", "dim"))


def _said(message: Message) -> str:
    """All of a message: reasoning, text, and the calls of tools."""
    calls = [
        f"{call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls", ())
    ]
    return "\n".join(filter(None, (message.get("reasoning"), message["content"], *calls)))


def _panel(out: Console, title: str, text: Text, speaker: str) -> None:
    from rich.panel import Panel

    out.print(Panel(text, title=_text(title), title_align="left", border_style=COLOURS.get(speaker, "white")))


def _text(value: object, style: str = "") -> Text:
    """A stranger's text, which cannot steer the terminal."""
    from rich.text import Text

    return Text(_CONTROL.sub("\ufffd", str(value)), style=style)
