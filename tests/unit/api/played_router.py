"""Plays the router and the denoiser over the real job store: grey frames in place of a model's."""

import dataclasses
import functools

import numpy as np

from actors.engines.media import make_media
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import PromptWarning, ReuseFacts, StageSeconds
from deployments.api.jobs import JobStore
from deployments.api.video_job import ClaimedJob, VideoJob, WriteOutcome

_STEPS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class PlayedRouter:
    """Does what the real router does with a job, in the same order."""

    jobs: JobStore
    artifacts: ArtifactStore

    async def claim(self) -> ClaimedJob:
        """Lease the next job, which must be there."""
        (claimed,) = await self.jobs.claim("played", count=1, block_s=1.0)
        return claimed

    async def run(self, claimed: ClaimedJob) -> WriteOutcome:
        """Denoise, store the files and finish."""
        lease, job = claimed.lease, claimed.job
        await self.jobs.mark_started(lease)
        for step in range(1, _STEPS + 1):
            await self.jobs.set_progress(lease, 100 * step // _STEPS)
        for variant, data in played_media(job).items():
            self.artifacts.put_bytes(job.tenant, job.id, Variant(variant), data)
        return await self.jobs.finish(lease, finished_facts(job))

    async def run_next(self) -> VideoJob:
        """Claim and run one job."""
        claimed = await self.claim()
        assert await self.run(claimed) is WriteOutcome.APPLIED
        return claimed.job


def played_media(job: VideoJob) -> dict[str, bytes]:
    """Write grey frames of the size and number that the job asks for."""
    clip = job.request
    return _grey(clip.num_frames, clip.height, clip.width, clip.fps, clip.canvas_width, clip.canvas_height)


@functools.cache
def _grey(
    num_frames: int, height: int, width: int, fps: int, canvas_width: int, canvas_height: int
) -> dict[str, bytes]:
    frames_THWC = np.full((num_frames, height, width, 3), 128, np.uint8)
    return make_media(frames_THWC, fps=fps, canvas_width=canvas_width, canvas_height=canvas_height)


def finished_facts(job: VideoJob) -> ReuseFacts:
    """Give facts with every field filled in."""
    return dataclasses.replace(
        job.reuse,
        hit=True,
        source_id="video_0",
        matching_score=0.91,
        k1=2,
        k2=3,
        steps_computed=2,
        steps_skipped=2,
        reason=None,
        seconds=StageSeconds(embed=0.01, lookup=0.002, denoise=1.5, decode=0.3),
        warnings=(PromptWarning(code="prompt_truncated", encoder="umt5", used=48, dropped=3),),
    )
