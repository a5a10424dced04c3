"""Episodes of runs and trainings: pages in the browser, rows of chats, and spans for OpenTelemetry."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rolegraph.api.jobs import RUNS, part_beside
from rolegraph.engine.errors import UsageError, WorldError, did_you_mean
from rolegraph.engine.records import EpisodeDone, Event, Note, Observer
from rolegraph.engine.records.folder import runs_in
from rolegraph.engine.records.info import without_credentials
from rolegraph.engine.records.jsonl import JsonlWriter, json_line
from rolegraph.integrations.opentelemetry.spans import Span, TracedRun, is_sampled, spans_of
from rolegraph.pages.view import EpisodeFilter, ViewedRun, open_run, write_static
from rolegraph.pages.view.chats import chats
from rolegraph.pages.view.finding import FIELDS, find
from rolegraph.pages.view.serving import serve

if TYPE_CHECKING:
    from rolegraph.api.running import RunJob
    from rolegraph.api.training import TrainingJob

PATH = "/v1/traces"
"""Path that OTLP/HTTP adds to the URL of a collector."""
BATCH = 64
"""Spans in one request: with texts a span may have 100 KB, and many collectors refuse 20 MB."""
QUEUE = 65_536
"""Spans that wait for the collector while a run goes on; beyond that, spans are dropped and counted."""


@dataclass(frozen=True, slots=True)
class RunViewer:
    """Viewer of runs and trainings; made by `view`.

    Its methods take the filters of the page's address by keyword: `role`, `failure` (a name, or `any`),
    `correct` (`yes` or `no`), `low` and `high` (of a reward), `task`, `text`, `split`, `step`, `sort` (`low`
    or `high`).
    """

    runs: Sequence[ViewedRun]

    @property
    def hidden(self) -> list[str]:
        """Names of the task fields that no prompt may show, as found in the first episodes."""
        return sorted({field for run in self.runs if not run.fault for field in run.hidden_fields()})

    def serve(self, *, port: int = 0, ready: Callable[[str], None] = print, **where: str) -> None:
        """Serve pages on this machine until interrupted.

        Args:
            port: Port to listen at; 0 takes a free one.
            ready: Function that is called with the pages' address. The address holds a key: whoever has it
                can read the runs.
            where: Filters of the first page, see the class.

        Raises:
            UsageError: An unknown filter, or an event loop runs already.
            WorldError: The port is taken.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError(
                "an event loop is already running, as in a notebook: run `rolegraph view` in a terminal, or "
                "write a file"
            )

        serve(self.runs, port=port, where=parse_filters(where), ready=ready)

    def write(self, file: str | Path, *, hidden: bool, most: int = 200, **where: str) -> int:
        """Write the pages as one file that opens offline.

        Args:
            file: Path of the file.
            hidden: Whether to write task fields that no prompt may show.
            most: Number of episodes of each run at most, the first that pass the filters.
            where: Filters of the episodes, see the class.

        Returns:
            The number of episodes in the file.

        Raises:
            UsageError: An unknown filter.
            DataError: A run's files are damaged.
            WorldError: The file cannot be written.
        """

        return write_static(self.runs, Path(file), hidden=hidden, where=parse_filters(where), most=most)


def view(*runs: str | Path) -> RunViewer:
    """Open the folders of runs and trainings, finished or not, to be viewed.

    Args:
        runs: Folders; a folder of runs, such as an evaluation's or a sweep's, stands for all runs in it.
            None: all runs of the folder `runs`, the newest first.

    Returns:
        A viewer, whose `serve` shows pages in the browser and whose `write` makes one file.

    Raises:
        UsageError: A folder holds no run, or none is given and there is no folder `runs`.
        DataError: A run's files are damaged.
    """

    if not runs and not RUNS.is_dir():
        raise UsageError(f"there is no folder {RUNS}/ here; give the folder of a run, such as runs/mine")
    opened = [open_run(folder) for run in runs or (RUNS,) for folder in runs_in(Path(run))]
    if not runs:
        opened.sort(key=lambda run: "" if run.fault else str(run.info.started or ""), reverse=True)
    return RunViewer(opened)


