"""Options and arguments that several commands share, and their completion in a shell.

`_ROLEGRAPH_COMPLETE=bash_source rolegraph` prints the script for bash.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from rolegraph import api
from rolegraph.cli.doors import contributed
from rolegraph.cli.output import OutputOptions, own_stream
from rolegraph.engine.plugins import Group, plugin, plugin_names

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
OVERRIDES = "[KEY.PATH=VALUE…]"
GOES_ON = ("=", ".", ":", "/")
"""Last characters of a completion after which more is typed."""
_PROVIDERS = plugin_names("models")
_SERVED = [name for name in _PROVIDERS if name != "local"]
_LOCAL = "local[:FOLDER]" if "local" in _PROVIDERS else ""
TRAINABLE = " or ".join(filter(None, (_LOCAL, "tinker:NAME")))
"""Forms of a model that can be trained, for help texts."""
ANSWERING = ", ".join(
    filter(None, (_LOCAL, "tinker:NAME", "openai:NAME", *(f"{name}:NAME" for name in _SERVED), "replay:FILE"))
)
"""Forms of a model that answers, for help texts."""
ENDPOINTS = ", ".join(("tinker (the default with this option)", "openai", *_SERVED))
"""Providers with an endpoint, for help texts."""
SOURCE_OPTIONS = ("imports", "allow", "model", "base_url")
"""Options of a command that reach the command as parts of its Source."""


def source(model: str = "", base_url: str = "", *, required: bool = True) -> Decorator[Callable[..., Any]]:
    """Return a decorator that adds SPEC, its overrides, `--import`, `--allow`, and options for the model.

    The values reach the command as one Source, `source`.

    Args:
        model: Help text of `--model`; empty to leave the option out.
        base_url: Help text of `--base-url`; empty to leave the option out.
        required: False to make SPEC optional; the source's spec may then be None.

    Returns:
        A decorator for the command's function.
    """

    spec_settings: dict[str, Any] = {"required": required, "shell_complete": complete_specs}
    asks_a_model = contributed("model") if base_url else _unchanged
    add_options = bundle(
        _with_source,
        click.argument("spec", is_eager=True, callback=_take_flags, **spec_settings),
        click.argument("overrides", nargs=-1, metavar=OVERRIDES, shell_complete=complete_overrides),
        *([model_option("--model", model)] if model else []),
        *([text("--base-url", "URL", base_url)] if base_url else []),
        allow_option,
        imports_option,
    )
    return lambda command: asks_a_model(add_options(command))


def _with_source(
    command: Callable[..., Any], *, spec: str | None, overrides: tuple[str, ...], **words: Any
) -> Any:
    options = {name: words.pop(name) for name in SOURCE_OPTIONS if name in words}
    return command(source=in_project(api.Source.of(spec, *overrides, **options)), **words)


def _unchanged(command: Callable[..., Any]) -> Callable[..., Any]:
    return command


def bundle(gather: Callable[..., Any], *parameters: Decorator[Any]) -> Decorator[Callable[..., Any]]:
    """Return a decorator that adds parameters to a command.

    Args:
        gather: Function that is called with the command and all values, and calls the command with fewer
            arguments.
        parameters: The parameters, in the order of the help.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        bundled_command: Callable[..., Any] = wraps(command)(partial(gather, command))
        for add_parameter in reversed(parameters):
            bundled_command = add_parameter(bundled_command)
        return bundled_command

    return decorate


def in_project(source: api.Source) -> api.Source:
    """Return the source with the imports and permissions of the trusted rolegraph.toml beside its spec.

    If that file is not trusted, it is ignored, and a note is printed.
    """
    file = Path(source.spec or "").parent / api.PROJECT_FILE
    if source.spec and Path(source.spec).is_file() and file.is_file() and not api.is_trusted(file):
        trust_command = shlex.join(["rolegraph", "trust", str(file.parent)])
        ignored_note = f"note: {file} is not trusted, so nothing in it counts; read it, then: {trust_command}"
        click.echo(api.printable(ignored_note), err=True)
    if source.spec and (note := api.other_spec(source.spec)):
        click.echo(api.printable(f"note: {note}"), err=True)
    return api.with_project(source)


