"""Episodes as spans at an OpenTelemetry collector: of a finished run, or during a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rolegraph.engine.connections import is_here, route
from rolegraph.engine.errors import UsageError, WorldError, first_line
from rolegraph.engine.records import EpisodeDone, Event, Note, Observer
from rolegraph.engine.secrets import without_secrets
from rolegraph.integrations.opentelemetry.spans import Span, TracedRun, is_sampled, spans_of
from rolegraph.pages.view.finding import find
from rolegraph.pages.viewing import parse_filters, view

if TYPE_CHECKING:
    from rolegraph.api.running import RunJob
    from rolegraph.api.training import TrainingJob

PATH = "/v1/traces"
"""Path that OTLP/HTTP adds to the URL of a collector."""
BATCH = 64
"""Spans in one request: with texts a span may have 100 KB, and many collectors refuse 20 MB."""
QUEUE = 65_536
"""Largest number of spans that wait for the collector during a run; further spans are dropped and counted."""


def export_spans(
    run: str | Path, url: str, *, share: float = 1.0, content: bool = False, **where: str
) -> int:
    """Send the episodes of a run as spans to an OpenTelemetry collector.

    An episode is a trace by the conventions for generative AI: `invoke_workflow`, `invoke_agent`, `chat` and
    `execute_tool`. An episode that is sent again has the same ids. Headers, such as a key, are those of
    `OTEL_EXPORTER_OTLP_HEADERS`.

    Args:
        run: Folder of a run or a training; a folder of runs stands for all of them.
        url: URL of the collector, such as `http://localhost:4318`; `/v1/traces` is added.
        share: Share of the episodes to send, above 0 and up to 1, chosen by their ids.
        content: True to send texts: visible task fields, messages, arguments and results of tools. Hidden
            fields are never sent, nor are the texts of roles that may quote one.
        where: Filters of `view`: `role`, `low`, `high`, `correct`, `task`, `text`, `split`, `step`.

    Returns:
        The number of episodes that were sent.

    Raises:
        UsageError: No such run, an unknown filter, no valid URL, no episode fits, or the extra `otlp` is not
            installed.
        DataError: A run's files are damaged.
        WorldError: The collector does not answer, or refuses the spans.
    """
    filters, episode_count, spans = replace(parse_filters(where), sort=""), 0, list[Span]()
    with _Collector.open(url, share) as collector:
        for opened_run in view(run).runs:
            traced_run = TracedRun(opened_run.folder.path.name, opened_run.info, opened_run.spec)
            for row in find(opened_run, filters, most=sys.maxsize, hidden=False).rows:
                if is_sampled(episode := opened_run.read(row), share):
                    step = row.part.step if row.part.split else None
                    spans += spans_of(episode, traced_run, content=content, split=row.part.split, step=step)
                    episode_count += 1
                while len(spans) >= BATCH:
                    collector.send(spans[:BATCH])
                    del spans[:BATCH]
        if not episode_count:
            raise UsageError(f"{run} has no episode that fits; nothing was sent")
        if spans:
            collector.send(spans)
    return episode_count


@contextmanager
def traced(
    job: RunJob | TrainingJob, url: str, observe: Observer, *, share: float = 1.0, content: bool = False
) -> Generator[Observer]:
    """Give an observer that sends each finished episode of a job as spans, during a `with` block.

    A failing collector does not end the run: a warning reports the failure, and `export_spans` can send the
    episodes later.

    Args:
        job: Job that gets the observer.
        url: URL of the collector, as for `export_spans`.
        observe: Function that gets each event as well, and the warning.
        share: Share of the episodes to send, above 0 and up to 1.
        content: True to send texts, as for `export_spans`.

    Returns:
        A context manager that gives the observer.

    Raises:
        UsageError: No valid URL, or the extra `otlp` is not installed.
    """
    traced_run = TracedRun(job.folder.path.name, job.info, job.flow.plan.spec)
    given_spans = 0
    is_warned = False
    with _Collector.open(url, share) as collector:
        processor: Any = import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor(
            collector, max_queue_size=QUEUE, schedule_delay_millis=1000, max_export_batch_size=BATCH
        )

        def watch(event: Event) -> None:
            nonlocal given_spans, is_warned
            if isinstance(event, EpisodeDone) and event.finished and is_sampled(event.episode, share):
                for span in spans_of(event.episode, traced_run, content=content):
                    processor.on_end(collector.readable(span))
                    given_spans += 1
            if collector.fault and not is_warned:
                is_warned = True
                observe(Note(f"spans are not taken: {collector.fault}", "warning"))
            observe(event)

        try:
            yield watch
        finally:
            processor.shutdown()
            if lost_spans := given_spans - collector.sent:
                hint = f"rolegraph export {job.folder.path} --otlp URL sends them again"
                cause = f": {collector.fault}" if collector.fault else ""
                observe(Note(f"{lost_spans} of {given_spans} spans were not sent{cause}; {hint}", "warning"))


class _Collector(logging.Handler):
    """Client that sends spans to a URL through the OpenTelemetry SDK, as a span exporter.

    The client also handles the SDK's log, because only its last message gives the reason of a failed request.
    """

    def __init__(self, url: str) -> None:
        super().__init__(logging.WARNING)
        self.url = without_secrets(url)
        self.sent = 0
        """Number of spans that the collector accepted."""
        self.fault = ""
        """Reason why the last request failed; empty if it succeeded."""
        self._logged = ""
        self._route = route(url)
        self._results: Any = import_module("opentelemetry.sdk.trace.export").SpanExportResult
        self._trace: Any = import_module("opentelemetry.trace")
        self._sdk: Any = import_module("opentelemetry.sdk.trace")
        resources: Any = import_module("opentelemetry.sdk.resources")
        defaults = resources.Resource({"service.name": "rolegraph", "service.version": version("rolegraph")})
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come after, so that they replace the name.
        self._resource = defaults.merge(resources.OTELResourceDetector().detect())
        self._scope: Any = import_module("opentelemetry.sdk.util.instrumentation").InstrumentationScope(
            "rolegraph", version("rolegraph"), "https://opentelemetry.io/schemas/1.41.0"
        )
        session: Any = import_module("requests").Session()
        session.trust_env = not is_here(url)
        session.max_redirects = 0  # a redirect would take the headers, and a key in them, elsewhere
        exporters: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        self._exporter = exporters.OTLPSpanExporter(endpoint=_endpoint(url), session=session)

    @classmethod
    @contextmanager
    def open(cls, url: str, share: float) -> Generator[_Collector]:
        """Open a collector for a block; the SDK's log goes to `fault` instead of standard error."""
        if not 0 < share <= 1:
            raise UsageError(f"the share of episodes is {share:g}; expected a number above 0 and up to 1")
        try:
            collector = cls(url)
        except ImportError:
            library = "opentelemetry-exporter-otlp-proto-http"
            raise UsageError(f"spans need the library {library}: pip install 'rolegraph[otlp]'") from None
        sdk_log = logging.getLogger("opentelemetry")
        sdk_log.addHandler(collector)
        old_propagate, sdk_log.propagate = sdk_log.propagate, False
        try:
            yield collector
        finally:
            collector.shutdown()
            sdk_log.removeHandler(collector)
            sdk_log.propagate = old_propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of the SDK's latest log message, to explain a failed request."""
        self._logged = without_secrets(record.getMessage())

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans.

        Raises:
            WorldError: The collector does not accept the spans.
        """
        self.export([*map(self.readable, spans)])
        if self.fault:
            raise WorldError(f"the collector at {self.url} took {self.sent} spans, then none: {self.fault}")

    def readable(self, span: Span) -> Any:
        """Convert a span to the OpenTelemetry SDK's ReadableSpan."""
        trace = self._trace
        context, parent = (
            None if number is None else trace.SpanContext(span.trace_id, number, False, trace.TraceFlags(1))
            for number in (span.span_id, span.parent_id)
        )
        return self._sdk.ReadableSpan(
            span.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=trace.SpanKind.CLIENT if span.operation == "chat" else trace.SpanKind.INTERNAL,
            status=trace.Status(trace.StatusCode.ERROR if span.error else trace.StatusCode.UNSET),
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )

    def export(self, spans: Sequence[Any]) -> Any:
        """Send spans of the SDK in one request, and count them; return the SDK's result code."""
        self._logged = ""
        try:
            result = self._exporter.export(spans)
        except (OSError, ValueError) as error:  # of a variable of the environment: certificates, a proxy
            self._logged, result = first_line(error), self._results.FAILURE
        is_sent = result.name == "SUCCESS"
        self.sent += len(spans) if is_sent else 0
        self.fault = "" if is_sent else (self._logged or "the request failed") + self._route
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """Do nothing: no span waits here."""
        return True


def _endpoint(url: str) -> str:
    """Return the address for traces at a collector.

    Raises:
        UsageError: The URL is invalid.
    """
    try:
        url_parts = urlsplit(url)
        if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
            raise ValueError
    except ValueError:
        shown = without_secrets(url)
        raise UsageError(f"{shown!r} is not the URL of a collector, such as http://localhost:4318") from None
    path = url_parts.path.rstrip("/")
    return url_parts._replace(path=path if path.endswith(PATH) else f"{path}{PATH}").geturl()
