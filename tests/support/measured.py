"""A product whose metrics and spans end in memory: between are Temporal's meter and OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.runtime import MetricBuffer, MetricBufferDurationFormat, Runtime, TelemetryConfig

from affidavit.client import SessionClient
from affidavit.converter import data_converter
from affidavit.stores.local import DirectoryStore
from tests.support.rig import Rig
from workers.telemetry import tracer_provider


@dataclass
class Measured:
    """A rig whose workers are measured."""

    rig: Rig
    buffer: MetricBuffer
    kept: InMemorySpanExporter
    tracers: TracerProvider
    updates: list[tuple[str, dict[str, Any], float]] = field(default_factory=list)

    def worker(self, **overrides: Any) -> AbstractAsyncContextManager[None]:
        return self.rig.worker(tracers=self.tracers, **overrides)

    def spans(self) -> list[ReadableSpan]:
        """All spans that have ended, in the order in which they began."""
        return sorted(self.kept.get_finished_spans(), key=lambda span: span.start_time or 0)

    def values(self, name: str, **labels: str) -> list[float]:
        """Everything that was added to, or recorded in, a metric with these labels."""
        for update in self.buffer.retrieve_updates():
            self.updates.append((update.metric.name, dict(update.attributes), update.value))
        return [value for known, given, value in self.updates if known == name and labels.items() <= given.items()]

    def count(self, name: str, **labels: str) -> float:
        """The sum of a counter."""
        return sum(self.values(name, **labels))

    def names(self) -> set[str]:
        """Names of all metrics so far."""
        self.values("")
        return {name for name, _, _ in self.updates}


@asynccontextmanager
async def measured(rig: Rig, address: str, **settings: Any) -> AsyncIterator[Measured]:
    """The rig with a client in a runtime of its own."""
    buffer = MetricBuffer(100_000, MetricBufferDurationFormat.SECONDS)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=buffer, logging=None))
    store = DirectoryStore(rig.data.evidence)
    temporal = await Client.connect(address, data_converter=data_converter(store), runtime=runtime)
    client = SessionClient(temporal, task_queue=rig.settings.task_queue, admit_timeout=20, store=store)
    kept = InMemorySpanExporter()
    tracers = tracer_provider(SimpleSpanProcessor(kept))
    try:
        yield Measured(Rig(client, rig.data, rig.settings.model_copy(update=settings)), buffer, kept, tracers)
    finally:
        tracers.shutdown()


def tree(spans: list[ReadableSpan]) -> list[str]:
    """Spans as lines, children indented below their parents: name, and the range of events."""
    by_parent: dict[int | None, list[ReadableSpan]] = {}
    ids = {span.context.span_id for span in spans}
    for span in spans:
        parent = span.parent.span_id if span.parent is not None else None
        assert parent is None or parent in ids, f"{span.name} has a parent that is not there"
        by_parent.setdefault(parent, []).append(span)

    def lines(parent: int | None, indent: int) -> list[str]:
        found = []
        for span in by_parent.get(parent, []):
            attributes = span.attributes or {}
            events = f" {attributes['affidavit.sequence.first']}-{attributes['affidavit.sequence.last']}"
            found.append("  " * indent + span.name + events)
            found += lines(span.context.span_id, indent + 1)
        return found

    return lines(None, 0)
