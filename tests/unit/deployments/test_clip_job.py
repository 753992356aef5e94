"""One clip job from look-up to finished files: what its caller sees, whatever its parts do."""

import asyncio
import dataclasses

import pytest

from actors.diff_extractor import FallbackReason
from actors.messages import ClipRequest
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import FailureCode
from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoStatus
from deployments.clip_job import MAX_MASK_TASKS
from deployments.parts import WorkerLost, WorkFailed
from reprise.chorus.plan import Candidate, MissReason, ReuseMode
from tests.fakes.clip_parts import FakeDiffExtractor
from tests.unit.deployments.conftest import CLIP, STEPS, TENANT, Shop, until

SIMILAR = dataclasses.replace(CLIP, prompt=f"{CLIP.prompt} again", seed=8)


async def test_a_miss_is_stored_and_the_next_similar_prompt_hits_it(shop: Shop) -> None:
    runner = shop.runner()
    first = await shop.make(runner)
    assert (first.status, first.progress, first.error) == (VideoStatus.COMPLETED, 100, None)
    facts = first.reuse
    assert (facts.hit, facts.reason, facts.source_id) == (False, MissReason.EMPTY_CACHE, None)
    assert (facts.k1, facts.k2, facts.steps_computed, facts.steps_skipped) == (0, 0, STEPS, 0)
    second = await shop.make(runner, SIMILAR)
    facts = second.reuse
    assert (facts.hit, facts.reason, facts.source_id) == (True, None, first.id)
    assert (facts.k1, facts.k2, facts.steps_computed, facts.steps_skipped) == (1, 1, STEPS - 1, 1)
    assert facts.matching_score == pytest.approx(4 / 20**0.5, abs=0.1), "four words of five"
    assert shop.retrieval.touched == [(TENANT, first.id, 1)]
    assert list(shop.retrieval.admitted) == [first.id], "a hit stores nothing"


async def test_every_stage_that_ran_tells_its_seconds(shop: Shop) -> None:
    seconds = dataclasses.asdict((await shop.make(shop.runner())).reuse.seconds)
    assert [name for name, value in seconds.items() if value is None] == ["diff", "region", "first_frame"]
    off = (await shop.make(shop.runner(is_reuse_on=False))).reuse.seconds
    assert (off.embed, off.lookup) == (None, None)


async def test_the_files_are_those_of_the_clip(shop: Shop) -> None:
    job = await shop.make(shop.runner())
    assert shop.files() == [f"{TENANT}/{job.id}/{variant.file_name}" for variant in sorted(Variant, key=_file_name)]
    for variant in Variant:
        file = shop.artifacts.open(TENANT, job.id, variant)
        assert file is not None
        with file:
            assert file.read() == f"{variant} of seed 7".encode()


def _file_name(variant: Variant) -> str:
    return variant.file_name


@pytest.mark.parametrize("part", ["embedder", "retrieval"])
@pytest.mark.parametrize("reason", [MissReason.LOOKUP_TIMEOUT, MissReason.LOOKUP_FAILED])
async def test_a_fault_of_reuse_is_a_miss_of_reuse_only(shop: Shop, part: str, reason: MissReason) -> None:
    await shop.make(shop.runner())
    broken = shop.embedder if part == "embedder" else shop.retrieval
    broken.hangs = reason is MissReason.LOOKUP_TIMEOUT
    broken.fault = ConnectionError("gone")
    job = await shop.make(shop.runner(timeout_s=0.01))
    assert (job.status, job.reuse.hit, job.reuse.reason) == (VideoStatus.COMPLETED, False, reason)
    assert shop.denoiser.runs[-1].request.plan.reason is reason


