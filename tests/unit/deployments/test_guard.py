"""Calls of a part that a job can do without: late, broken, left alone, back again."""

import asyncio
from collections.abc import Iterable

import pytest

from deployments.guard import MAX_FAILURES, PAUSE_S, Guard
from deployments.metrics import METRICS, Sample
from reprise.chorus.plan import MissReason


class Notes:
    """Keeps samples, and checks each against the table as Ray would."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def record(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            assert len(sample.tags) == len(METRICS[sample.name].tags)
            self.samples.append(sample)

    def of(self, name: str) -> list[tuple[tuple[str, ...], float]]:
        return [(sample.tags, sample.value) for sample in self.samples if sample.name == name]


class Part:
    """Answers, fails or hangs."""

    def __init__(self) -> None:
        self.calls, self.fault, self.hangs = 0, False, False

    async def answer(self) -> str:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.fault:
            raise RuntimeError("broken")
        return "answer"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_an_answer_passes(notes: Notes) -> None:
    assert await Guard("part", timeout_s=1.0, metrics=notes).call(Part().answer) == "answer"
    assert notes.of("reprise_circuit_open") == [(("part",), 0)]


async def test_late_and_broken_are_reasons(notes: Notes) -> None:
    part, guard = Part(), Guard("part", timeout_s=0.02, metrics=notes)
    part.hangs = True
    assert await guard.call(part.answer) is MissReason.LOOKUP_TIMEOUT
    part.hangs, part.fault = False, True
    assert await guard.call(part.answer) is MissReason.LOOKUP_FAILED
    assert notes.of("reprise_call_faults_total") == [(("part", "timeout"), 1), (("part", "error"), 1)]


async def test_a_part_that_hangs_costs_a_few_waits_and_then_none(notes: Notes, clock: Clock) -> None:
    part, guard = Part(), Guard("part", timeout_s=0.01, metrics=notes, clock=clock)
    part.hangs = True
    for _ in range(MAX_FAILURES + 20):
        await guard.call(part.answer)
    assert part.calls == MAX_FAILURES
    assert await guard.call(part.answer) is MissReason.CIRCUIT_OPEN
    assert notes.of("reprise_circuit_open")[-1] == (("part",), 1)
    assert notes.of("reprise_call_faults_total")[-1] == (("part", "not_made"), 1)


async def test_one_trial_after_a_pause_brings_it_back(notes: Notes, clock: Clock) -> None:
    part, guard = Part(), Guard("part", timeout_s=1.0, metrics=notes, clock=clock)
    part.fault = True
    for _ in range(MAX_FAILURES):
        await guard.call(part.answer)
    clock.now += PAUSE_S
    assert await guard.call(part.answer) is MissReason.LOOKUP_FAILED
    assert await guard.call(part.answer) is MissReason.CIRCUIT_OPEN
    part.fault = False
    clock.now += PAUSE_S
    assert await guard.call(part.answer) == "answer"
    assert await guard.call(part.answer) == "answer"
    assert notes.of("reprise_circuit_open")[-1] == (("part",), 0)


async def test_without_a_breaker_every_call_is_made() -> None:
    part, guard = Part(), Guard("purge", timeout_s=1.0, has_breaker=False)
    part.fault = True
    for _ in range(3 * MAX_FAILURES):
        assert await guard.call(part.answer) is MissReason.LOOKUP_FAILED
    assert part.calls == 3 * MAX_FAILURES


async def test_a_cancelled_caller_is_no_fault_of_the_part() -> None:
    part, guard = Part(), Guard("part", timeout_s=60.0)
    part.hangs = True
    for _ in range(2 * MAX_FAILURES):
        task = asyncio.create_task(guard.call(part.answer))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    part.hangs = False
    assert await guard.call(part.answer) == "answer"
