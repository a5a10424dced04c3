"""Commands that show the language: `list` (specs, vocabulary), `limits`, `skill` and `schema`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.output import command as command_line
from rolegraph.cli.rows import RowOutput, row_output

WRITTEN_AT = {
    "parsers": "roles.ROLE.parser",
    "rewards": "roles.ROLE.reward",
    "estimators": "roles.ROLE.estimator",
    "signals": "roles.ROLE.signal",
    "losses": "roles.ROLE.loss",
    "metrics": "episode.metrics.NAME",
    "tools": "roles.ROLE.run",
    "datasets": "data.train, data.validation",
    "environments": "loops.NAME.env",
}
"""Key of a spec under which an item of each kind is written."""
KINDS = ("specs", *WRITTEN_AT, "recipes", "keys")


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.argument("name", required=False, shell_complete=options.complete_items)
@options.imports_option
@row_output
def command(kind: str | None, name: str | None, imports: tuple[str, ...], output: RowOutput) -> None:
    """Show the shipped specs, what a spec may name (parsers, rewards, estimators, …), recipes, and keys.

    With a NAME, show that one: a parser's options with their defaults, say, or a spec as it is written.
    """
    for file in imports:
        api.vocabulary.import_file(Path(file))
    if name is None or kind is None:
        output.write(_items(kind), _show_items)
        kind_shown = kind or "parsers"
        import_words = [word for file in imports for word in ("--import", file)]
        first_name = next(iter(_summaries(kind_shown)), None)
        if first_name is None:
            extra = ", and expressions say them" if kind_shown == "metrics" else ""
            click.echo(f"no {kind_shown} are installed{extra}: rolegraph list keys {kind_shown}", err=True)
        else:
            click.echo(f"next: {command_line('list', kind_shown, first_name, *import_words)}", err=True)
    else:
        rows, text = _shown(kind, name)
        output.write(rows, lambda _: click.echo(text.rstrip()))


def _shown(kind: str, name: str) -> tuple[Sequence[Mapping[str, object]], str]:
    """Return (rows, text for a reader) about an item of a kind, or about keys with a name."""
    if kind == "keys":
        keys = _keys_at(name)
        return [{"key": key, "meaning": meaning} for key, meaning in keys.items()], _lines(keys)
    if kind in ("recipes", "specs"):
        text = api.find_recipe(name).text if kind == "recipes" else _spec(name)
        return [{"name": name, "text": text}], text
    return _item(kind, name)


def _spec(name: str) -> str:
    return api.printable(api.find_spec(name).read_text(encoding="utf-8", errors="replace"))


def _items(kind: str | None) -> list[dict[str, str]]:
    """Return a row for each item of a kind, or of all kinds if `kind` is None."""
    return [
        {"kind": item_kind, "name": name, "summary": summary}
        for item_kind in (KINDS[:-2] if kind is None else (kind,))
        for name, summary in _summaries(item_kind).items()
    ]


def _show_items(rows: Iterator[Mapping[str, str]]) -> None:
    items = [*rows]
    width = max((len(row["name"]) for row in items), default=0)
    for kind, kind_items in groupby(items, key=lambda row: row["kind"]):
        click.secho(kind, bold=True)
        for row in kind_items:
            click.echo(f"  {row['name']:<{width}}  {row['summary']}".rstrip())


def _summaries(kind: str) -> dict[str, str]:
    """Return each item's summary by its name, or the error if the item's package cannot be loaded."""
    if kind == "specs":
        return api.shipped_specs()
    if kind == "recipes":
        return {name: recipe.line for name, recipe in api.recipes().items()}
    if kind == "keys":
        definitions = api.json_schema(())["$defs"]
        return dict(_keys(definitions, definitions["Spec"], "", ("Spec",)))
    registry: api.vocabulary.Registry[Any] = getattr(api.vocabulary, kind)
    summaries: dict[str, str] = {}
    for name in registry.names():
        try:
            summaries[name] = registry.summary(name)
        except api.UsageError as error:
            summaries[name] = api.printable(str(error))
    return summaries


def _keys(
    definitions: dict[str, Any], schema: dict[str, Any], place: str, around: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield (key, first sentence of its description) for each key below a place of a spec.

    Args:
        definitions: Definitions of the JSON Schema.
        schema: JSON Schema of the value at the place.
        place: Path of the place, each key followed by a dot.
        around: Names of the definitions that contain the place, to stop recursion.
    """
    for form in (schema, *schema.get("anyOf", ())):
        name = str(form.get("$ref", "")).removeprefix("#/$defs/")
        if name and "." not in name and name not in around:
            yield from _keys(definitions, definitions[name], place, (*around, name))
        for key, value in form.get("properties", {}).items():
            meaning = " ".join(str(value.get("description", "")).split())
            yield f"{place}{key}", meaning.partition(". ")[0].rstrip(".")
            yield from _keys(definitions, value, f"{place}{key}.", around)
        for inner_key, suffix in (("additionalProperties", "NAME."), ("items", "")):
            if isinstance(form.get(inner_key), dict):
                yield from _keys(definitions, form[inner_key], f"{place}{suffix}", around)