async def test_a_candidate_that_makes_no_sense_is_a_miss(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def of_another_partition(*_: object) -> list[Candidate]:
        other = Candidate(source_id="x", matching_score=0.9, prompt="a", seed=1, num_steps=50, stored_steps=(5,))
        return [other]

    monkeypatch.setattr(shop.retrieval, "candidates", of_another_partition)
    job = await shop.make(shop.runner())
    assert (job.status, job.reuse.reason) == (VideoStatus.COMPLETED, MissReason.LOOKUP_FAILED)


@pytest.mark.parametrize(
    ("clip", "is_reuse_on"), [(CLIP, False), (dataclasses.replace(CLIP, reuse=ReuseMode.OFF), True)]
)
async def test_reuse_off_looks_nothing_up(shop: Shop, clip: ClipRequest, is_reuse_on: bool) -> None:
    await shop.make(shop.runner())
    shop.embedder.fault = AssertionError("asked")
    job = await shop.make(shop.runner(is_reuse_on=is_reuse_on), clip)
    assert (job.reuse.hit, job.reuse.reason) == (False, MissReason.OFF)
    assert len(shop.retrieval.admitted) == 1, "without an embedding it cannot be found either"


async def test_a_prompt_longer_than_the_embedder_reads_is_neither_matched_nor_stored(shop: Shop) -> None:
    runner = shop.runner()
    clip = dataclasses.replace(CLIP, prompt="a red ball rises " * 6)
    for _ in range(2):
        job = await shop.make(runner, clip)
        assert (job.reuse.hit, job.reuse.reason) == (False, MissReason.PROMPT_EXCEEDS_ENCODER)
    assert shop.retrieval.admitted == {}


async def test_a_cut_prompt_is_said(shop: Shop) -> None:
    shop.denoiser.num_tokens_dropped = 3
    job = await shop.make(shop.runner())
    (warning,) = job.reuse.warnings
    assert (warning.code, warning.used, warning.dropped) == ("prompt_truncated", 48, 3)


async def test_a_source_that_went_meanwhile_is_a_miss_and_is_not_counted(shop: Shop) -> None:
    await shop.make(shop.runner())
    shop.denoiser.source_is_gone = True
    job = await shop.make(shop.runner(), SIMILAR)
    facts = job.reuse
    assert (facts.hit, facts.reason, facts.source_id, facts.k1) == (False, MissReason.SOURCE_MISSING, None, 0)
    assert facts.matching_score is not None
    assert shop.retrieval.touched == []
    assert job.id in shop.retrieval.admitted, "it can be a source itself now"


async def test_the_status_is_queued_until_the_first_step(shop: Shop) -> None:
    shop.denoiser.hold()
    claimed = await shop.claim()
    work = asyncio.create_task(shop.runner().run(claimed))
    await until(lambda: bool(shop.denoiser.runs))
    job = await shop.read(claimed.job.id)
    assert (job.status, job.progress) == (VideoStatus.QUEUED, 0)
    shop.denoiser.release()
    await work
    assert (await shop.read(job.id)).status is VideoStatus.COMPLETED


async def test_a_lost_worker_leaves_the_job_to_the_next_router(shop: Shop, hasty: JobStore) -> None:
    shop.denoiser.fault = WorkerLost("killed")
    cut = await shop.make(shop.runner())
    assert (cut.status, cut.progress, cut.error) == (VideoStatus.IN_PROGRESS, 50, None)
    assert shop.files() == []
    shop.denoiser.fault = None
    (again,) = await hasty.claim("router-2", count=1, block_s=0.01)
    assert (again.job.id, again.lease.attempt) == (cut.id, 2)
    await shop.runner().run(again)
    job = await shop.read(cut.id)
    assert (job.status, job.attempts, job.reuse.hit) == (VideoStatus.COMPLETED, 2, False)
    assert len(shop.files()) == len(Variant)
    assert await hasty.claim("router-3", count=1, block_s=0.01) == []


async def test_progress_never_falls_over_both_runs(
    shop: Shop, hasty: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write = shop.jobs.set_progress

    async def note(*arguments: object) -> object:
        outcome = await write(*arguments)  # type: ignore[arg-type]
        seen.append((await shop.read(cut.job.id)).progress)
        return outcome

    monkeypatch.setattr(shop.jobs, "set_progress", note)
    shop.denoiser.fault = WorkerLost("killed")
    cut = await shop.claim()
    await shop.runner().run(cut)
    shop.denoiser.fault = None
    (again,) = await hasty.claim("router-2", count=1, block_s=0.01)
    await shop.runner().run(again)
    assert seen == [0, 25, 50, 50, 50, 50, 75, 99], "the second run starts from 0 again"


async def test_a_run_that_lost_its_lease_writes_nothing_more(shop: Shop, hasty: JobStore) -> None:
    shop.denoiser.hold()
    slow = await shop.claim()
    work = asyncio.create_task(shop.runner().run(slow))
    await until(lambda: bool(shop.denoiser.runs))
    (again,) = await hasty.claim("router-2", count=1, block_s=0.01)
    shop.denoiser.release()
    await work
    job = await shop.read(slow.job.id)
    assert (job.status, shop.files()) == (VideoStatus.QUEUED, [])
    assert shop.denoiser.runs[0].steps_begun == 0
    await shop.runner().run(again)
    assert (await shop.read(job.id)).status is VideoStatus.COMPLETED


async def test_work_that_cannot_succeed_fails_with_its_code(shop: Shop, hasty: JobStore) -> None:
    shop.denoiser.fault = WorkFailed(FailureCode.OUT_OF_MEMORY, "ask for a smaller clip")
    job = await shop.make(shop.runner())
    assert job.status is VideoStatus.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.message) == (FailureCode.OUT_OF_MEMORY, "ask for a smaller clip")
    assert (shop.files(), shop.retrieval.admitted) == ([], {})
    assert await hasty.claim("router-2", count=1, block_s=0.01) == [], "it is not tried again"


async def test_files_that_cannot_be_written_fail_the_job(shop: Shop) -> None:
    shop.artifacts = ArtifactStore("/proc/no-such-folder")
    job = await shop.make(shop.runner())
    assert job.status is VideoStatus.FAILED
    assert job.error is not None
    assert job.error.code is FailureCode.STORAGE_FAILED
    assert shop.retrieval.admitted == {}


async def test_a_deleted_job_stops_before_its_next_step_and_stays_away(shop: Shop) -> None:
    shop.denoiser.hold()
    claimed = await shop.claim()
    work = asyncio.create_task(shop.runner().run(claimed))
    await until(lambda: bool(shop.denoiser.runs))
    assert await shop.jobs.delete(TENANT, claimed.job.id)
    shop.denoiser.release()
    await work
    (run,) = shop.denoiser.runs
    assert (run.is_closed, run.steps_begun) == (True, 0)
    assert await shop.jobs.get(TENANT, claimed.job.id) is None
    assert (shop.files(), shop.retrieval.admitted) == ([], {})


async def test_a_job_deleted_while_it_finishes_leaves_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = shop.jobs.finish

    async def delete_first(*arguments: object) -> object:
        await shop.jobs.delete(TENANT, claimed.job.id)
        return await finish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shop.jobs, "finish", delete_first)
    claimed = await shop.claim()
    await shop.runner().run(claimed)
    assert await shop.jobs.get(TENANT, claimed.job.id) is None
    assert (shop.files(), shop.retrieval.num_admissions) == ([], 0)
    assert shop.retrieval.purged == [(TENANT, claimed.job.id)], "its latents were stored already"


