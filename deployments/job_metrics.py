"""What an ended job adds to the metrics. Pure but for the reporter at the end."""

import dataclasses
from collections.abc import Iterator

from deployments.api.video_job import VideoJob, VideoStatus
from deployments.job_log import job_s, waited_s
from deployments.metrics import Metrics, Sample


def samples_of(job: VideoJob) -> Iterator[Sample]:
    """Give the samples of one job in its final status."""
    lane, reuse = str(job.lane), job.reuse
    yield Sample("reprise_jobs_total", 1, (lane, str(job.status), "" if job.error is None else str(job.error.code)))
    yield Sample("reprise_attempts_lost_total", max(job.attempts - 1, 0), (lane,))
    waited, took = waited_s(job), job_s(job)
    if waited is not None:
        yield Sample("reprise_queue_wait_seconds", max(waited, 0.0), (lane,))
    if job.status is not VideoStatus.COMPLETED:
        return
    outcome = "hit" if reuse.hit else "miss"
    if took is not None:
        yield Sample("reprise_job_seconds", max(took, 0.0), (lane, outcome))
    for stage, seconds in dataclasses.asdict(reuse.seconds).items():
        if seconds is not None:
            yield Sample("reprise_stage_seconds", seconds, (lane, stage))
    steps = {"computed": reuse.steps_computed, "skipped": reuse.steps_skipped, "cached": reuse.steps_cached}
    for kind, count in steps.items():
        if count is not None:
            yield Sample("reprise_steps_total", count, (kind,))
    if not job.request.is_long:
        yield Sample("reprise_reuse_total", 1, ("hit" if reuse.hit else reuse.reason or "unknown",))
    if reuse.is_lowered:
        yield Sample("reprise_gate_lowered_total", 1, (reuse.change_kinds[0] if reuse.change_kinds else "unknown",))


class JobMetrics:
    """Reports ended jobs to the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def report(self, job: VideoJob) -> None:
        """Record one job."""
        self._metrics.record(samples_of(job))