def _take_flags(context: click.Context, parameter: click.Parameter, spec: str | None) -> str | None:
    """Set flags of a trusted rolegraph.toml beside `spec`, if any, as defaults; return `spec`."""
    project = api.project_of(spec) if spec else None
    if project is not None and project.flags:
        names = {flag.lstrip("-"): option.name for option in context.command.params for flag in option.opts}
        flags = {names[flag]: value for flag, value in project.flags.items() if flag in names}
        context.default_map = {str(name): value for name, value in flags.items()}
    return spec


def count(flag: str, default: int | None, meaning: str, *, least: int = 1) -> Decorator[F]:
    """Return an option for a number of at least `least`; without a default, a missing option is passed as
    None."""
    is_shown = default is not None
    return text(flag, "N", meaning, type=click.IntRange(min=least), default=default, show_default=is_shown)


def text(flag: str, metavar: str, meaning: str, *names: str, **settings: Any) -> Decorator[F]:
    """Return an option for a text; without a default, a missing option is passed as None.

    Args:
        flag: Flag, such as `--role`.
        metavar: Name of the value in the help.
        meaning: Help text.
        names: Name of the parameter, if it differs from the flag's.
        settings: Further settings of click's option.
    """
    return click.option(flag, *names, metavar=metavar, help=meaning, **settings)


def model_option(flag: str, meaning: str) -> Decorator[F]:
    """Return an option for a model, with completion in the shell."""
    return text(flag, "MODEL", meaning, shell_complete=complete_models)


def flag(flag: str, meaning: str) -> Decorator[F]:
    """Return an option without a value; a missing option is passed as False."""
    return click.option(flag, is_flag=True, help=meaning)


def choice(flag: str, names: Sequence[str], meaning: str, **settings: Any) -> Decorator[F]:
    """Return an option that accepts one of some names."""
    return click.option(flag, type=click.Choice(names), help=meaning, show_default=True, **settings)


def choice_of_plugins(
    flag: str, group: Group, meaning: str, *first: str, **settings: Any
) -> Decorator[Callable[..., Any]]:
    """Return an option for the name of a registered part; no option if no package registers a part.

    Args:
        flag: The flag.
        group: Kind of the parts.
        meaning: Help text.
        first: Names before those of the parts.
        settings: Further settings of click's option.
    """
    names = plugin_names(group)
    return choice(flag, (*first, *names), meaning, **settings) if names else _unchanged