def _keys_at(name: str) -> dict[str, str]:
    """Return the meanings of all keys with a name, such as `weight`, or of the key at a path.

    Raises:
        UsageError: There is no such key.
    """
    keys = _summaries("keys")
    matching_keys = {key: meaning for key, meaning in keys.items() if name in (key, key.rpartition(".")[2])}
    if not matching_keys:
        names = {key.rpartition(".")[2] for key in keys}
        raise api.UsageError(
            f"no key {name!r}; {api.did_you_mean(name, names) or 'see `rolegraph list keys`'}"
        )
    return matching_keys


def _lines(keys: Mapping[str, str]) -> str:
    return "\n".join(f"{key}  {meaning}" for key, meaning in keys.items())


def _item(kind: str, name: str) -> tuple[Sequence[Mapping[str, object]], str]:
    """Return an item's options as (rows, YAML text with each option at its default and its meaning)."""
    registry: api.vocabulary.Registry[Any] = getattr(api.vocabulary, kind)
    try:
        summary, value, options = registry.summary(name), registry.value(name), registry.options(name)
    except api.vocabulary.UnknownName as error:
        hint = error.hint or f"expected one of {', '.join(error.names)}"
        raise api.UsageError(f"{error}; {hint}") from None
    all_options = [*([value] if value else []), *options]
    records = [
        {
            "option": option_.name,
            "type": option_.type,
            "default": option_.written,
            "required": option_.required,
            "meaning": option_.line,
        }
        for option_ in all_options
    ]
    if not all_options:
        return records, f"{summary}\n\n{WRITTEN_AT[kind]}: {name}"
    head_row = _row(name, value) if value else (f"{name}:", "", "")
    indent = "" if value else "  "
    rows = [head_row, *(_row(indent + option.name, option) for option in options)]
    yaml_width, wider = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {yaml:<{yaml_width}}  # {type_:<{wider}}  {line}".rstrip(" #") for yaml, type_, line in rows]
    return records, "\n".join([summary, "", f"{WRITTEN_AT[kind]}:", *lines])


def _row(key: str, option: api.vocabulary.Option) -> tuple[str, str, str]:
    """Return (YAML, type, meaning) of an option."""
    required = ", required" if option.required else ""
    return f"{key}: {option.written}", f"{option.type}{required}", option.line


@click.command("schema")
@options.imports_option
@options.path("--out", "out", "FILE", "File of the schema. Default: standard output.")
@options.replaces("out")
def schema_command(imports: tuple[str, ...], out: Path | None) -> int:
    """Write the JSON Schema of a spec, so that an editor completes and checks it while you type.

    \b
    rolegraph schema --out rolegraph.schema.json
    then, as a spec's first line:
    # yaml-language-server: $schema=rolegraph.schema.json
    """
    text = json.dumps(api.json_schema(imports), indent=1, ensure_ascii=False)
    if out is None:
        click.echo(text)
        return 0
    try:
        api.write_output(out, f"{text}\n".encode(), "json")
    except api.WorldError as error:
        raise api.UsageError(str(error)) from error
    click.echo(f"wrote {out}; a spec's first line: # yaml-language-server: $schema={out}")
    return 0


@click.command("skill")
@click.argument("folder", required=False, metavar="[DIR]", type=options.NamedPath())
def skill_command(folder: Path | None) -> int:
    """Print the language in two pages, with commands and examples, as a skill for agents that write specs.

    With DIR, such as .claude/skills, the skill is written there, as rolegraph/SKILL.md. `rolegraph new`
    writes the same text as AGENTS.md.
    """
    click.echo(
        api.skill_text() if folder is None else f"wrote {api.write_skill(folder)}", nl=folder is not None
    )
    return 0