def parse_filters(where: Mapping[str, str]) -> EpisodeFilter:
    """Return the filter of episodes that keyword arguments describe.

    Args:
        where: Filters, as the methods of `RunViewer` take them.

    Returns:
        The filter.

    Raises:
        UsageError: An unknown filter, or an invalid value.
    """
    for name in where:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS) or f"expected one of {', '.join(FIELDS)}"
            raise UsageError(f"episodes cannot be filtered by {name!r}; {hint}")
    return EpisodeFilter.of(where)


def export_chats(run: str | Path, file: str | Path, **where: str) -> int:
    """Write the chats of a run's episodes as rows for supervised fine-tuning, one JSON object a line.

    A row has the chat's `messages` in OpenAI's form, and `task`, `rollout`, `role`, `index` and `reward`.
    Failed and masked turns are left out, and so are tools that ran in place of a model. A conversation over
    several turns or calls is one row; in it, answers of other roles and of masked turns have `weight` 0.

    Args:
        run: Folder of a run or a training; a folder of runs stands for all of them. Of a training, only
            training episodes are written unless `split` says otherwise.
        file: Path of the new file.
        where: Filters of `view`: `role`, `low`, `high`, `correct`, `task`, `text`, `split`, `step`. `role`,
            `low` and `high` hold for the chat itself, the others for its episode.

    Returns:
        The number of rows.

    Raises:
        UsageError: No such run, an unknown filter, the file exists, or no chat fits.
        DataError: A run's files are damaged.
        WorldError: The file cannot be written.
    """
    file, wanted = Path(file), parse_filters(where)
    if file.exists():
        raise UsageError(f"{file} already exists; move it away, or choose another file")
    rows = 0
    with part_beside(file) as part:
        with JsonlWriter(part / file.name, "rows") as writer:
            for opened in view(run).runs:
                split = wanted.split or ("train" if opened.info.kind == "train" else "")
                for row in find(opened, replace(wanted, split=split), most=sys.maxsize).rows:
                    for chat in chats(opened.read(row), wanted):
                        writer.append(json_line(chat))
                        rows += 1
        if not rows:
            raise UsageError(f"{run} has no chat that fits; nothing was written")
        (part / file.name).rename(file)
    return rows


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
        content: Whether to send texts: visible task fields, messages, arguments and results of tools. Hidden
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
    wanted, episodes, waiting = replace(parse_filters(where), sort=""), 0, list[Span]()
    with _Collector.open(url, share) as collector:
        for opened in view(run).runs:
            about = TracedRun(opened.folder.path.name, opened.info, opened.spec)
            for row in find(opened, wanted, most=sys.maxsize).rows:
                if is_sampled(episode := opened.read(row), share):
                    step = row.part.step if row.part.split else None
                    waiting += spans_of(episode, about, content=content, split=row.part.split, step=step)
                    episodes += 1
                while len(waiting) >= BATCH:
                    collector.send(waiting[:BATCH])
                    del waiting[:BATCH]
        if not episodes:
            raise UsageError(f"{run} has no episode that fits; nothing was sent")
        if waiting:
            collector.send(waiting)
    return episodes


