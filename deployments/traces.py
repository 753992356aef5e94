"""A trace of each job that ended, for an OpenTelemetry collector: what its time went to, under the caller's own trace.

Spans are made from the record when the job is final, so tracing costs a running job nothing. The stages of a run follow
one another, so they are laid end to end before the job's end; small gaps between them come to lie before the first.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from deployments.api.video_job import VideoJob, VideoStatus

_STAGES: Final = ("embed", "lookup", "diff", "fetch", "denoise", "decode", "encode", "store")
"""In the order in which they run; what is part of another is left out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One child span: Unix seconds."""

    name: str
    begin: float
    end: float


def stages_of(job: VideoJob) -> Iterator[Stage]:
    """Lay the wait and the stages of a completed job end to end, up to its end."""
    assert job.ended_at is not None
    seconds = dataclasses.asdict(job.reuse.seconds)
    took = [(name, seconds[name]) for name in _STAGES if seconds[name] is not None]
    begin = max(job.created_at, job.ended_at - sum(each for _, each in took))
    yield Stage("wait", job.created_at, begin)
    for name, each in took:
        end = min(begin + each, job.ended_at)
        yield Stage(name, begin, end)
        begin = end


class TraceReporter:
    """Sends a trace of each job; `exporter` is where to, by default the collector's endpoint (OTLP over HTTP)."""

    def __init__(self, endpoint: str, exporter: Any | None = None) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if exporter is None:
            try:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            except ImportError as error:
                raise RuntimeError("log.otlp_endpoint needs the extra `trace`: pip install 'reprise[trace]'") from error
            exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._provider = TracerProvider(resource=Resource.create({"service.name": "reprise"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("reprise.jobs")
        self._propagator = TraceContextTextMapPropagator()

    async def report(self, job: VideoJob) -> None:
        """Queue the spans of one job; a thread of the SDK sends them."""
        from opentelemetry import trace

        if job.ended_at is None:
            return
        parent = self._propagator.extract({"traceparent": job.traceparent} if job.traceparent else {})
        root = self._tracer.start_span(
            "video", context=parent, start_time=_ns(job.created_at), attributes=attributes_of(job)
        )
        if job.status is VideoStatus.COMPLETED:
            within = trace.set_span_in_context(root)
            for stage in stages_of(job):
                span = self._tracer.start_span(stage.name, context=within, start_time=_ns(stage.begin))
                span.end(end_time=_ns(stage.end))
        else:
            root.set_status(trace.StatusCode.ERROR, "" if job.error is None else job.error.message)
        root.end(end_time=_ns(job.ended_at))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def attributes_of(job: VideoJob) -> dict[str, str | int | float | bool]:
    """Say of a job what one searches traces by; no prompt."""
    found: dict[str, str | int | float | bool | None] = {
        "video.id": job.id,
        "tenant": job.tenant,
        "lane": str(job.lane),
        "status": str(job.status),
        "attempts": job.attempts,
        "reuse.hit": job.reuse.hit,
        "reuse.source_id": job.reuse.source_id,
        "reuse.reason": job.reuse.reason,
        "reuse.k1": job.reuse.k1,
        "reuse.k2": job.reuse.k2,
        "reuse.token_share": job.reuse.token_share,
    }
    return {name: value for name, value in found.items() if value is not None}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
