"""Completion of a command line in a shell; `_ROLEGRAPH_COMPLETE=bash_source rolegraph` prints the script."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

import rolegraph as rg

GOES_ON = ("=", ".", ":", "/")
"""Ends of a completion that more is typed after."""


def specs(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the name of a shipped spec or the path of a spec file; an override, where it has a `=`."""
    if "=" in word:
        return overrides(context, parameter, word)
    shipped = [CompletionItem(name, help=line) for name, line in rg.shipped_specs().items()]
    found = [item for item in shipped if item.value.startswith(word)]
    folder = Path(word) if word.endswith("/") else Path(word).parent
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        shown = f"{path}/" if path.is_dir() else str(path)
        if shown.startswith(word) and (path.is_dir() or path.suffix in (".yaml", ".yml")):
            found.append(CompletionItem(shown))
    return found


def overrides(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the typed part of an override, such as `roles.solver.co`, of the spec named before it."""
    several: tuple[str, ...] = context.params.get("specs") or ()
    spec = context.params.get("spec") or next(iter(several), None)
    return [CompletionItem(row.word, help=row.meaning) for row in rg.completions(spec, word)]


def models(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Suggest providers such as `openai:` for a model's option; `local` needs no model name after it."""
    providers = [row.word.partition("=")[2] for row in rg.completions(None, "model.provider=")]
    offered = ["local", *(f"{provider}:" for provider in providers)]
    return [CompletionItem(name) for name in offered if name.startswith(word)]


def runs(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the folder of a run, the newest first; any folder, where there is no run."""
    folder = Path(word) if word.endswith("/") else Path(word).parent
    places = {path.parent for where in (folder, Path("runs")) for path in where.glob("*/run.json")}
    places = {path for path in places if str(path).startswith(word)}
    newest = sorted(places, key=lambda path: -rg.RunFolder(path).info_file.stat().st_mtime)
    return [CompletionItem(str(path)) for path in newest] or [CompletionItem(word, type="dir")]


def items(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Complete the name of an item of the kind earlier on the command line."""
    kind = context.params.get("kind")
    if kind == "specs":
        return specs(context, parameter, word)
    if kind is None:
        return []
    registry = getattr(rg.vocabulary, kind)
    names = (name for name in registry.names() if name.startswith(word))
    return [CompletionItem(name, help=registry.summary(name)) for name in names]


@add_completion_class
class BashCompletion(BashComplete):
    """Completion of bash, which splits words at `=` and `:`, without a space after each completion."""

    source_template = BashComplete.source_template.replace("-o nosort", "-o nosort -o nospace")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words of the typed command line, and the last, incomplete word.

        Bash splits words at `=` and `:`; such parts are joined again.
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
        """Return the part of a completion that replaces bash's last word, with a space after a whole word."""
        if item.type != "plain":
            return super().format_completion(item)
        _, incomplete = self.get_completion_args()
        start = max(incomplete.rfind("="), incomplete.rfind(":")) + 1
        end = "" if item.value.endswith(GOES_ON) else " "
        return f"plain,{item.value[start:]}{end}"
