"""OpenTelemetry collector in the test's process: it keeps the spans that OTLP/HTTP brings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.models.edges import served


@dataclass
class ReceivedSpan:
    """Span as OTLP brought it."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    start: int
    end: int
    kind: int
    error: bool
    about: Mapping[str, Any]


@dataclass
class Collector:
    """Collector that answers each request with `status`."""

    status: int = 200
    url: str = ""
    bodies: list[bytes] = field(default_factory=list[bytes])
    headers: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    resources: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    spans: list[ReceivedSpan] = field(default_factory=list[ReceivedSpan])

    def traces(self) -> dict[bytes, list[ReceivedSpan]]:
        """Return the spans of each trace."""
        found: dict[bytes, list[ReceivedSpan]] = {}
        for span in self.spans:
            found.setdefault(span.trace, []).append(span)
        return found

    def below(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """Return the spans directly below a span."""
        return [span for span in self.spans if (span.trace, span.parent) == (parent.trace, parent.id)]

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    async def receive(self, request: Request) -> Response:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = await request.body()
        if self.status == 200:
            self.bodies.append(body)
            self.headers.append(dict(request.headers))
            self._read(ExportTraceServiceRequest.FromString(body))
        return Response(status_code=self.status, headers={"location": "/elsewhere"})

    def _read(self, message: Any) -> None:
        for of_resource in message.resource_spans:
            self.resources.append(_values(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.spans.append(
                        ReceivedSpan(
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.kind,
                            span.status.code == 2,
                            _values(span.attributes),
                        )
                    )


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    """Serve a collector for the time of the block."""
    collector = Collector(status)
    routes = [
        Route("/v1/traces", collector.receive, methods=["POST"]),
        Route("/elsewhere", collector.receive, methods=["GET", "POST"]),
    ]
    with served(Starlette(routes=routes)) as collector.url:
        yield collector


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
