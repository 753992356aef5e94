"""Ends of jobs on a real Valkey: each is told, whoever dies meanwhile, to the log and the metrics."""

import dataclasses
import json
import pathlib
from collections.abc import AsyncIterator

import pytest

from deployments.api.ended_jobs import EndedJobs
from deployments.api.facts import FailureCode, StageSeconds
from deployments.api.job_keys import job_key
from deployments.api.jobs import JobStore
from deployments.api.redis_client import connect_async
from deployments.api.video_job import VideoJob
from deployments.herald import Herald
from deployments.job_log import JobLog, log_line
from deployments.job_metrics import JobMetrics, samples_of
from deployments.metrics import METRICS
from tests.unit.api.clips import FACTS, TENANT, add_job
from tests.unit.deployments.test_guard import Notes


class Book:
    """Notes what it is told, and fails when it is to."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.fault: Exception | None = None

    async def report(self, job: VideoJob) -> None:
        if self.fault is not None:
            raise self.fault
        self.ids.append(job.id)


@pytest.fixture
async def ended(jobs_url: str) -> AsyncIterator[EndedJobs]:
    reader = EndedJobs.connect(jobs_url, name="herald")
    yield reader
    await reader.close()


async def tell_all(herald: Herald) -> int:
    told = await herald.report_some(wait_s=0.01)  # the first time it only makes its group
    return told + await herald.report_some(wait_s=0.01)


async def end(jobs: JobStore, outcome: str = "completed") -> VideoJob:
    """Run one job to its end."""
    made = await add_job(jobs)
    (claimed,) = await jobs.claim("router", count=1, block_s=0.01)
    await jobs.mark_started(claimed.lease)
    if outcome == "failed":
        await jobs.fail(claimed.lease, FailureCode.OUT_OF_MEMORY, "too large")
    else:
        facts = dataclasses.replace(
            FACTS,
            hit=True,
            source_id="video_0",
            k1=2,
            k2=2,
            steps_computed=2,
            steps_skipped=2,
            steps_cached=0,
            is_lowered=True,
            change_kinds=("colour",),
            seconds=StageSeconds(embed=0.01, denoise=1.5),
        )
        await jobs.finish(claimed.lease, facts)
    job = await jobs.get(TENANT, made.id)
    assert job is not None
    return job


async def test_every_end_is_told_once(jobs: JobStore, ended: EndedJobs) -> None:
    book = Book()
    herald = Herald(ended, jobs, [book])
    made = [(await end(jobs, outcome)).id for outcome in ("completed", "failed", "completed")]
    assert await tell_all(herald) == 3
    assert book.ids == made
    assert await tell_all(herald) == 0


async def test_a_reporter_that_fails_keeps_no_other_from_it(jobs: JobStore, ended: EndedJobs) -> None:
    broken, book = Book(), Book()
    broken.fault = RuntimeError("disk is full")
    job = await end(jobs)
    await tell_all(Herald(ended, jobs, [broken, book]))
    assert book.ids == [job.id]


async def test_what_a_dead_herald_had_taken_is_told_by_another(
    jobs: JobStore, ended: EndedJobs, jobs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await end(jobs)
    assert await ended.take(count=9, block_s=0.01) == [], "only the group is made"
    assert [taken.video_id for taken in await ended.take(count=9, block_s=0.01)] == [job.id]
    other, book = EndedJobs.connect(jobs_url, name="other"), Book()
    assert await Herald(other, jobs, [book]).report_some(wait_s=0.01) == 0, "it may still be at it"
    monkeypatch.setattr("deployments.api.ended_jobs._TAKEN_OVER_MS", 0)
    assert await Herald(other, jobs, [book]).report_some(wait_s=0.01) == 1
    await other.close()
    assert book.ids == [job.id]


async def test_of_a_job_deleted_meanwhile_nothing_is_told(jobs: JobStore, ended: EndedJobs) -> None:
    job, book = await end(jobs), Book()
    await jobs.delete(TENANT, job.id)
    assert await tell_all(Herald(ended, jobs, [book])) == 1
    assert book.ids == []


async def test_an_end_that_nobody_can_read_holds_up_no_other(jobs: JobStore, ended: EndedJobs, jobs_url: str) -> None:
    broken, job, book = await end(jobs), await end(jobs), Book()
    client = connect_async(jobs_url)
    await client.hset(job_key(TENANT, broken.id), "request", "not what was written")
    await client.aclose()
    assert await tell_all(Herald(ended, jobs, [book])) == 2
    assert book.ids == [job.id]
    assert await tell_all(Herald(ended, jobs, [book])) == 0, "it does not come again"


async def test_a_line_says_what_happened_and_no_prompt(jobs: JobStore, tmp_path: pathlib.Path) -> None:
    job = await end(jobs)
    for path, with_prompts in ((tmp_path / "a" / "jobs.log", False), (tmp_path / "b.log", True)):
        log = JobLog(path, with_prompts=with_prompts)
        await log.report(job)
        await log.report(await end(jobs, "failed"))
        done, failed = map(json.loads, path.read_text().splitlines())
        assert (done["event"], done["video_id"], done["tenant"]) == ("job_ended", job.id, TENANT)
        assert (done["status"], done["error"], done["hit"], done["k1"]) == ("completed", None, True, 2)
        assert done["seconds"] == {"embed": 0.01, "denoise": 1.5}
        assert 0 <= done["waited_s"] <= done["job_s"]
        assert (failed["status"], failed["error"]) == ("failed", "out_of_memory")
        assert (job.request.prompt in path.read_text()) == with_prompts


async def test_equal_prompts_have_equal_hashes(jobs: JobStore) -> None:
    job = await end(jobs)
    strange = dataclasses.replace(job, request=dataclasses.replace(job.request, prompt="\ud800"))
    hashes = [json.loads(log_line(each, with_prompt=False))["prompt_sha256"] for each in (job, job, strange)]
    assert hashes[0] == hashes[1] != hashes[2]


async def test_samples_fit_the_table_and_the_job(jobs: JobStore) -> None:
    notes = Notes()
    metrics = JobMetrics(notes)
    await metrics.report(await end(jobs))
    await metrics.report(await end(jobs, "failed"))
    assert notes.of("reprise_jobs_total") == [
        (("clips", "completed", ""), 1),
        (("clips", "failed", "out_of_memory"), 1),
    ]
    assert notes.of("reprise_reuse_total") == [(("hit",), 1)]
    assert notes.of("reprise_gate_lowered_total") == [(("colour",), 1)]
    assert notes.of("reprise_steps_total") == [(("computed",), 2), (("skipped",), 2), (("cached",), 0)]
    assert dict(notes.of("reprise_stage_seconds")) == {("clips", "embed"): 0.01, ("clips", "denoise"): 1.5}
    ((tags, took),) = notes.of("reprise_job_seconds")
    assert (tags, took >= 0) == (("clips", "hit"), True)
    assert len(notes.of("reprise_queue_wait_seconds")) == 2


async def test_a_miss_is_counted_by_its_reason(jobs: JobStore) -> None:
    job = await end(jobs)
    missed = dataclasses.replace(job, reuse=dataclasses.replace(job.reuse, hit=False, reason="words_differ"))
    (sample,) = [sample for sample in samples_of(missed) if sample.name == "reprise_reuse_total"]
    assert sample.tags == ("words_differ",)


def test_names_carry_their_unit() -> None:
    units = ("_total", "_seconds", "_bytes")
    counts = {"reprise_jobs_waiting", "reprise_jobs_running", "reprise_circuit_open", "reprise_cache_entries"}
    counts |= {"reprise_streams", "reprise_stream_viewers"}
    assert {name for name in METRICS if not name.endswith(units)} == counts