async def test_a_job_deleted_while_it_is_registered_is_not_reused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    admit = shop.retrieval.admit

    async def delete_first(*arguments: object) -> object:
        await shop.jobs.delete(TENANT, claimed.job.id)
        await shop.retrieval.purge(TENANT, claimed.job.id)
        return await admit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shop.retrieval, "admit", delete_first)
    claimed = await shop.claim()
    await shop.runner().run(claimed)
    assert shop.retrieval.admitted == {}
    monkeypatch.undo()
    assert (await shop.make(shop.runner(), SIMILAR)).reuse.reason == MissReason.EMPTY_CACHE


async def test_a_remix_starts_from_its_video_whatever_is_nearer(shop: Shop) -> None:
    runner = shop.runner()
    source = await shop.make(runner, dataclasses.replace(CLIP, prompt="snow falls on a quiet village"))
    nearer = await shop.make(runner)
    clip = dataclasses.replace(SIMILAR, remix_of=source.id)
    remix = await shop.make(runner, clip)
    assert (remix.reuse.hit, remix.reuse.source_id) == (True, source.id)
    assert remix.reuse.matching_score == 0.75, "at tau at least"
    assert (await shop.make(runner, SIMILAR)).reuse.source_id == nearer.id


async def test_a_remix_of_a_hit_starts_from_the_hit_s_own_source(shop: Shop) -> None:
    runner = shop.runner()
    source = await shop.make(runner)
    hit = await shop.make(runner, SIMILAR)
    assert hit.reuse.hit
    remix = await shop.make(runner, dataclasses.replace(CLIP, seed=9, remix_of=hit.id))
    assert (remix.reuse.hit, remix.reuse.source_id) == (True, source.id)