class NamedPath(click.Path):
    """Path of a file or a folder, passed as a `pathlib.Path`; an empty path is an error.

    `Path("")` is the working folder, so `--out "$UNSET"` would write there.
    """

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            BadParameter: The path is empty.
        """
        if not str(value):
            self.fail("it is empty; give a path, or leave it out", param, ctx)
        return super().convert(value, param, ctx)


def path(flag: str, name: str, metavar: str, meaning: str) -> Decorator[F]:
    """Return an option for a path, passed as the parameter `name`; with metavar `FILE…` a folder is
    refused."""
    kind = NamedPath(dir_okay=not metavar.startswith("FILE"))
    return click.option(flag, name, type=kind, metavar=metavar, help=meaning)


def replaces(*names: str) -> Decorator[Callable[..., Any]]:
    """Return a decorator that adds `--force` to a command, and refuses to replace foreign files without it.

    Foreign files are those that Rolegraph did not write.

    Args:
        names: Parameters of the options whose values are the files, or a folder whose HTML files are checked.
    """
    return bundle(partial(_with_replaced, names), force)


def _with_replaced(names: Sequence[str], command: Callable[..., Any], *, force: bool, **words: Any) -> Any:
    if not force:
        for file in filter(None, map(words.get, names)):
            for replaced_file in file.glob("*.html") if file.is_dir() else [file]:
                api.check_replaceable(replaced_file)
    return command(**words)


def repeated(flag: str, name: str, metavar: str, meaning: str, type: Any = None) -> Decorator[F]:
    """Return an option that may be given several times, passed as the tuple `name`; with metavar `FILE…` the
    values become paths."""
    type = click.Path() if metavar.startswith("FILE") else type
    return text(flag, metavar, f"{meaning} May be given again.", name, multiple=True, type=type)


def seed(meaning: str, default: int | None = 0) -> Decorator[F]:
    """Return the option `--seed`."""
    return text("--seed", "N", meaning, type=int, default=default, show_default=default is not None)


imports_option = repeated(
    "--import", "imports", "FILE.py", "A Python file that registers rewards, parsers and so on for the spec."
)
allow_option = repeated(
    "--allow",
    "allow",
    "NAME_OR_URL",
    "A permission that the spec asks for, such as python[=docker:IMAGE], or a URL (and all below).",
)
force = flag("--force", "Replace a file that Rolegraph did not write, or that was changed since.")
split = choice("--split", ("validation", "train"), "Which tasks. Default: validation, if the spec has it.")
multirun = click.option(
    "-m",
    "--multirun",
    is_flag=True,
    help="Once for each combination of values: roles.solver.count=1,2.",
)


drop_damaged = flag(
    "--drop-damaged", "With --resume and --out: drop damaged lines, and keep a copy of their file."
)


def without_damage(out: Path | None, *, resume: bool) -> None:
    """Drop the damaged lines in the folder that a command resumes, and print the paths of their copies.

    Raises:
        UsageError: The command does not resume, or names no folder.
    """
    if not resume or out is None:
        raise click.UsageError("--drop-damaged goes with --resume, and with --out, the folder to resume")
    copies = api.drop_damaged(out)
    for copy in copies:
        click.echo(f"dropped damaged lines; the file as it was: {copy}", err=True)
    if not copies:
        click.echo(f"no line of episodes, metrics or checkpoints in {out} is damaged", err=True)


def _with_output(command: Callable[..., Any], *, quiet: bool, as_json: bool, **words: Any) -> Any:
    with own_stream(as_json) as stream:
        return command(output=OutputOptions(quiet, as_json, stream), **words)


output = bundle(
    _with_output,
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but warnings and errors."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document at the end; all else to stderr."
    ),
)
"""Decorator that adds `--quiet` and `--json`, which are passed as one OutputOptions, `output`."""


Watcher = tuple[str, str, Mapping[str, Any]]


class Watchers(tuple[Watcher, ...]):
    """Observers named on the command line, each as (name, target, settings)."""

    @contextmanager
    def watching(self, job: api.RunJob | api.TrainingJob, observe: api.Observer) -> Generator[api.Observer]:
        """Open all observers during a block, and yield an observer that passes each event to them and to
        `observe`."""
        with ExitStack() as stack:
            for name, target, settings in self:
                observe = stack.enter_context(plugin("observers", name)(job, target, observe, **settings))
            yield observe


def watchers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--observe`, and the options that packages contribute for `episodes`, to a command.

    The observers reach the command as the argument `watchers`.
    """
    observe = repeated(
        "--observe", "observers", "NAME=TARGET", "An installed package's observer of the episodes."
    )
    return contributed("episodes")(bundle(_with_watchers, observe)(command))


def _with_watchers(
    command: Callable[..., Any],
    *,
    observers: tuple[str, ...],
    watching: tuple[Watcher, ...] = (),
    **words: Any,
) -> Any:
    name_target_pairs = (word.partition("=") for word in observers)
    named_watchers: list[Watcher] = [(name, target, {}) for name, _, target in name_target_pairs]
    return command(watchers=Watchers((*named_watchers, *watching)), **words)


def filters(**meanings: str) -> Decorator[Callable[..., Any]]:
    """Return a decorator that adds `--correct/--wrong` and other filters of episodes to a command.

    The given filters reach the command as one mapping, `where`.

    Args:
        meanings: Help text of each filter by its name, with `reward` for `low` and `high`.
    """
    metavars = {name: "LOW:HIGH" if name == "reward" else name.upper() for name in meanings}
    options = [text(f"--{name}", metavars[name], meaning) for name, meaning in meanings.items()]
    correct = click.option("--correct/--wrong", default=None, help="Episodes that are correct, or not.")
    return bundle(partial(_with_filters, [*meanings]), *options, correct)


