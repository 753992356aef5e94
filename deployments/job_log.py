"""One structured line for each job that ended: what an operator greps, counts and bills.

Prompts appear as a hash, which tells equal ones, unless the configuration asks for their text.
"""

import dataclasses
import hashlib
import json
import logging
import logging.handlers
import pathlib
import sys
from typing import Any

from deployments.api.video_job import VideoJob


def log_line(job: VideoJob, *, with_prompt: bool) -> str:
    """Write one job in its final status as a JSON object of one line."""
    request, reuse = job.request, job.reuse
    fields: dict[str, Any] = {
        "event": "job_ended",
        "video_id": job.id,
        "tenant": job.tenant,
        "lane": job.lane,
        "model": job.model,
        "status": job.status,
        "error": None if job.error is None else job.error.code,
        "attempts": job.attempts,
        "created_at": round(job.created_at, 3),
        "waited_s": waited_s(job),
        "job_s": job_s(job),
        "width": request.width,
        "height": request.height,
        "num_frames": request.num_frames,
        "num_steps": request.num_inference_steps,
        "prompt_sha256": hashlib.sha256(request.prompt.encode(errors="surrogatepass")).hexdigest()[:16],
        "reuse_mode": request.reuse,
        "hit": reuse.hit,
        "source_id": reuse.source_id,
        "matching_score": reuse.matching_score,
        "k1": reuse.k1,
        "k2": reuse.k2,
        "token_share": reuse.token_share,
        "reason": reuse.reason,
        "seconds": {name: value for name, value in dataclasses.asdict(reuse.seconds).items() if value is not None},
    }
    if with_prompt:
        fields["prompt"] = request.prompt
    return json.dumps(fields)


def waited_s(job: VideoJob) -> float | None:
    """Give the time from the request to the first denoising step; None for a job that never came to it."""
    return None if job.started_at is None else round(job.started_at - job.created_at, 3)


def job_s(job: VideoJob) -> float | None:
    """Give the time from the request to the end; None for a job that has not ended."""
    return None if job.ended_at is None else round(job.ended_at - job.created_at, 3)


class JobLog:
    """Writes the lines, to standard output or to a file that may be rotated away."""

    def __init__(self, path: pathlib.Path | None = None, *, with_prompts: bool = False) -> None:
        self._with_prompts = with_prompts
        handler: logging.Handler = logging.StreamHandler(sys.stdout)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8")
        self._logger = logging.Logger("reprise.jobs", logging.INFO)
        self._logger.addHandler(handler)

    async def report(self, job: VideoJob) -> None:
        """Write one job."""
        self._logger.info("%s", log_line(job, with_prompt=self._with_prompts))