async def test_a_remix_whose_source_is_gone_is_computed_in_full(shop: Shop) -> None:
    runner = shop.runner()
    source = await shop.make(runner)
    await shop.retrieval.purge(TENANT, source.id)
    await shop.make(runner, SIMILAR)
    job = await shop.make(runner, dataclasses.replace(CLIP, remix_of=source.id))
    assert (job.status, job.reuse.reason) == (VideoStatus.COMPLETED, MissReason.SOURCE_MISSING)


@pytest.mark.parametrize(
    "other",
    [
        {"negative_prompt": "blur"},
        {"guidance_scale": 5.0},
        {"num_frames": 5},
        {"num_inference_steps": 8},
        {"width": 32},
    ],
)
async def test_nothing_passes_between_unlike_requests(shop: Shop, other: dict[str, object]) -> None:
    await shop.make(shop.runner())
    clip: ClipRequest = dataclasses.replace(CLIP, **other)  # type: ignore[arg-type]
    assert (await shop.make(shop.runner(), clip)).reuse.reason == MissReason.EMPTY_CACHE


async def test_masks_of_a_stored_source_are_made_and_of_a_hit_none(shop: Shop) -> None:
    runner = shop.runner()
    job = await shop.make(runner)
    await until(lambda: bool(shop.masks.made))
    await shop.make(runner, SIMILAR)
    assert shop.masks.made == [(TENANT, job.id, f"frames of {job.id}", ("red ball",))]
    assert shop.masks.num_asked == 1


async def test_jobs_wait_for_no_masks_and_a_backlog_is_cut(shop: Shop) -> None:
    shop.masks.hangs = True
    runner = shop.runner()
    for seed in range(MAX_MASK_TASKS + 2):
        job = await shop.make(runner, dataclasses.replace(CLIP, negative_prompt=str(seed)))
        assert job.status is VideoStatus.COMPLETED
    await until(lambda: shop.masks.num_asked >= MAX_MASK_TASKS)
    await asyncio.sleep(0.05)  # a task too many would have asked by now
    assert shop.masks.num_asked == MAX_MASK_TASKS


async def test_a_source_without_masks_is_still_a_source(shop: Shop) -> None:
    shop.masks.fault = RuntimeError("no segmenter")
    runner = shop.runner()
    await shop.make(runner)
    await until(lambda: shop.masks.num_asked == 1)
    assert (await shop.make(runner, SIMILAR)).reuse.hit


OTHER = dataclasses.replace(CLIP, prompt="a blue ball rises", seed=8)


async def test_another_engine_than_the_aligner_has_a_say(shop: Shop) -> None:
    shop.diff = FakeDiffExtractor("no blue ball rises")
    runner = shop.runner()
    source = await shop.make(runner)
    assert shop.diff.asked == []
    job = await shop.make(runner, OTHER)
    assert shop.diff.asked == [(CLIP.prompt, OTHER.prompt)]
    assert (job.reuse.hit, job.reuse.reason, job.reuse.change_kinds) == (False, "words_differ", ("negation", "colour"))
    assert job.reuse.seconds.diff is not None
    assert source.reuse.seconds.diff is None


@pytest.mark.parametrize("fault", [RuntimeError("broken"), None])
async def test_without_an_answer_the_aligners_holds(shop: Shop, fault: Exception | None) -> None:
    shop.diff = FakeDiffExtractor("no blue ball rises")
    shop.diff.fault, shop.diff.fallback_reason = fault, FallbackReason.DEADLINE
    runner = shop.runner()
    await shop.make(runner)
    job = await shop.make(runner, OTHER)
    assert (job.reuse.hit, job.reuse.words_added, job.reuse.words_removed) == (True, ("blue",), ("red",))


async def test_nothing_else_than_the_same_request_is_exact(shop: Shop) -> None:
    runner = shop.runner()
    await shop.make(runner)
    job = await shop.make(runner, dataclasses.replace(OTHER, reuse=ReuseMode.EXACT))
    assert (job.reuse.hit, job.reuse.reason) == (False, MissReason.NOT_THE_SAME)


async def test_a_request_can_name_its_source_and_its_own_tau(shop: Shop) -> None:
    runner = shop.runner()
    source = await shop.make(runner)
    strict = await shop.make(runner, dataclasses.replace(OTHER, tau=0.99))
    assert strict.reuse.reason == MissReason.BELOW_THRESHOLD
    nearer = await shop.make(runner, dataclasses.replace(OTHER, seed=9, source=source.id))
    assert nearer.reuse.source_id == source.id
