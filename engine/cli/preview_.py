"""`rolegraph preview SPEC`: what each role is asked on real tasks, with no model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from rolegraph import Preview, Split

COLOURS = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}
"""Of who speaks, by the role of a message."""


@click.command("preview")
@click.argument("spec")
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
    from rich.text import Text

    out = Console(highlight=False)
    made_up = ", in [brackets]" if seen.answers == "made up" else ""
    out.print(Text(f"{seen.name}: no model was asked; answers are {seen.answers}{made_up}", style="dim"))
    if seen.no_tokens:
        out.print(Text(f"no tokens are shown: {seen.no_tokens}", style="yellow"))
    for task in seen.tasks:
        out.print()
        out.rule(Text(f"task {task.task.get('id', '')}", style="bold"))
        for name, value in task.task.items():
            if name != "id":
                shown = Text("hidden", style="magenta") if name in task.hidden else Text(str(value))
                out.print(Text(f"{name}: ", style="dim") + shown)
        for of in task.roles:
            out.print()
            count = f" × {of.role.count}" if of.role.count > 1 else ""
            out.print(Text(f"{of.role.name}{count}", style="bold"))
            for fact, value in of.facts.items():
                out.print(Text(f"{fact}: ", style="dim") + Text(value))
            for problem in of.problems:
                out.print(Text(problem, style="red"))
            for value in of.values:
                _panel(out, f"{of.facts['runs']} is asked", Text(value), "tool")
            for asked in of.asked:
                title = [of.who(asked), asked.note]
                title += [] if asked.tokens is None else [f"{asked.tokens:,} tokens"]
                head = " · ".join(filter(None, title))
                if asked.pieces:
                    styled = [(text, "reverse" if special else "") for text, special in asked.pieces]
                    _panel(out, head, Text.assemble(*styled), "user")
                    continue
                for message in asked.messages:
                    _panel(out, f"{head} · {message['role']}", Text(message["content"]), message["role"])
                for function in asked.functions:
                    out.print(Text(f"may call {function.name}: {function.description}", style="yellow"))
            if of.more:
                out.print(Text(f"and {of.more} more that differ, of later rounds or answers", style="dim"))
            if not (of.asked or of.values or of.problems or of.role.run):
                out.print(Text("not reached", style="dim"))


def _panel(out: Console, title: str, text: object, speaker: str) -> None:
    from rich.box import ROUNDED
    from rich.panel import Panel
    from rich.text import Text

    assert isinstance(text, Text)
    colour = COLOURS.get(speaker, "white")
    out.print(Panel(text, title=Text(title), title_align="left", box=ROUNDED, border_style=colour))
