"""A clip job's surroundings: the real job store on a real Valkey, real files, and fakes of the other parts."""

import asyncio
import dataclasses
import pathlib
from collections.abc import AsyncIterator, Callable

import pytest

from actors.messages import ClipRequest
from deployments.api.artifacts import ArtifactStore
from deployments.api.facts import ReuseFacts, effective_parameters
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.video_job import ClaimedJob, VideoJob
from deployments.clip_job import ClipJobRunner
from deployments.planning import PlanningConfig
from reprise.chorus.stages import few_step_map
from tests.fakes.clip_parts import FakeDenoiser, FakeDiffExtractor, FakeEmbedder, FakeMaskGenerator, FakeRetrieval
from tests.fakes.partitions import MODEL_PARTITION

TENANT = "default"
STEPS = 4

CLIP = ClipRequest(
    prompt="a red ball rises",
    negative_prompt="",
    seed=7,
    num_inference_steps=STEPS,
    guidance_scale=4.0,
    width=64,
    height=64,
    num_frames=17,
    fps=4,
    canvas_width=64,
    canvas_height=64,
)


@pytest.fixture
async def hasty(jobs_url: str) -> AsyncIterator[JobStore]:
    """The same jobs, seen by a router for which every lease has run out."""
    store = JobStore.connect(jobs_url, JobStoreConfig(lease_timeout_s=0.0))
    yield store
    await store.close()


@dataclasses.dataclass(kw_only=True, slots=True)
class Shop:
    """Everything around one runner."""

    jobs: JobStore
    artifacts: ArtifactStore
    embedder: FakeEmbedder
    retrieval: FakeRetrieval
    denoiser: FakeDenoiser
    masks: FakeMaskGenerator
    diff: FakeDiffExtractor | None = None

    def runner(self, *, is_reuse_on: bool = True, timeout_s: float = 5.0) -> ClipJobRunner:
        """Make a runner over these parts."""
        return ClipJobRunner(
            PlanningConfig(
                partition=MODEL_PARTITION,
                stage_map=few_step_map(),
                embed_timeout_s=timeout_s,
                lookup_timeout_s=timeout_s,
                is_reuse_on=is_reuse_on,
            ),
            jobs=self.jobs,
            artifacts=self.artifacts,
            embedder=self.embedder,
            retrieval=self.retrieval,
            denoiser=self.denoiser,
            masks=self.masks,
            diff=self.diff,
        )

    async def add(self, clip: ClipRequest = CLIP) -> VideoJob:
        """Queue a clip."""
        facts = ReuseFacts(effective=effective_parameters(clip, max_sequence_length=48))
        return await self.jobs.create(TENANT, clip, model="reprise-tiny", reuse=facts)

    async def claim(self, clip: ClipRequest = CLIP) -> ClaimedJob:
        """Queue a clip and lease it."""
        await self.add(clip)
        (claimed,) = await self.jobs.claim("router-1", count=1, block_s=0.01)
        return claimed

    async def make(self, runner: ClipJobRunner, clip: ClipRequest = CLIP) -> VideoJob:
        """Queue a clip, run it, and give its job as it ended."""
        claimed = await self.claim(clip)
        await runner.run(claimed)
        return await self.read(claimed.job.id)

    async def read(self, video_id: str) -> VideoJob:
        """Read a job that must be there."""
        job = await self.jobs.get(TENANT, video_id)
        assert job is not None
        return job

    def files(self) -> list[str]:
        """Give the names of all files there are."""
        root = pathlib.Path(self.artifacts.url)
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture
async def shop(jobs: JobStore, tmp_path: pathlib.Path) -> Shop:
    return Shop(
        jobs=jobs,
        artifacts=ArtifactStore(str(tmp_path / "videos")),
        embedder=FakeEmbedder(),
        retrieval=FakeRetrieval(stored_steps=(1, 2)),
        denoiser=FakeDenoiser(),
        masks=FakeMaskGenerator(),
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about; the test's own timeout ends a wait in vain."""
    while not holds():
        await asyncio.sleep(0.002)
