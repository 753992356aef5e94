"""Every metric of the application in one table, and the thin layer that records samples with Ray.

Ray exports them at each node's metrics port as `ray_<name>`, beside Serve's own (requests, latencies, queues). What is
recorded when is decided where it happens; a sample is a value.
"""

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from actors.stream_figures import StreamFigures
from cache_store.cache import CacheStats
from deployments.api.queue_load import LaneLoad

logger = logging.getLogger(__name__)


class Kind(enum.Enum):
    """What Prometheus calls the type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name carries the unit."""

    kind: Kind
    description: str
    tags: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_JOB_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_STAGE_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_CHANGE_S: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)

METRICS: Final[dict[str, Metric]] = {
    "reprise_jobs_total": Metric(Kind.COUNTER, "Jobs that ended, by status and error code", ("lane", "status", "code")),
    "reprise_job_seconds": Metric(Kind.HISTOGRAM, "From the request to the finished video", ("lane", "reuse"), _JOB_S),
    "reprise_queue_wait_seconds": Metric(
        Kind.HISTOGRAM, "From the request to its first denoising step", ("lane",), _JOB_S
    ),
    "reprise_stage_seconds": Metric(Kind.HISTOGRAM, "Wall time of a stage of a job", ("lane", "stage"), _STAGE_S),
    "reprise_steps_total": Metric(
        Kind.COUNTER, "Denoising steps: computed, skipped by reuse, cached by TeaCache", ("kind",)
    ),
    "reprise_reuse_total": Metric(Kind.COUNTER, "Finished clips by what reuse came to; hit has no reason", ("reason",)),
    "reprise_gate_lowered_total": Metric(
        Kind.COUNTER, "Clips that the words' gate gave fewer steps than the score, by the strictest change", ("change",)
    ),
    "reprise_attempts_lost_total": Metric(Kind.COUNTER, "Runs of ended jobs beyond the first", ("lane",)),
    "reprise_jobs_waiting": Metric(Kind.GAUGE, "Jobs that wait for a worker", ("lane",)),
    "reprise_jobs_running": Metric(Kind.GAUGE, "Jobs in the hands of workers", ("lane",)),
    "reprise_work_seconds": Metric(Kind.GAUGE, "Predicted work of all unfinished jobs", ("lane",)),
    "reprise_requests_refused_total": Metric(Kind.COUNTER, "Requests answered with an error, by its code", ("code",)),
    "reprise_call_faults_total": Metric(
        Kind.COUNTER, "Calls of a part that failed, came too late, or were not made since it fails", ("part", "fault")
    ),
    "reprise_circuit_open": Metric(Kind.GAUGE, "1 while a part that fails is left alone", ("part",)),
    "reprise_cache_entries": Metric(Kind.GAUGE, "Sources that can be reused"),
    "reprise_cache_bytes": Metric(Kind.GAUGE, "Bytes of their latents"),
    "reprise_cache_capacity_bytes": Metric(Kind.GAUGE, "Bytes beyond which the policy evicts"),
    "reprise_cache_evictions_total": Metric(Kind.COUNTER, "Sources evicted"),
    "reprise_cache_refusals_total": Metric(Kind.COUNTER, "Sources that were not admitted"),
    "reprise_streams": Metric(Kind.GAUGE, "Live streams that run"),
    "reprise_stream_viewers": Metric(Kind.GAUGE, "Viewers of live streams"),
    "reprise_stream_start_seconds": Metric(
        Kind.HISTOGRAM, "From a stream's begin to its first playable frame", (), _CHANGE_S
    ),
    "reprise_stream_change_seconds": Metric(
        Kind.HISTOGRAM, "From a changed prompt to the first frame made for it (L)", (), _CHANGE_S
    ),
    "reprise_stream_underruns_total": Metric(Kind.COUNTER, "Groups of frames that were not ready in time"),
    "reprise_stream_discarded_groups_total": Metric(Kind.COUNTER, "Sampled groups that a change replaced"),
    "reprise_webhooks_total": Metric(Kind.COUNTER, "Deliveries of webhooks by what came of them", ("outcome",)),
}


