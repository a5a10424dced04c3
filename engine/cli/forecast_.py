"""`rolegraph forecast SPEC`: what a first step of training comes to, before it is paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from rolegraph.engine.cli import completion, options
from rolegraph.engine.cli.output import OutputOptions, flags, speaking

if TYPE_CHECKING:
    from rich.table import Table

    from rolegraph import Forecast, Price, RoleForecast

KINDS = {"in": "prompt", "out": "response", "train": "train"}
"""What a price is called, and what it is of."""


@click.command("forecast")
@click.argument("spec", shell_complete=completion.specs)
@options.overrides
@click.option(
    "--from",
    "run",
    type=click.Path(path_type=Path),
    metavar="RUN",
    shell_complete=completion.runs,
    help="Tell it from the episodes of a run, or of a training's first step.",
)
@options.optional_count("--probe", "Tell it from about so many episodes, made now, such as 32.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="in=N,out=N[,train=N]",
    help="Money for a million tokens; or a YAML file of such prices by model. May be given again.",
)
@options.model("What would be trained: local[:FOLDER] or tinker:NAME. Default: the spec's model.")
@options.base_url("The endpoint, for a probe.")
@options.imports
@options.allow
@options.seed("Of the probe's draws.")
@speaking
def command(
    spec: str,
    overrides: tuple[str, ...],
    run: Path | None,
    probe: int | None,
    prices: tuple[str, ...],
    model: str | None,
    base_url: str | None,
    imports: tuple[Path, ...],
    allow: tuple[str, ...],
    seed: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Say what a first step of training SPEC will take and teach: calls, tokens, time, groups, memory, cost.

    Without --from and --probe there are only the bounds of the spec.
    """
    import shlex

    import rolegraph as rg
    from rolegraph.engine.cli.waiting import ProgressLine, run_until_done

    output = OutputOptions(quiet, as_json)
    table = _prices(prices)
    flow = rg.load(spec, *overrides, model=model, base_url=base_url, imports=imports, allow=allow)
    with ProgressLine(output, "looking at the spec …") as waiting:
        found = run_until_done(
            rg.forecast_async(flow, probe=probe, run=run, prices=table, seed=seed, observe=waiting.observe)
        )
    words = shlex.join([spec, *overrides, *flags(imports, allow, model, base_url)])
    told = probe is not None or run is not None
    following = [f"rolegraph train {words}" if told else f"rolegraph forecast {words} --probe 32"]
    _show(found, output)
    output.next(*following)
    output.document({**_document(found), "next": following})
    return 0


def _prices(written: Sequence[str]) -> dict[str, Price]:
    """Prices by model; those given without one are `default`."""
    import rolegraph as rg

    table: dict[str, rg.Price] = {}
    for text in written:
        if "=" in text and not Path(text).is_file():
            table["default"] = _price(_parts(text), text)
            continue
        for name, row in _price_file(Path(text)).items():
            table[name] = _price(row, f"{text}: {name}")
    return table


def _parts(text: str) -> dict[str, object]:
    """What `in=1,out=2` says."""
    words = (part.partition("=") for part in text.split(","))
    return {key: amount for key, _, amount in words}


def _price_file(file: Path) -> Mapping[str, Mapping[str, object]]:
    """A mapping of models to prices, or the price of all."""
    import yaml

    from rolegraph import UsageError

    try:
        read: object = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not YAML"
        raise UsageError(f"--price: cannot read {file}: {reason}") from None
    if not isinstance(read, dict):
        raise UsageError(f"--price: {file} is no mapping; expected, say, openai:gpt-5: {{in: 1, out: 10}}")
    rows = cast("dict[str, Any]", read)
    if rows.keys() <= KINDS.keys():
        return {"default": rows}
    for name, row in rows.items():
        if not isinstance(row, dict):
            raise UsageError(f"--price: {file}: {name} has no price; expected {{in: 1, out: 10}}")
    return rows


def _price(row: Mapping[str, object], where: str) -> Price:
    import rolegraph as rg

    amounts: dict[str, float] = {}
    for key, amount in row.items():
        try:
            amounts[KINDS[key]] = float(str(amount))
        except (KeyError, ValueError):
            hint = "expected in=, out= and train=, each with a number, as in in=0.4,out=1.2"
            raise rg.UsageError(f"--price: {where!r} says {key}={amount}; {hint}") from None
    return rg.Price(**amounts)


def _document(found: Forecast) -> dict[str, Any]:
    """For a program; docs/command.md says what each key is."""
    from dataclasses import asdict

    return {
        **asdict(found),
        "episodes": found.episodes,
        "prompt_tokens": found.tokens("prompt"),
        "response_tokens": found.tokens("response"),
    }


def _show(found: Forecast, output: OutputOptions) -> None:
    import rolegraph as rg

    out = output.found()
    out.print(f"a step: {found.tasks} tasks × {found.rollouts} rollouts = {found.episodes:,} episodes")
    out.print(
        f"at most {found.calls_at_most:,} model calls, {found.chain} of them one after another; "
        f"told from {found.source}",
        markup=False,
    )
    out.print(_table(found))
    if (tokens := found.tokens()) is not None:
        out.print(f"tokens: about {found.tokens('prompt') or 0:,.0f} asked, {tokens:,.0f} answered")
    if found.seconds is not None:
        from rolegraph.engine.cli.waiting import clock

        out.print(f"time: about {clock(found.seconds)} at the speed of those episodes")
    if found.cost is not None:
        out.print(f"cost: about {found.cost:,.4f} at those prices")
    for policy, adapter in found.adapters.items():
        out.print(
            f"memory: the adapter of {policy} has {adapter.parameters:,} parameters, "
            f"{adapter.bytes / 2**20:,.1f} MiB with gradients and Adam's state"
        )
    for warning in found.warnings:
        output.warnings().print(rg.printable(f"warning: {warning}"), style="yellow", markup=False)


def _table(found: Forecast) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("role", style="bold", no_wrap=True)
    for heading in ("calls ≤", "tokens in", "out", "groups", "of", "will teach", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in found.roles.items():
        table.add_row(name, f"{row.calls_at_most:,}", *_cells(row))
    return table


def _cells(row: RoleForecast) -> list[str]:
    asked, answered, taught = row.prompt_tokens, row.response_tokens, row.teaching
    small, large = row.group_sizes or (0, 0)
    return [
        f"{asked.mean:,.0f}" if asked else "–",
        f"{answered.mean:,.0f}" if answered else f"≤ {row.response_tokens_at_most:,}",
        f"{row.groups:,.0f}" if row.groups is not None else "–",
        "–" if not row.group_sizes else f"{small}" if small == large else f"{small}–{large}",
        f"{taught.mean:.0%}, {taught.low:.0%} to {taught.high:.0%}" if taught else "–",
        f"{row.share:.0%}" if row.share is not None else "–",
    ]
