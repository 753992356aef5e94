"""The theory against a stream that is really controlled: averages over thousands of changes at any phase."""

import random
import statistics

import pytest

from reprise.speculative.estimator import ComputeEstimator, EstimatorConfig
from reprise.speculative.latency import Commitment, LatencyModel
from reprise.speculative.machine import MachineConfig
from reprise.speculative.report import StreamReport, read_report
from reprise.speculative.simulation import same_each_time, simulate


def isolated_changes(count: int, chunk_s: float, *, seed: int) -> list[float]:
    """Draw changes at least three chunks apart, at any phase alike."""
    rng, at, changes = random.Random(seed), 0.0, []
    for _ in range(count):
        at += 3 * chunk_s + rng.uniform(0, chunk_s)
        changes.append(at)
    return changes


def run(model: LatencyModel, commitment: Commitment, changes: list[float]) -> StreamReport:
    # The margin is a grain over what floats lose, so that a call that takes as long as estimated is in time.
    config = MachineConfig(
        chunk_groups=model.chunk_groups,
        group_s=model.group_s,
        estimator=EstimatorConfig(initial_s=model.compute_s, margin=1e-7),
        commitment=commitment,
    )
    steps = simulate(config, changes, until_s=changes[-1] + 5 * model.chunk_s, call=same_each_time(model.compute_s))
    return read_report(steps, group_s=model.group_s)


@pytest.mark.parametrize(
    ("chunk_groups", "group_s", "compute_s"),
    [(8, 0.5, 0.5), (8, 0.5, 0.7), (8, 0.5, 1.0), (4, 0.5, 0.3), (21, 0.25, 0.1), (2, 1.0, 0.5), (5, 1.0, 5.0)],
)
def test_means_meet_the_theory(chunk_groups: int, group_s: float, compute_s: float) -> None:
    """2,000 changes; the mean's standard error is under 0.7 % of it, so 2 % fails by chance less than once in 200."""
    model = LatencyModel(chunk_groups=chunk_groups, group_s=group_s, compute_s=compute_s)
    changes = isolated_changes(2000, model.chunk_s, seed=chunk_groups)
    for commitment in Commitment:
        report = run(model, commitment, changes)
        assert len(report.responses_s) == len(changes)
        assert report.stalled_s == pytest.approx(0)
        assert statistics.fmean(report.responses_s) == pytest.approx(model.expected_response_s(commitment), rel=0.02)


def test_with_headroom_the_mean_is_a_call_and_half_a_group_and_the_gain_half_of_the_rest_of_the_chunk() -> None:
    """10,000 changes against the paper's own three formulas, where a refill hardly ever stands in the way."""
    model = LatencyModel(chunk_groups=10, group_s=0.5, compute_s=0.01)
    changes = isolated_changes(10_000, model.chunk_s, seed=1)
    ours, baseline = (statistics.fmean(run(model, one, changes).responses_s) for one in Commitment)
    assert ours == pytest.approx(model.group_boundary_s, rel=0.02)
    assert baseline == pytest.approx(model.fixed_boundary_s, rel=0.02)
    assert baseline - ours == pytest.approx(model.reduction_s, rel=0.02)


def test_figures_of_the_paper() -> None:
    for frames, expected in ((22, 0.4375), (124, 2.5625)):
        assert LatencyModel(chunk_groups=frames, group_s=1 / 24, compute_s=0).reduction_s == pytest.approx(expected)


def test_a_worker_that_is_always_busy_leaves_nothing_to_gain() -> None:
    model = LatencyModel(chunk_groups=6, group_s=0.5, compute_s=3.0)
    responses = {commitment: model.expected_response_s(commitment) for commitment in Commitment}
    assert responses[Commitment.GROUP] == pytest.approx(1.5 * model.chunk_s)
    assert responses[Commitment.CHUNK] == pytest.approx(1.5 * model.chunk_s)


def test_a_call_longer_than_its_chunk_has_no_steady_state() -> None:
    with pytest.raises(ValueError, match="compute_s=3"):
        LatencyModel(chunk_groups=2, group_s=1, compute_s=3)


def test_an_estimate_covers_most_of_the_last_calls_and_a_margin() -> None:
    estimator = ComputeEstimator(EstimatorConfig(initial_s=2.0, window=10, quantile=0.9, margin=0.1))
    assert estimator.first_s == pytest.approx(2.2)
    for first_s in range(1, 21):
        estimator.observe(first_s=first_s / 10, whole_s=first_s)
    assert estimator.first_s == pytest.approx(1.9 * 1.1), "the ninth of the last ten"
    assert estimator.whole_s == pytest.approx(19 * 1.1)
    assert estimator.lead_s == pytest.approx(2.0 * 1.1), "the slowest of them, and what was assumed at first"
    estimator.observe(first_s=3.0, whole_s=3.0)
    assert estimator.lead_s == pytest.approx(3.3)


@pytest.mark.parametrize("change", [{"initial_s": 0}, {"window": 0}, {"quantile": 1.5}, {"margin": -1}])
def test_an_estimator_that_cannot_be_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected initial_s > 0"):
        EstimatorConfig(**{"initial_s": 1.0, **change})  # type: ignore[arg-type]