METRICS_PERIOD_S: Final = 5.0
"""Between two readings of what is not recorded as it happens."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric: an increment, a reading or an observation."""

    name: str
    value: float
    tags: tuple[str, ...] = ()
    """In the order of the metric's own."""


class Metrics(Protocol):
    """Takes samples."""

    def record(self, samples: Iterable[Sample]) -> None:
        """Record samples; never raises for what a sample says."""
        ...


class NoMetrics:
    """Records nothing."""

    def record(self, samples: Iterable[Sample]) -> None:
        """Drop samples."""


class RayMetrics:
    """Records with Ray's metrics; for use inside a replica or an actor."""

    def __init__(self) -> None:
        self._instruments: dict[str, Any] = {}

    def record(self, samples: Iterable[Sample]) -> None:
        """Record samples."""
        for sample in samples:
            metric = METRICS[sample.name]
            instrument = self._instruments.get(sample.name)
            if instrument is None:
                instrument = self._instruments[sample.name] = _make(sample.name, metric)
            tags = dict(zip(metric.tags, sample.tags, strict=True))
            match metric.kind:
                case Kind.COUNTER:
                    if sample.value > 0:  # Ray takes no zero
                        instrument.inc(sample.value, tags=tags)
                case Kind.GAUGE:
                    instrument.set(sample.value, tags=tags)
                case Kind.HISTOGRAM:
                    instrument.observe(sample.value, tags=tags)


async def record_regularly(metrics: Metrics, read: Callable[[], Awaitable[Iterable[Sample]]]) -> None:
    """Record what nobody reports as it happens, for ever; a reading that fails is logged and left out."""
    while True:
        await asyncio.sleep(METRICS_PERIOD_S)
        try:
            metrics.record(await read())
        except Exception as error:  # whatever it is, the next reading may be one
            logger.warning("a reading of the metrics failed: %s: %s", type(error).__name__, error)


def _make(name: str, metric: Metric) -> Any:
    from ray.serve import metrics

    if metric.kind is Kind.HISTOGRAM:
        return metrics.Histogram(name, metric.description, boundaries=list(metric.buckets), tag_keys=metric.tags)
    kind = metrics.Counter if metric.kind is Kind.COUNTER else metrics.Gauge
    return kind(name, metric.description, tag_keys=metric.tags)


def lane_samples(lane: str, load: LaneLoad) -> list[Sample]:
    """Read a lane's queue."""
    return [
        Sample("reprise_jobs_waiting", load.waiting, (lane,)),
        Sample("reprise_jobs_running", load.running, (lane,)),
        Sample("reprise_work_seconds", load.work_s, (lane,)),
    ]


def cache_samples(now: CacheStats, before: CacheStats | None) -> list[Sample]:
    """Read the cache; its counts since the reading before."""
    evictions, refusals = (0, 0) if before is None else (before.evictions, before.refusals)
    return [
        Sample("reprise_cache_entries", now.entries),
        Sample("reprise_cache_bytes", now.num_bytes),
        Sample("reprise_cache_capacity_bytes", now.capacity_bytes),
        Sample("reprise_cache_evictions_total", now.evictions - evictions),
        Sample("reprise_cache_refusals_total", now.refusals - refusals),
    ]


def stream_samples(stats: Mapping[str, int], figures: StreamFigures) -> list[Sample]:
    """Read a group of live streams; its figures since the reading before."""
    return [
        Sample("reprise_streams", stats["streams"]),
        Sample("reprise_stream_viewers", stats["viewers"]),
        *(Sample("reprise_stream_start_seconds", seconds) for seconds in figures.starts_s),
        *(Sample("reprise_stream_change_seconds", seconds) for seconds in figures.changes_s),
        Sample("reprise_stream_underruns_total", figures.num_underruns),
        Sample("reprise_stream_discarded_groups_total", figures.num_discarded),
    ]
