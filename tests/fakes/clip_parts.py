"""Fakes of the parts that a clip job talks to: embedder, retrieval and denoiser, each by the real protocol.

They compute next to nothing, note what they are asked, and misbehave on request.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import AsyncGenerator

import numpy as np
from numpy.typing import NDArray

from actors.diff_extractor import DiffEngineName, DiffResult, FallbackReason
from actors.embedder import Embedding
from actors.messages import ClipDone, DenoiseEvent, DenoiseRequest, StepDone, TrajectoryStored
from actors.retrieval import Admission
from cache_store.partition import PartitionKey
from reprise.chorus.plan import Candidate, MissReason, ReuseMode, plan_miss
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.work import WorkDone

DIM = 256


async def for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


class FakeEmbedder:
    """Prompts with many words in common are similar; those of more than 20 words do not fit."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.hangs = False

    async def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        if self.hangs:
            await for_ever()
        if self.fault is not None:
            raise self.fault
        return Embedding(vector=direction(prompt), is_whole=len(prompt.split()) <= 20)


def direction(prompt: str) -> bytes:
    """Give the unit vector of a prompt: the sum over its words, whose directions are all but orthogonal."""
    total = np.sum([_word_direction(word) for word in prompt.split()], axis=0)
    return np.asarray(total / np.linalg.norm(total), np.float32).tobytes()


def _word_direction(word: str) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(DIM)


class FakeRetrieval:
    """Admissions in a list, searched by inner product within the partition."""

    def __init__(self, *, stored_steps: tuple[int, ...]) -> None:
        self._stored_steps = stored_steps
        self.admitted: dict[str, Admission] = {}
        self.num_admissions = 0
        self.touched: list[tuple[str, str, int]] = []
        self.purged: list[tuple[str, str]] = []
        self.fault: Exception | None = None
        self.hangs = False

    async def candidates(self, partition: PartitionKey, vector: bytes, count: int) -> list[Candidate]:
        """Give the nearest sources of a partition."""
        if self.hangs:
            await for_ever()
        if self.fault is not None:
            raise self.fault
        found = [
            _candidate(one, vector, self._stored_steps) for one in self.admitted.values() if one.partition == partition
        ]
        return sorted(found, key=lambda candidate: -(candidate.matching_score or 0.0))[:count]

    async def source(self, partition: PartitionKey, source_id: str, vector: bytes) -> list[Candidate]:
        """Give one source, if it is stored in this partition."""
        found = await self.candidates(partition, vector, len(self.admitted))
        return [candidate for candidate in found if candidate.source_id == source_id]

    async def admit(self, admission: Admission) -> str:
        """Register a source."""
        self.num_admissions += 1
        self.admitted[admission.source_id] = admission
        return "admitted"

    async def touch(self, tenant: str, source_id: str, steps_saved: int) -> None:
        """Count one use."""
        self.touched.append((tenant, source_id, steps_saved))

    async def purge(self, tenant: str, source_id: str) -> None:
        """Forget a source."""
        self.admitted.pop(source_id, None)
        self.purged.append((tenant, source_id))


def _candidate(admission: Admission, vector: bytes, stored_steps: tuple[int, ...]) -> Candidate:
    one, two = np.frombuffer(admission.vector, np.float32), np.frombuffer(vector, np.float32)
    return Candidate(
        source_id=admission.source_id,
        matching_score=float(one @ two),
        prompt=admission.prompt,
        seed=admission.seed,
        num_steps=admission.partition.num_steps,
        stored_steps=stored_steps,
    )


@dataclasses.dataclass(kw_only=True, slots=True)
class Run:
    """One call of the denoiser, as far as it has come."""

    request: DenoiseRequest
    steps_begun: int = 0
    is_closed: bool = False


class FakeDenoiser:
    """Streams the events of clips; `hold` stops every run before its next step until `release`."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.fault: Exception | None = None
        """Raised in place of the third step."""
        self.source_is_gone = False
        self.num_tokens_dropped = 0
        self.most_at_once = 0
        self._gate = asyncio.Event()
        self._gate.set()

    @property
    def open_runs(self) -> list[Run]:
        """Give the runs that are under way."""
        return [run for run in self.runs if not run.is_closed]

    def hold(self) -> None:
        """Stop before the next step."""
        self._gate.clear()

    def release(self) -> None:
        """Go on."""
        self._gate.set()

    async def generate(self, request: DenoiseRequest) -> AsyncGenerator[DenoiseEvent, None]:
        """Yield what the real denoiser yields for a plan."""
        run = Run(request=request)
        self.runs.append(run)
        self.most_at_once = max(self.most_at_once, len(self.open_runs))
        try:
            async with contextlib.aclosing(self._events(run)) as events:
                async for event in events:
                    yield event
        finally:
            run.is_closed = True

    async def _events(self, run: Run) -> AsyncGenerator[DenoiseEvent, None]:
        clip, plan = run.request.clip, run.request.plan
        if self.source_is_gone and plan.is_hit:
            plan = plan_miss(MissReason.SOURCE_MISSING, matching_score=plan.matching_score)
        num_steps, first = clip.num_inference_steps, plan.boundaries.k1
        await self._gate.wait()
        yield StepDone(step=first, num_steps=num_steps)
        for step in range(first, num_steps):
            await self._gate.wait()
            run.steps_begun += 1
            if step == 2 and self.fault is not None:
                raise self.fault
            yield StepDone(step=step + 1, num_steps=num_steps)
        yield ClipDone(
            plan=plan,
            files={name: f"{name} of seed {clip.seed}".encode() for name in ("video", "thumbnail", "spritesheet")},
            work=WorkDone(
                num_steps=num_steps,
                num_region_steps=plan.boundaries.k2 - first,
                num_dense_steps=num_steps - plan.boundaries.k2,
                num_cached_steps=0,
                edit_share=0.2 if plan.region_phrase else None,
                see_share=0.5 if plan.region_phrase else None,
                encode_prompt_s=0.1,
                region_s=0.1,
                dense_s=0.8,
            ),
            num_tokens=48,
            num_tokens_dropped=self.num_tokens_dropped,
            fetch_s=0.01,
            decode_s=0.1,
            encode_s=0.1,
        )
        if not plan.is_hit and clip.reuse is not ReuseMode.OFF:
            yield TrajectoryStored(steps=(1, 2), num_bytes=100, frames_FHWC=f"frames of {run.request.video_id}")


class FakeMaskGenerator:
    """Notes what it is asked for; `hold` keeps every call waiting."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, object, tuple[str, ...]]] = []
        self.num_asked = 0
        self.fault: Exception | None = None
        self.hangs = False

    async def make(self, tenant: str, source_id: str, frames_FHWC: object, phrases: tuple[str, ...]) -> None:
        """Make the masks of a source's phrases."""
        self.num_asked += 1
        if self.hangs:
            await for_ever()
        if self.fault is not None:
            raise self.fault
        self.made.append((tenant, source_id, frames_FHWC, phrases))


class FakeDiffExtractor:
    """Answers as the aligner would for a target prompt that it is told, whatever it is asked."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.asked: list[tuple[str, str]] = []
        self.fault: Exception | None = None
        self.fallback_reason: FallbackReason | None = None

    async def extract(self, source: str, target: str) -> DiffResult:
        """Compare two prompts."""
        self.asked.append((source, target))
        if self.fault is not None:
            raise self.fault
        return DiffResult(
            diff=align_diff(source, self.target),
            engine=DiffEngineName.LLM,
            fallback_reason=self.fallback_reason,
            milliseconds=1.0,
        )
