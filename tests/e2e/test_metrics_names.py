"""A real worker's metrics and JSON log; and that dashboard and alerts ask for nothing that does not exist."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import temporalio.bridge
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from affidavit.contract import SIGNAL_RECORD
from affidavit.metrics import METRICS
from tests.support.ports import free_port
from tests.support.processes import WORKERS, environment, process
from tests.support.rig import Rig, signal_text
from tests.support.taps import LIMIT_S
from tests.support.waiting import eventually
from workers.devserver import DevServer

TELEMETRY = Path(__file__).parents[2] / "telemetry"
CALL = {"kind": "tool_call", "call_id": "c1", "tool": "search", "allowed": True}
_NAME = re.compile(r"\b(?:affidavit|temporal)_[a-z_]+\b")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")

PROMETHEUS = {
    "affidavit_sessions_opened_total",
    "affidavit_sessions_ended_total",
    "affidavit_steps_total",
    "affidavit_messages_rejected_total",
    "affidavit_steps_repeated_total",
    "affidavit_refused_total",
    "affidavit_breaker_trips_total",
    "affidavit_quarantines_total",
    "affidavit_receipts_total",
    "affidavit_stalls_total",
    "affidavit_stage_failures_total",
    "affidavit_stage_duration_seconds",
    "affidavit_queue_depth",
}
"""The product's metrics as Prometheus has them."""


def asked() -> dict[str, set[str]]:
    """Names of metrics by file, from the expressions alone."""
    dashboard = json.loads((TELEMETRY / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [variable["query"]["query"] for variable in dashboard["templating"]["list"][1:]]
    rules = (TELEMETRY / "alerts.yml").read_text()
    alerts = re.findall(r"expr: (?:\|\n\s+)?(.*)", rules)
    assert len(alerts) == rules.count("alert:")
    return {
        "dashboard": {_SUFFIX.sub("", name) for text in expressions for name in _NAME.findall(text)},
        "alerts": {_SUFFIX.sub("", name) for text in alerts for name in _NAME.findall(text)},
    }


def test_dashboard_and_alerts_ask_only_for_metrics_that_exist() -> None:
    bridge = next(Path(temporalio.bridge.__file__).parent.glob("temporal_sdk_bridge*")).read_bytes()
    for file, names in asked().items():
        own = {name for name in names if name.startswith("affidavit_")}
        assert own <= PROMETHEUS, file
        for name in names - own:
            # The SDK's names stand in its core without prefix and without what Prometheus adds.
            assert re.sub(r"^temporal_|(_seconds|_total)$", "", name).encode() in bridge, f"{file}: {name}"
    assert asked()["dashboard"] >= PROMETHEUS


def test_the_list_of_metrics_is_the_one_that_prometheus_shows() -> None:
    suffixes = {"counter": "_total", "duration": "_seconds", "histogram": ""}
    assert {metric.name + suffixes[metric.kind] for metric in METRICS} == PROMETHEUS


def scrape(port: int) -> set[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {_SUFFIX.sub("", re.split(r"[{ ]", line)[0]) for line in lines if not line.startswith("#")}


async def a_session(rig: Rig, session_id: str) -> None:
    session = await rig.open(session_id=session_id)
    await session.submit(CALL)
    await rig.client.temporal.get_workflow_handle(session_id).signal(SIGNAL_RECORD, signal_text("\x1b[31mno\n"))
    assert (await session.close()).status == "closed"


async def test_a_worker_serves_its_own_and_the_sdks_metrics_and_logs_json(
    rig: Rig, server: DevServer, tmp_path: Path
) -> None:
    port = free_port()
    env = environment(rig, server.address, AFFIDAVIT_PROMETHEUS=f"127.0.0.1:{port}", AFFIDAVIT_LOG_FORMAT="json")
    log = tmp_path / "log"
    session_id = f"{rig.settings.task_queue}-metrics"
    async with process(WORKERS, env, log) as worker:
        await a_session(rig, session_id)
        names = await asyncio.to_thread(scrape, port)
        worker.terminate()
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
    happened = {"sessions_opened", "sessions_ended", "steps", "messages_rejected", "receipts"}
    assert {f"affidavit_{name}_total" for name in happened} <= names
    assert {"affidavit_stage_duration_seconds", "affidavit_queue_depth"} <= names
    wanted = asked()["dashboard"] | asked()["alerts"]
    failing = {"temporal_workflow_task_execution_failed_total"}  # nothing has failed here
    assert {name for name in wanted if name.startswith("temporal_")} - failing <= names
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    stages = [line for line in lines if line.get("session") == session_id and line["logger"] == "affidavit.stages"]
    assert [line["stage"] for line in stages] == ["open", "journal", "journal", "seal", "lifecycle", "outcome"]
    assert [(line["first"], line["last"]) for line in stages][:3] == [(0, 0), (1, 1), (2, 2)]
    assert all(line["duration_ms"] >= 0 for line in stages)


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer, trace_service_pb2_grpc.TraceServiceServicer):
    """One OTLP endpoint for both kinds."""

    def __init__(self) -> None:
        self.metrics: set[str] = set()
        self.spans: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            for resource in request.resource_spans:
                self.spans |= {span.name for scope in resource.scope_spans for span in scope.spans}
            return trace_service_pb2.ExportTraceServiceResponse()
        for resource in request.resource_metrics:
            self.metrics |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()


async def test_spans_and_all_metrics_go_out_to_one_otlp_endpoint(rig: Rig, server: DevServer, tmp_path: Path) -> None:
    collector = Collector()
    endpoint = grpc.server(futures.ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, endpoint)  # type: ignore[no-untyped-call]
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, endpoint)  # type: ignore[no-untyped-call]
    port = endpoint.add_insecure_port("127.0.0.1:0")
    endpoint.start()
    otel = {
        "AFFIDAVIT_OTEL": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    try:
        async with process(WORKERS, environment(rig, server.address, **otel), tmp_path / "log") as worker:
            await a_session(rig, f"{rig.settings.task_queue}-otlp")

            async def metrics() -> set[str]:
                return set(collector.metrics)

            await eventually(metrics, lambda seen: {"affidavit_receipts", "temporal_request"} <= seen, within=LIMIT_S)
            worker.terminate()
            assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
    finally:
        endpoint.stop(None)
    assert {"session", "affidavit.open", "affidavit.journal", "affidavit.seal", "affidavit.outcome"} <= collector.spans


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AFFIDAVIT_PROMETHEUS": "nonsense"}, "error: AFFIDAVIT_PROMETHEUS: "),
        ({"AFFIDAVIT_LOG_FORMAT": "xml"}, "error: AFFIDAVIT_LOG_FORMAT: "),
    ],
)
async def test_a_setting_of_telemetry_that_does_not_fit_is_one_line(
    rig: Rig, server: DevServer, tmp_path: Path, changes: Mapping[str, str], said: str
) -> None:
    log = tmp_path / "log"
    async with process(WORKERS, environment(rig, server.address, **changes), log) as worker:
        assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 2
    text = log.read_text()
    assert text.startswith(said)
    assert text.count("\n") == 1
