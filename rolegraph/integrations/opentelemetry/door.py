"""Options that send episodes as spans: `--otlp` of `run`, `train` and `export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click

from rolegraph import api
from rolegraph.cli import options
from rolegraph.cli.doors import Door
from rolegraph.cli.output import OutputOptions


def _otlp(gather: Callable[..., Any], meaning: str) -> options.Decorator[Callable[..., Any]]:
    """Return a decorator that adds `--otlp`, `--otlp-share` and `--otlp-content` to a command.

    If `--otlp` is given, the command calls `gather` with the URL as `url` and the other two options as `how`.
    """

    def settle(command: Callable[..., Any], **words: Any) -> Any:
        url, share, content = (words.pop(name) for name in ("otlp", "otlp_share", "otlp_content"))
        return gather(command, url, {"share": share or 1.0, "content": content}, **words)

    share = click.FloatRange(0, 1, min_open=True)
    return options.bundle(
        settle,
        options.text("--otlp", "URL", meaning),
        options.text("--otlp-share", "SHARE", "With --otlp: share of the episodes. Default: 1.", type=share),
        options.flag("--otlp-content", "With --otlp: texts as well, without hidden fields."),
    )


def _watch(command: Callable[..., Any], url: str | None, how: Mapping[str, Any], **words: Any) -> Any:
    watchers = (*words.pop("watching", ()), *([("otlp", url, how)] if url else []))
    return command(watching=watchers, **words)


def _send(
    command: Callable[..., Any],
    url: str | None,
    how: Mapping[str, Any],
    *,
    run: str,
    where: Mapping[str, str] = MappingProxyType({}),
    **words: Any,
) -> Any:
    if url is None:
        return command(run=run, where=where, **words)
    if any(words.values()):
        raise api.UsageError("--otlp writes episodes and stands without options for weights and chats")
    from rolegraph.cli.terminal import progress_line
    from rolegraph.integrations.opentelemetry.sending import export_spans

    with progress_line(OutputOptions(), f"sending {run} …"):
        sent_count = export_spans(run, url, share=how["share"], content=how["content"], **where)
    click.echo(f"{sent_count} episodes sent")
    return 0


DOOR = Door(
    options={
        "episodes": _otlp(_watch, "Send each finished episode as spans to an OpenTelemetry collector."),
        "export": _otlp(_send, "Send episodes as spans to an OpenTelemetry collector in place of weights."),
    }
)
