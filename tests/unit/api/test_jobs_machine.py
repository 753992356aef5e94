"""A random walk over the job store, checked against a model in memory after every step.

Routers die at will (a lease is lost as soon as another looks), stale ones go on writing, replicas restart.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from redis.asyncio import Redis

from deployments.api.facts import FailureCode
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.video_job import JobLease, VideoStatus, WriteOutcome
from tests.unit.api.clips import FACTS, TENANT, add_job

MAX_ATTEMPTS = 3
FINAL = (VideoStatus.COMPLETED, VideoStatus.FAILED)
T = TypeVar("T")


@dataclasses.dataclass
class ModelJob:
    """What a job must look like."""

    status: VideoStatus = VideoStatus.QUEUED
    progress: int = 0
    attempts: int = 0

    @property
    def may_run(self) -> bool:
        return self.status not in FINAL


class JobStoreMachine(RuleBasedStateMachine):
    """The store and its model."""

    url: ClassVar[str]
    ids = Bundle("ids")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model: dict[str, ModelJob] = {}
        self.deleted: set[str] = set()
        self.keys: dict[str, str] = {}

    def wait(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return self.runner.run(run())

    @initialize()
    def empty(self) -> None:
        async def flush() -> None:
            redis = Redis.from_url(self.url)
            await redis.flushdb()
            await redis.aclose()

        self.wait(flush())
        self.connect()

    def connect(self) -> None:
        self.store = JobStore.connect(self.url, JobStoreConfig(lease_timeout_s=0.0, max_attempts=MAX_ATTEMPTS))
        self.wait(self.store.start())

    @rule(target=ids)
    def create(self) -> str:
        job = self.wait(add_job(self.store))
        self.model[job.id] = ModelJob()
        return job.id

    @rule(target=ids, key=st.sampled_from("ab"))
    def create_with_key(self, key: str) -> str:
        job = self.wait(add_job(self.store, key=key))
        if self.keys.get(key) in self.model:
            assert job.id == self.keys[key]
        else:
            assert job.id not in self.model
            self.model[job.id] = ModelJob()
            self.keys[key] = job.id
        return job.id

    @rule(target=leases)
    def claim(self) -> JobLease | None:
        # With a lease time of nothing, runs that were begun come first, the oldest entry before the others.
        open_jobs = sorted(video_id for video_id, job in self.model.items() if job.may_run)
        begun = [video_id for video_id in open_jobs if self.model[video_id].attempts]
        expected = next(iter(begun or open_jobs), None)
        claimed = self.wait(self.store.claim("router", count=1, block_s=0.001))
        if expected is None:
            assert claimed == []
            return None
        job = self.model[expected]
        job.attempts += 1
        if job.attempts > MAX_ATTEMPTS:
            job.status = VideoStatus.FAILED
            assert claimed == []
            return None
        assert [one.job.id for one in claimed] == [expected]
        assert claimed[0].lease.attempt == job.attempts
        return claimed[0].lease

    def expect(self, lease: JobLease, sources: tuple[VideoStatus, ...]) -> WriteOutcome:
        if lease.video_id in self.deleted:
            return WriteOutcome.DELETED
        job = self.model[lease.video_id]
        if job.attempts != lease.attempt:
            return WriteOutcome.STALE
        return WriteOutcome.APPLIED if job.status in sources else WriteOutcome.ILLEGAL

    @rule(lease=leases)
    def start(self, lease: JobLease | None) -> None:
        if lease is None:
            return
        expected = self.expect(lease, (VideoStatus.QUEUED, VideoStatus.IN_PROGRESS))
        assert self.wait(self.store.mark_started(lease)) is expected
        if expected is WriteOutcome.APPLIED:
            self.model[lease.video_id].status = VideoStatus.IN_PROGRESS

    @rule(lease=leases, progress=st.integers(0, 99))
    def advance(self, lease: JobLease | None, progress: int) -> None:
        if lease is None:
            return
        expected = self.expect(lease, (VideoStatus.IN_PROGRESS,))
        assert self.wait(self.store.set_progress(lease, progress)) is expected
        if expected is WriteOutcome.APPLIED:
            job = self.model[lease.video_id]
            job.progress = max(job.progress, progress)

    @rule(lease=leases)
    def finish(self, lease: JobLease | None) -> None:
        if lease is None:
            return
        expected = self.expect(lease, (VideoStatus.IN_PROGRESS,))
        assert self.wait(self.store.finish(lease, FACTS)) is expected
        if expected is WriteOutcome.APPLIED:
            self.model[lease.video_id] = ModelJob(VideoStatus.COMPLETED, 100, lease.attempt)

    @rule(lease=leases)
    def fail(self, lease: JobLease | None) -> None:
        if lease is None:
            return
        expected = self.expect(lease, (VideoStatus.QUEUED, VideoStatus.IN_PROGRESS))
        assert self.wait(self.store.fail(lease, FailureCode.INTERNAL_ERROR, "late")) is expected
        if expected is WriteOutcome.APPLIED:
            self.model[lease.video_id].status = VideoStatus.FAILED

    @rule(lease=leases)
    def renew(self, lease: JobLease | None) -> None:
        if lease is None:
            return
        job = self.model.get(lease.video_id)
        held = job is not None and job.may_run and job.attempts == lease.attempt
        assert self.wait(self.store.renew([lease])) == (frozenset() if held else {lease.video_id})

    @rule(video_id=ids)
    def delete(self, video_id: str) -> None:
        assert self.wait(self.store.delete(TENANT, video_id)) == (video_id in self.model)
        self.model.pop(video_id, None)
        self.deleted.add(video_id)

    @rule(lease=consumes(leases))
    def die(self, lease: JobLease | None) -> None:
        """Forget a lease without a word."""

    @rule()
    def restart(self) -> None:
        self.wait(self.store.close())
        self.connect()

    @invariant()
    def records_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        page = self.wait(self.store.page(TENANT, after=None, limit=100, order="asc"))
        found = {job.id: ModelJob(job.status, job.progress, job.attempts) for job in page.jobs}
        assert found == self.model
        assert list(found) == sorted(self.model), "in order of creation"
        for job in page.jobs:
            assert (job.error is not None) == (job.status is VideoStatus.FAILED)
            assert (job.completed_at is not None) == (job.status is VideoStatus.COMPLETED)

    @invariant()
    def the_stream_holds_what_is_left_to_do(self) -> None:
        if not hasattr(self, "store"):
            return
        length = self.wait(self.store._redis.xlen("reprise:{jobs}:stream:clips"))
        assert length == sum(job.may_run for job in self.model.values())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.wait(self.store.close())
        self.runner.close()


def test_the_store_agrees_with_its_model(valkey_url: str) -> None:
    JobStoreMachine.url = f"{valkey_url}?db=10"
    run_state_machine_as_test(
        JobStoreMachine,
        settings=settings(
            max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("status", VideoStatus)
def test_final_means_final(status: VideoStatus) -> None:
    assert status.is_final == (status in FINAL)