def _with_filters(names: Sequence[str], command: Callable[..., Any], **words: Any) -> Any:
    given_filters = {name: words.pop(name) for name in (*names, "correct")}
    reward_range, is_correct = given_filters.pop("reward"), given_filters.pop("correct")
    low, colon, high = (reward_range or ":").partition(":")
    if not colon:
        raise api.UsageError(f"--reward {reward_range} is not LOW:HIGH, such as 0.5: or 0:0")
    where = {"low": low, "high": high, "correct": {True: "yes", False: "no"}.get(is_correct), **given_filters}
    return command(where={name: value for name, value in where.items() if value}, **words)


def figure_floor(text: str) -> tuple[str, float]:
    """Parse a metric and its lowest accepted value, as `FIGURE=VALUE`."""
    figure, _, floor = text.partition("=")
    try:
        return figure, float(floor)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not FIGURE=VALUE, such as answered=0.99") from None


def complete_specs(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the name of a shipped spec or the path of a spec file; a word with `=` is completed as an
    override."""
    if "=" in word:
        return complete_overrides(context, parameter, word)
    shipped_items = [CompletionItem(name, help=text_) for name, text_ in api.shipped_specs().items()]
    items = [item for item in shipped_items if item.value.startswith(word)]
    folder = Path(word) if word.endswith("/") else Path(word).parent
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        path_text = f"{path}/" if path.is_dir() else str(path)
        if path_text.startswith(word) and (path.is_dir() or path.suffix in (".yaml", ".yml")):
            items.append(CompletionItem(path_text))
    return items


def complete_overrides(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the typed part of an override, such as `roles.solver.co`, for the spec named before it."""
    specs: tuple[str, ...] = context.params.get("specs") or ()
    spec = context.params.get("spec") or next(iter(specs), None)
    return [CompletionItem(row.word, help=row.meaning) for row in api.completions(spec, word)]


def complete_models(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Suggest providers such as `openai:` for a model's option; `local` needs no model name after it."""
    providers = [row.word.partition("=")[2] for row in api.completions(None, "model.provider=")]
    offered_words = [p for p in providers if p == "local"] + [f"{provider}:" for provider in providers]
    return [CompletionItem(name) for name in offered_words if name.startswith(word)]


def complete_runs(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the folder of a run, the newest first; without runs, any folder."""
    folder = Path(word) if word.endswith("/") else Path(word).parent
    run_folders = {path.parent for parent in (folder, Path("runs")) for path in parent.glob("*/run.json")}
    run_folders = {path for path in run_folders if str(path).startswith(word)}
    newest = sorted(run_folders, key=lambda path: -api.RunFolder(path).info_file.stat().st_mtime)
    return [CompletionItem(str(path)) for path in newest] or [CompletionItem(word, type="dir")]


def complete_items(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the name of an item; its kind is the previous argument."""
    kind = context.params.get("kind")
    if kind == "specs":
        return complete_specs(context, parameter, word)
    if kind is None or kind == "keys":
        return []
    registry = getattr(api.vocabulary, kind)
    names = (name for name in registry.names() if name.startswith(word))
    return [CompletionItem(name, help=registry.summary(name)) for name in names]


@add_completion_class
class BashCompletion(BashComplete):
    """Completion of bash, which splits words at `=` and `:`, without a space after each completion."""

    source_template = BashComplete.source_template.replace("-o nosort", "-o nosort -o nospace")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return (complete words of the typed command line, last incomplete word).

        Bash splits words at `=` and `:`; the parts are joined again.
        """
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in [*args, incomplete]:
            if words and (word in ("=", ":") or words[-1].endswith(("=", ":"))):
                words[-1] += word
            else:
                words.append(word)
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return the part of a completion that replaces bash's last word, with a space after a complete
        word."""
        if item.type != "plain":
            return super().format_completion(item)
        _, incomplete = self.get_completion_args()
        start = max(incomplete.rfind("="), incomplete.rfind(":")) + 1
        end = "" if item.value.endswith(GOES_ON) else " "
        return f"plain,{item.value[start:]}{end}"
