"""Options and arguments that several verbs share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

import rolegraph as rg
from rolegraph.engine.cli import completion
from rolegraph.engine.cli.output import OutputOptions, own_stream

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
SOURCE_OPTIONS = ("imports", "allow", "model", "base_url")
"""Options of a command that are passed to it in its Source."""


def source(model: str = "", base_url: str = "", *, required: bool = True) -> Decorator[Callable[..., Any]]:
    """Add SPEC, its overrides, `--import`, `--allow`, and options for the model; pass one Source as `source`.

    Args:
        model: Help text of `--model`; no such option where it is empty.
        base_url: Help text of `--base-url`; no such option where it is empty.
        required: Whether SPEC must be given; otherwise the source's spec may be None.

    Returns:
        A decorator for the command's function.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_source(*, spec: str | None, overrides: tuple[str, ...], **words: Any) -> Any:
            options = {name: words.pop(name) for name in SOURCE_OPTIONS if name in words}
            rg.keep_services(0 if words.pop("fresh", True) else _warm_seconds())
            code = command(source=in_project(rg.Source.of(spec, *overrides, **options)), **words)
            if rg.has_started_service() and not words.get("output", OutputOptions()).quiet:
                kept = "the model stays loaded for {:g} minutes (to free it: rolegraph serve --stop)"
                click.echo(kept.format(_warm_seconds() / 60), err=True)
            return code

        decorated = allow_option(imports_option(with_source))
        if base_url:
            decorated = fresh_option(click.option("--base-url", metavar="URL", help=base_url)(decorated))
        if model:
            decorated = click.option(
                "--model", metavar="MODEL", help=model, shell_complete=completion.models
            )(decorated)
        decorated = click.argument(
            "overrides", nargs=-1, metavar="[KEY.PATH=VALUE…]", shell_complete=completion.overrides
        )(decorated)
        return click.argument(
            "spec", required=required, shell_complete=completion.specs, is_eager=True, callback=_take_flags
        )(decorated)

    return decorate


def _warm_seconds() -> float:
    """Return for how long a local service stays, from the environment; in CI it stays for no time."""
    text = os.environ.get("ROLEGRAPH_WARM") or ("0" if os.environ.get("CI") else "300")
    if not text.isdecimal():
        raise click.UsageError(f"ROLEGRAPH_WARM is {text!r}; expected seconds, or 0")
    return float(text)


def in_project(source: rg.Source) -> rg.Source:
    """Return a source with what the trusted rolegraph.toml beside its spec adds; name an untrusted one."""
    file = Path(source.spec or "").parent / rg.PROJECT_FILE
    if source.spec and Path(source.spec).is_file() and file.is_file() and not rg.is_trusted(file):
        words = shlex.join(["rolegraph", "trust", str(file.parent)])
        text = f"note: {file} is not trusted, so nothing in it counts; read it, then: {words}"
        click.echo(rg.printable(text), err=True)
    if source.spec and (note := rg.other_spec(source.spec)):
        click.echo(rg.printable(f"note: {note}"), err=True)
    return rg.with_project(source)


def _take_flags(context: click.Context, parameter: click.Parameter, spec: str | None) -> str | None:
    """Make the flags of the trusted rolegraph.toml beside a spec the defaults of the command's options."""
    project = rg.project_of(spec) if spec else None
    if project is not None and project.flags:
        names = {flag.lstrip("-"): option.name for option in context.command.params for flag in option.opts}
        flags = {names[flag]: value for flag, value in project.flags.items() if flag in names}
        context.default_map = {str(name): value for name, value in flags.items()}
    return spec


