"""A random walk over the job store, checked against a model in memory after every step.

Routers die at will (a lease is lost as soon as another looks), stale ones go on writing, replicas restart, and two
tenants of unequal weight take turns.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeVar

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
from deployments.api.job_keys import ENDED, lane_key, limits_key, queue_key
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.video_job import JobLease, Lane, VideoStatus, WriteOutcome
from tests.unit.api.clips import FACTS, add_job

MAX_ATTEMPTS = 3
WEIGHTS = {"light": 1.0, "heavy": 2.0}
FINAL = (VideoStatus.COMPLETED, VideoStatus.FAILED)
T = TypeVar("T")


@dataclasses.dataclass
class ModelJob:
    """What a job must look like."""

    tenant: str = "light"
    work_s: float = 0.0
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
        self.keys: dict[tuple[str, str], str] = {}
        self.tenants: dict[str, str] = {}
        self.ended = 0
        self.virtual = 0.0
        self.turns: dict[str, float] = {}

    def wait(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return self.runner.run(run())

    @initialize()
    def empty(self) -> None:
        async def flush() -> None:
            redis = Redis.from_url(self.url)
            await redis.flushdb()
            for tenant, weight in WEIGHTS.items():
                await redis.hset(limits_key(tenant), "weight", weight)
            await redis.aclose()

        self.wait(flush())
        self.connect()

    def connect(self) -> None:
        self.store = JobStore.connect(self.url, JobStoreConfig(lease_timeout_s=0.0, max_attempts=MAX_ATTEMPTS))

    @rule(target=ids, tenant=st.sampled_from(sorted(WEIGHTS)), work_s=st.sampled_from([0.0, 0.5, 4.0]))
    def create(self, tenant: str, work_s: float) -> str:
        job = self.wait(add_job(self.store, tenant=tenant, work_s=work_s))
        self.add(job.id, tenant, work_s)
        return job.id

    def add(self, video_id: str, tenant: str, work_s: float = 0.0) -> None:
        assert video_id not in self.model
        self.model[video_id] = ModelJob(tenant=tenant, work_s=work_s)
        self.tenants[video_id] = tenant
        self.turns[tenant] = max(self.turns.get(tenant, 0.0), self.virtual)

    @rule(target=ids, tenant=st.sampled_from(sorted(WEIGHTS)), key=st.sampled_from("ab"))
    def create_with_key(self, tenant: str, key: str) -> str:
        job = self.wait(add_job(self.store, tenant=tenant, key=key))
        if self.keys.get((tenant, key)) in self.model:
            assert job.id == self.keys[tenant, key]
        else:
            self.add(job.id, tenant)
            self.keys[tenant, key] = job.id
        return job.id

    @rule(target=leases)
    def claim(self) -> JobLease | None:
        expected = self.begin_next()
        claimed = self.wait(self.store.claim("router", count=1, block_s=0.001))
        assert [one.job.id for one in claimed] == ([] if expected is None else [expected])
        if expected is None:
            return None
        assert claimed[0].lease.attempt == self.model[expected].attempts
        return claimed[0].lease

    def begin_next(self) -> str | None:
        """With a lease time of nothing, the oldest run of a tenant that was begun comes before a turn is taken."""
        by_turn = sorted(self.turns, key=lambda tenant: (self.turns[tenant], tenant))
        for tenant in by_turn:
            begun = self.open_jobs(tenant, is_begun=True)
            if begun and self.begin(begun[0]):
                return begun[0]
        for tenant in by_turn:
            waiting = self.open_jobs(tenant, is_begun=False)
            if waiting:
                self.virtual = max(self.virtual, self.turns[tenant])
                self.turns[tenant] += (self.model[waiting[0]].work_s or 1.0) / WEIGHTS[tenant]
                assert self.begin(waiting[0])
                return waiting[0]
        return None

    def open_jobs(self, tenant: str, *, is_begun: bool) -> list[str]:
        return sorted(
            video_id
            for video_id, job in self.model.items()
            if job.may_run and job.tenant == tenant and (job.attempts > 0) == is_begun
        )

    def begin(self, video_id: str) -> bool:
        job = self.model[video_id]
        job.attempts += 1
        if job.attempts > MAX_ATTEMPTS:
            job.status = VideoStatus.FAILED
            self.ended += 1
        return job.may_run

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
            job = self.model[lease.video_id]
            job.status, job.progress = VideoStatus.COMPLETED, 100
            self.ended += 1

    @rule(lease=leases)
    def fail(self, lease: JobLease | None) -> None:
        if lease is None:
            return
        expected = self.expect(lease, (VideoStatus.QUEUED, VideoStatus.IN_PROGRESS))
        assert self.wait(self.store.fail(lease, FailureCode.INTERNAL_ERROR, "late")) is expected
        if expected is WriteOutcome.APPLIED:
            self.model[lease.video_id].status = VideoStatus.FAILED
            self.ended += 1

    @rule(lease=leases)
    def renew(self, lease: JobLease | None) -> None:
        if lease is None:
            return
        job = self.model.get(lease.video_id)
        held = job is not None and job.may_run and job.attempts == lease.attempt
        assert self.wait(self.store.renew([lease])) == (frozenset() if held else {lease.video_id})

    @rule(video_id=ids)
    def delete(self, video_id: str) -> None:
        tenant = self.tenants[video_id]
        assert self.wait(self.store.delete(tenant, video_id)) == (video_id in self.model)
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
        for tenant in WEIGHTS:
            page = self.wait(self.store.page(tenant, after=None, limit=100, order="asc"))
            expected = {video_id: job for video_id, job in sorted(self.model.items()) if job.tenant == tenant}
            found = [(job.id, job.status, job.progress, job.attempts) for job in page.jobs]
            assert found == [(video_id, job.status, job.progress, job.attempts) for video_id, job in expected.items()]
            for job in page.jobs:
                assert (job.error is not None) == (job.status is VideoStatus.FAILED)
                assert (job.completed_at is not None) == (job.status is VideoStatus.COMPLETED)

    @invariant()
    def the_queues_hold_what_is_left_to_do(self) -> None:
        if not hasattr(self, "store"):
            return
        redis = self.store._redis
        work: dict[Any, Any] = self.wait(redis.hgetall(lane_key(Lane.CLIPS, "work")))
        for tenant in WEIGHTS:
            left = [job for job in self.model.values() if job.may_run and job.tenant == tenant]
            assert self.wait(redis.xlen(queue_key(Lane.CLIPS, tenant))) == len(left)
            assert float(work.get(tenant, 0)) == pytest.approx(sum(job.work_s for job in left), abs=1e-6)
        assert self.wait(redis.xlen(ENDED)) == self.ended, "each end is told once"

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
