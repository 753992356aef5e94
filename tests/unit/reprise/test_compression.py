"""Compressed trajectories: every plan finds its states, fetches no more than it needs, and rebuilds straight paths."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reprise.chorus.compression import compress, entry_bytes, exact_bytes, rebuild
from reprise.chorus.grid import TrajectoryGrid, make_grid, states_needed, steps_needed
from reprise.chorus.stages import NO_REUSE, StageBoundaries, StageMap, StageRow, few_step_map, nirvana_map
from reprise.sampling import EulerSolver, SolverState, flow_sigmas, run_steps

SHAPE = (1, 4, 3, 6, 6)
GRID = TrajectoryGrid(num_steps=50, steps=(5, 10, 15, 20, 25))


def draw(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def levels(num_steps: int) -> list[float]:
    sigmas: list[float] = flow_sigmas(num_steps, shift=3.0).tolist()
    return sigmas


def straight(sigmas: Sequence[float]) -> list[Tensor]:
    """The states of a path whose clean latent never changes."""
    clean, noise = draw(1), draw(2)
    return [(1 - sigma) * clean + sigma * noise for sigma in sigmas]


def wide_map(k1: int, k2: int, *, num_steps: int = 50) -> StageMap:
    return StageMap(tau=0.6, num_steps=num_steps, rows=(StageRow(min_score=0.6, k1=k1, k2=k2),))


def test_grid_holds_what_f_can_return() -> None:
    assert make_grid(nirvana_map(), num_steps=50) == GRID
    assert make_grid(few_step_map(), num_steps=4).steps == (1, 2)
    assert make_grid(wide_map(10, 23), num_steps=50).steps == (5, 10, 14, 18, 23)
    assert make_grid(wide_map(0, 0), num_steps=50).steps == ()


@given(k1=st.integers(0, 50), length=st.integers(0, 50), num_steps=st.integers(1, 120), gap=st.floats(0.001, 1.0))
def test_every_step_up_to_the_last_boundary_is_within_reach(k1: int, length: int, num_steps: int, gap: float) -> None:
    stage_map = wide_map(k1, min(50, k1 + length))
    grid = make_grid(stage_map, max_gap_share=gap, num_steps=num_steps)
    reachable = stage_map.reachable_steps(num_steps=num_steps)
    assert set(reachable) <= set(grid.steps)
    assert max(grid.steps, default=0) == max(reachable, default=0)  # and nothing beyond is stored
    points = (0, *grid.steps)
    assert all(b - a <= max(1, gap * num_steps + 1e-6) for a, b in itertools.pairwise(points))
    for step in range(max(reachable, default=0) + 1):
        low, high = grid.bracket(step)[0], grid.bracket(step)[-1]
        assert low <= step <= high


@st.composite
def plans(draw: st.DrawFn) -> tuple[StageBoundaries, TrajectoryGrid]:
    last = draw(st.integers(1, 50))
    steps = draw(st.sets(st.integers(1, last)).map(lambda found: found | {last}))
    k1 = draw(st.integers(0, last))
    k2 = draw(st.integers(k1, last))
    return StageBoundaries(k1=k1, k2=k2), TrajectoryGrid(num_steps=50, steps=tuple(sorted(steps)))


@given(plan=plans())
def test_what_is_fetched_suffices_and_none_of_it_can_be_left_out(plan: tuple[StageBoundaries, TrajectoryGrid]) -> None:
    """On a path whose points have nothing in common, so that any other point would show."""
    boundaries, grid = plan
    sigmas, everything = levels(50), {step: draw(step) for step in (0, *plan[1].steps)}
    needed = steps_needed(boundaries, grid)
    fetched = {step: everything[step] for step in needed}
    for step in states_needed(boundaries):
        assert torch.equal(rebuild(fetched, step, sigmas=sigmas), rebuild(everything, step, sigmas=sigmas))
    for missing in needed:
        fewer = {step: latent for step, latent in everything.items() if step != missing}
        assert any(_differs(fewer, fetched, step, sigmas) for step in states_needed(boundaries))


def _differs(points: dict[int, Tensor], fetched: dict[int, Tensor], step: int, sigmas: list[float]) -> bool:
    try:
        return not torch.equal(rebuild(points, step, sigmas=sigmas), rebuild(fetched, step, sigmas=sigmas))
    except ValueError:
        return True


@pytest.mark.parametrize("step", [1, 7, 12, 24])
def test_a_straight_path_is_rebuilt_from_any_grid(step: int) -> None:
    sigmas = levels(50)
    path = straight(sigmas)
    for grid in (GRID, TrajectoryGrid(num_steps=50, steps=(25,))):
        points = {point: path[point] for point in grid.bracket(step)}
        assert torch.allclose(rebuild(points, step, sigmas=sigmas), path[step], atol=1e-5)  # float32 sums


def test_states_of_a_plan_are_the_start_and_what_follows_each_reused_step() -> None:
    assert states_needed(NO_REUSE) == ()
    assert states_needed(StageBoundaries(k1=10, k2=10)) == (10,)
    assert states_needed(StageBoundaries(k1=10, k2=13)) == (10, 11, 12, 13)
    assert states_needed(StageBoundaries(k1=0, k2=2)) == (1, 2)


@pytest.mark.parametrize(
    ("k1", "k2", "fetched"),
    [(0, 0, ()), (10, 10, (10,)), (12, 12, (10, 15)), (10, 13, (10, 15)), (5, 20, (5, 10, 15, 20)), (3, 3, (0, 5))],
)
def test_only_what_the_plan_needs_is_fetched(k1: int, k2: int, fetched: tuple[int, ...]) -> None:
    assert steps_needed(StageBoundaries(k1=k1, k2=k2), GRID) == fetched


@pytest.mark.parametrize("step", [26, 50, -1])
def test_a_step_outside_the_grid_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} lies outside the grid 0..25"):
        GRID.bracket(step)


def test_a_stored_state_comes_back_as_it_was() -> None:
    latent, sigmas = draw(3), levels(50)
    for dtype in ("float16", "bfloat16", "float32"):
        stored = compress(latent, dtype=dtype)
        again = rebuild({10: stored}, 10, sigmas=sigmas)
        assert again.dtype == torch.float32
        assert torch.equal(again, stored.to(torch.float32))
    assert torch.equal(again, latent)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_dtype_costs_its_rounding_and_no_more(dtype: str, bits: int) -> None:
    sigmas = levels(50)
    path = straight(sigmas)
    points = {step: compress(path[step], dtype=dtype) for step in (10, 15)}
    error = (rebuild(points, 12, sigmas=sigmas) - path[12]).abs()
    # Half a unit of the last of `bits` binary digits of either end, averaged with weights that sum to one.
    largest = torch.maximum(path[10].abs(), path[15].abs())
    assert bool((error <= largest * 2.0**-bits * 1.01 + 1e-6).all())


def test_rebuilding_follows_sigma_not_the_step() -> None:
    sigmas = [1.0, 0.9, 0.5, 0.1, 0.0]
    path = straight(sigmas)
    points = {0: path[0], 3: path[3]}
    for step in (1, 2):
        assert torch.allclose(rebuild(points, step, sigmas=sigmas), path[step], atol=1e-6)


def test_rebuilding_takes_the_nearest_points() -> None:
    sigmas = levels(50)
    points = {5: draw(1), 10: draw(2), 15: draw(3), 20: draw(4)}
    inner = {step: points[step] for step in (10, 15)}
    assert torch.equal(rebuild(points, 12, sigmas=sigmas), rebuild(inner, 12, sigmas=sigmas))


def test_error_of_a_bent_path_falls_as_the_grid_gets_finer() -> None:
    """On Euler steps of a model that is anything but linear; halving the gap of a smooth path quarters the error."""
    sigmas = levels(50)

    def predict(latent: Tensor, timestep: Tensor) -> Tensor:
        return torch.tanh(latent) * (1 + timestep / 500) + 0.1

    solver = EulerSolver(flow_sigmas(50, shift=3.0))
    start = SolverState(latent_BCTHW=draw(5))
    path = [start.latent_BCTHW, *(state.latent_BCTHW for state in run_steps(solver, start, predict))]
    errors = []
    for gap in (10, 5):
        points = {step: path[step] for step in range(0, 31, gap)}
        rebuilt = [rebuild(points, step, sigmas=sigmas) for step in range(31)]
        errors.append(math.sqrt(sum(float((a - b).square().mean()) for a, b in zip(rebuilt, path, strict=False))))
    assert errors[1] < errors[0] / 2.5


@pytest.mark.parametrize("points", [(), (10,), (15, 20)])
def test_a_missing_side_is_refused(points: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"step 12 needs a point on either side, got points at"):
        rebuild({step: draw(step) for step in points}, 12, sigmas=levels(50))


def test_bytes_of_an_entry() -> None:
    numel = draw(0).numel()
    stored = compress(draw(0), dtype="bfloat16")
    assert entry_bytes(GRID, dtype="bfloat16", num_elements=numel) == 5 * stored.nbytes
    assert exact_bytes(50, num_elements=numel) == 50 * draw(0).nbytes
    assert entry_bytes(GRID, num_elements=numel) * 4 < exact_bytes(50, num_elements=numel)


@pytest.mark.parametrize("steps", [(0, 5), (5, 5), (10, 5), (51,)])
def test_impossible_grid_is_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must rise within 1..num_steps=50"):
        TrajectoryGrid(num_steps=50, steps=steps)


@pytest.mark.parametrize("gap", [0.0, 1.5, math.nan])
def test_impossible_gap_is_refused(gap: float) -> None:
    with pytest.raises(ValueError, match=f"max_gap_share must lie in 0..1, above 0, got {gap}"):
        make_grid(nirvana_map(), num_steps=50, max_gap_share=gap)