def output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--quiet` and `--json`; pass them as one OutputOptions, `output`."""

    @wraps(command)
    def with_output(*, quiet: bool, as_json: bool, **others: Any) -> Any:
        with own_stream(as_json) as stream:
            return command(output=OutputOptions(quiet, as_json, stream), **others)

    quiet = click.option("-q", "--quiet", is_flag=True, help="Print nothing but warnings and errors.")
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document at the end; all else to stderr."
    )
    return quiet(as_json(with_output))


def count(flag: str, default: int | None, meaning: str, *, least: int = 1) -> Decorator[F]:
    """Return an option for a number of at least `least`; None is passed where there is no default."""
    number, shown = click.IntRange(min=least), default is not None
    return click.option(flag, type=number, default=default, show_default=shown, metavar="N", help=meaning)


def text(flag: str, metavar: str, meaning: str) -> Decorator[F]:
    """Return an option for a text; None is passed where it is not given."""
    return click.option(flag, metavar=metavar, help=meaning)


def flag(flag: str, meaning: str) -> Decorator[F]:
    """Return an option without a value, False where it is not given."""
    return click.option(flag, is_flag=True, help=meaning)


def path(flag: str, name: str, metavar: str, meaning: str) -> Decorator[F]:
    """Return an option for a path, passed as the parameter `name`; `FILE…` refuses a folder."""
    kind = click.Path(path_type=Path, dir_okay=not metavar.startswith("FILE"))
    return click.option(flag, name, type=kind, metavar=metavar, help=meaning)


def repeated(flag: str, name: str, metavar: str, meaning: str, type: Any = None) -> Decorator[F]:
    """Return an option that may be given several times, passed as the tuple `name`."""
    help_text = f"{meaning} May be given again."
    return click.option(flag, name, multiple=True, metavar=metavar, type=type, help=help_text)


def seed(meaning: str, default: int | None = 0) -> Decorator[F]:
    """Return the option `--seed`."""
    shown = default is not None
    return click.option("--seed", type=int, default=default, show_default=shown, metavar="N", help=meaning)


imports_option = repeated(
    "--import",
    "imports",
    "FILE.py",
    "A Python file that registers rewards, parsers and so on for the spec.",
    click.Path(path_type=Path),
)
allow_option = repeated(
    "--allow",
    "allow",
    "NAME_OR_URL",
    "A permission of the spec: python (or python=docker:IMAGE), verifiers:ID, or a URL and all below it.",
)
fresh_option = flag("--fresh", "Load a local model anew, and for this command alone.")
split = click.option(
    "--split",
    type=click.Choice(["validation", "train"]),
    help="Which tasks. Default: validation, if the spec has it.",
)
multirun = click.option(
    "-m",
    "--multirun",
    is_flag=True,
    help="Once for each combination of values with commas between them, as in roles.solver.count=1,2,4 "
    "or seed=0,1,2.",
)


class OtlpOptions(NamedTuple):
    """Values of `--otlp`, `--otlp-share` and `--otlp-content`."""

    url: str | None
    """URL of the collector; None where no spans are sent."""
    share: float
    content: bool

    def traced(
        self, job: rg.RunJob | rg.TrainingJob, observe: rg.Observer
    ) -> AbstractContextManager[rg.Observer]:
        """Return a context manager that gives an observer; it sends a job's episodes where there is a URL."""
        if self.url is None:
            return nullcontext(observe)
        return rg.traced(job, self.url, observe, share=self.share, content=self.content)


def otlp(meaning: str) -> Decorator[Callable[..., Any]]:
    """Add `--otlp`, `--otlp-share` and `--otlp-content`; pass them as one OtlpOptions, `otlp`.

    Args:
        meaning: Help text of `--otlp`.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_otlp(*, otlp: str | None, otlp_share: float, otlp_content: bool, **others: Any) -> Any:
            return command(otlp=OtlpOptions(otlp, otlp_share, otlp_content), **others)

        decorated = flag("--otlp-content", "With --otlp: texts as well, without hidden fields.")(with_otlp)
        decorated = click.option(
            "--otlp-share",
            type=click.FloatRange(0, 1, min_open=True),
            default=1.0,
            show_default=True,
            metavar="SHARE",
            help="With --otlp: share of the episodes.",
        )(decorated)
        return text("--otlp", "URL", meaning)(decorated)

    return decorate


correct = click.option("--correct/--wrong", default=None, help="Episodes that are correct, or not.")


def episode_filter(
    reward: str | None, correct: bool | None, filters: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the filter of episodes that options describe, as `rg.view` takes it.

    Args:
        reward: Value of `--reward`, LOW:HIGH.
        correct: Value of `--correct/--wrong`.
        filters: Values of the other options by the filter's name.
    """
    low, colon, high = (reward or ":").partition(":")
    if not colon:
        raise rg.UsageError(f"--reward {reward} is not LOW:HIGH, such as 0.5: or 0:0")
    where = {name: value for name, value in {"low": low, "high": high, **filters}.items() if value}
    return where if correct is None else {**where, "correct": "yes" if correct else "no"}


def figure_floor(text: str) -> tuple[str, float]:
    """Parse a figure and its lowest accepted value, as `FIGURE=VALUE`."""
    figure, _, floor = text.partition("=")
    try:
        return figure, float(floor)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not FIGURE=VALUE, such as answered=0.99") from None


def backend_name(text: str) -> str:
    """Parse the name of a backend of rLLM, or a class as `MODULE:CLASS`, which is imported when it trains."""
    if text in rg.BACKENDS or ":" in text:
        return text
    names = ", ".join(rg.BACKENDS)
    raise click.BadParameter(f"{text!r} is not a backend; expected {names} or MODULE:CLASS")


def backend(meaning: str | None = None, default: str | None = None) -> Decorator[F]:
    """Return the option `--backend`."""
    return click.option(
        "--backend",
        type=backend_name,
        default=default,
        show_default=True,
        metavar=f"[{'|'.join(rg.BACKENDS)}|MODULE:CLASS]",
        help=meaning,
    )
