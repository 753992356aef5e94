"""Traces of ended jobs: spans under the caller's own, sent to a collector that speaks OTLP."""

import dataclasses
import http.server
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deployments.api.facts import StageSeconds
from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoJob
from deployments.traces import TraceReporter, stages_of
from tests.unit.deployments.test_herald import end

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def traced(job: VideoJob) -> dict[str, ReadableSpan]:
    exporter = InMemorySpanExporter()
    reporter = TraceReporter("http://unused", exporter)
    await reporter.report(job)
    reporter.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def with_seconds(job: VideoJob, *, took_s: float, **seconds: float) -> VideoJob:
    ended_at = job.created_at + took_s
    reuse = dataclasses.replace(job.reuse, seconds=StageSeconds(**seconds))
    return dataclasses.replace(job, ended_at=ended_at, reuse=reuse)


async def test_stages_lie_end_to_end_up_to_the_end(jobs: JobStore) -> None:
    job = with_seconds(await end(jobs), took_s=10.0, embed=0.5, lookup=0.25, denoise=4.0, prompt=1.0, decode=1.0)
    stages = list(stages_of(job))
    assert [stage.name for stage in stages] == ["wait", "embed", "lookup", "denoise", "decode"]
    assert [round(stage.end - stage.begin, 6) for stage in stages] == [4.25, 0.5, 0.25, 4.0, 1.0]
    assert [stage.begin for stage in stages[1:]] == [stage.end for stage in stages[:-1]]
    assert (stages[0].begin, stages[-1].end) == (job.created_at, job.ended_at)


async def test_stages_that_clocks_make_too_long_stay_within_the_job(jobs: JobStore) -> None:
    job = with_seconds(await end(jobs), took_s=1.0, denoise=3.0, decode=1.0)
    assert all(job.created_at <= each.begin <= each.end <= (job.ended_at or 0) for each in stages_of(job))


async def test_spans_hang_below_the_callers(jobs: JobStore) -> None:
    job = dataclasses.replace(await end(jobs), traceparent=f"00-{TRACE}-{SPAN}-01")
    spans = await traced(job)
    root = spans.pop("video")
    assert root.context is not None
    assert root.parent is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, SPAN)
    assert spans.keys() == {"wait", "embed", "denoise"}
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in spans.values())
    assert root.attributes is not None
    assert (root.attributes["video.id"], root.attributes["reuse.hit"]) == (job.id, True)
    assert job.request.prompt not in str(dict(root.attributes))


async def test_a_failed_job_is_a_failed_span(jobs: JobStore) -> None:
    spans = await traced(await end(jobs, "failed"))
    assert spans.keys() == {"video"}
    assert not spans["video"].status.is_ok
    assert spans["video"].status.description == "too large"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    heard: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    thread.join()


async def test_a_collector_gets_them(jobs: JobStore, collector: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    address, heard = collector
    reporter = TraceReporter(address)
    await reporter.report(await end(jobs))
    reporter.close()
    names = [
        span.name
        for request in heard
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert sorted(names) == ["denoise", "embed", "video", "wait"]