@contextmanager
def traced(
    job: RunJob | TrainingJob, url: str, observe: Observer, *, share: float = 1.0, content: bool = False
) -> Generator[Observer]:
    """Give an observer that sends each finished episode of a job as spans, for the time of a `with` block.

    A collector that fails ends no run: a warning says so, and `export_spans` sends the episodes later.

    Args:
        job: The job, which is given the observer.
        url: URL of the collector, as for `export_spans`.
        observe: Function that gets each event as well, and the warning.
        share: Share of the episodes to send, above 0 and up to 1.
        content: Whether to send texts, as for `export_spans`.

    Returns:
        A context manager that gives the observer.

    Raises:
        UsageError: No valid URL, or the extra `otlp` is not installed.
    """
    about = TracedRun(job.folder.path.name, job.info, job.flow.plan.spec)
    given = 0
    is_told = False
    with _Collector.open(url, share) as collector:
        processor: Any = import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor(
            collector, max_queue_size=QUEUE, schedule_delay_millis=1000, max_export_batch_size=BATCH
        )

        def watch(event: Event) -> None:
            nonlocal given, is_told
            if isinstance(event, EpisodeDone) and event.finished and is_sampled(event.episode, share):
                for span in spans_of(event.episode, about, content=content):
                    processor.on_end(collector.readable(span))
                    given += 1
            if collector.fault and not is_told:
                is_told = True
                observe(Note(f"spans are not taken: {collector.fault}", "warning"))
            observe(event)

        try:
            yield watch
        finally:
            processor.shutdown()
            if lost := given - collector.sent:
                again = f"rolegraph export {job.folder.path} --otlp URL sends them again"
                why = f": {collector.fault}" if collector.fault else ""
                observe(Note(f"{lost} of {given} spans were not sent{why}; {again}", "warning"))


class _Collector(logging.Handler):
    """Receiver of spans at a URL: an exporter of the OpenTelemetry SDK.

    It also handles the log of the SDK, whose last message alone tells why a request failed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(logging.WARNING)
        self.url = without_credentials(url)
        self.sent = 0
        """Number of spans that the collector took."""
        self.fault = ""
        """Reason why the last request failed; empty where it did not."""
        self._logged = ""
        self._trace: Any = import_module("opentelemetry.trace")
        self._sdk: Any = import_module("opentelemetry.sdk.trace")
        resources: Any = import_module("opentelemetry.sdk.resources")
        own = resources.Resource({"service.name": "rolegraph", "service.version": version("rolegraph")})
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come after, so that they replace the name.
        self._resource = own.merge(resources.OTELResourceDetector().detect())
        self._scope: Any = import_module("opentelemetry.sdk.util.instrumentation").InstrumentationScope(
            "rolegraph", version("rolegraph"), "https://opentelemetry.io/schemas/1.41.0"
        )
        session: Any = import_module("requests").Session()
        session.max_redirects = 0  # a redirect would take the headers, and a key in them, elsewhere
        exporters: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        self._exporter = exporters.OTLPSpanExporter(endpoint=_endpoint(url), session=session)

    @classmethod
    @contextmanager
    def open(cls, url: str, share: float) -> Generator[_Collector]:
        """Open a collector for a block; its library's log goes into `fault`, not to standard error."""
        if not 0 < share <= 1:
            raise UsageError(f"the share of episodes is {share:g}; expected a number above 0 and up to 1")
        try:
            collector = cls(url)
        except ImportError:
            library = "opentelemetry-exporter-otlp-proto-http"
            raise UsageError(f"spans need the library {library}: pip install 'rolegraph[otlp]'") from None
        log = logging.getLogger("opentelemetry")
        log.addHandler(collector)
        propagated, log.propagate = log.propagate, False
        try:
            yield collector
        finally:
            collector.shutdown()
            log.removeHandler(collector)
            log.propagate = propagated

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message of the library's log."""
        self._logged = without_credentials(record.getMessage())

    def send(self, spans: Sequence[Span]) -> None:
        """Send spans; raises WorldError where the collector does not take them."""
        self.export([*map(self.readable, spans)])
        if self.fault:
            raise WorldError(f"the collector at {self.url} took {self.sent} spans, then none: {self.fault}")

    def readable(self, span: Span) -> Any:
        """Return a span as the SDK has it."""
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
        """Send spans of the SDK in one request, and count them."""
        self._logged = ""
        result = self._exporter.export(spans)
        is_sent = result.name == "SUCCESS"
        self.sent += len(spans) if is_sent else 0
        self.fault = "" if is_sent else self._logged or "the request failed"
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        """Do nothing: no span waits here."""
        return True


def _endpoint(url: str) -> str:
    """Return the address of a collector's traces; raises UsageError for an invalid URL."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
    except ValueError:
        shown = without_credentials(url)
        raise UsageError(f"{shown!r} is not the URL of a collector, such as http://localhost:4318") from None
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(PATH) else f"{path}{PATH}").geturl()
