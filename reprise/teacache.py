"""TeaCache's schedule: at which steps the timestep hardly changes the block stack (Liu et al., CVPR 2025), for Wan.

An accumulated relative L1 distance, rescaled by a polynomial, decides whether a step runs the blocks or adds the
residual of the last step that did. For Wan the authors measure the timestep's projection, which depends on the
schedule alone, so a run's decisions are known before it begins. Standard library only; N denoising steps.
"""

import dataclasses
import json
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TeaCacheConfig:
    """When a step may be skipped."""

    threshold: float
    """Accumulated rescaled distance from which a step is computed; 0 computes all, infinity only the forced ones."""
    coefficients: tuple[float, ...]
    """Of the polynomial that turns a distance of timestep projections into one of outputs, highest power first."""
    num_first_steps: int = 1
    """Steps `[0, num_first_steps)` of the schedule are always computed."""
    num_last_steps: int = 1
    """So are the last ones."""

    def __post_init__(self) -> None:
        if not self.threshold >= 0:  # also refuses NaN
            raise ValueError(f"threshold must be 0 or more, got {self.threshold}")
        if not self.coefficients or not all(math.isfinite(value) for value in self.coefficients):
            raise ValueError(f"expected one finite coefficient or more, got {self.coefficients}")
        if self.num_first_steps < 1 or self.num_last_steps < 1:
            raise ValueError(
                "the first and the last step are always computed: expected num_first_steps and num_last_steps of 1 or "
                f"more, got {self.num_first_steps} and {self.num_last_steps}"
            )


def wan21_t2v_1_3b_teacache() -> TeaCacheConfig:
    """Give the published setting of Wan2.1-T2V-1.3B.

    Figures from the authors' repository ali-vilab/TeaCache, TeaCache4Wan2.1/teacache_generate.py and its README: the
    variant with retention steps, which measures the timestep projection; there the last step is not forced.
    """
    return TeaCacheConfig(
        threshold=0.1,
        coefficients=(-5.21862437e04, 9.23041404e03, -5.28275948e02, 1.36987616e01, -4.99875664e-02),
        num_first_steps=5,
    )


def wan21_t2v_14b_teacache() -> TeaCacheConfig:
    """Give the published setting of Wan2.1-T2V-14B, at the slower of its two thresholds (0.1 and 0.2); same source."""
    return TeaCacheConfig(
        threshold=0.1,
        coefficients=(-3.03318725e05, 4.90537029e04, -2.65530556e03, 5.87365115e01, -3.15583525e-01),
        num_first_steps=5,
    )


def teacache_from_json(text: str) -> TeaCacheConfig:
    """Read the setting that `training.teacache_fit` stored with a model's weights."""
    table = json.loads(text)["teacache"]
    return TeaCacheConfig(**{**table, "coefficients": tuple(table["coefficients"])})


def plan_computed(distances: Sequence[float], config: TeaCacheConfig, *, first_step: int = 0) -> tuple[bool, ...]:
    """Decide for every step of `[first_step, N)` whether its blocks run; N is one more than there are distances.

    A run that starts at `first_step` has nothing to reuse there, so that step is computed too.
    """
    num_steps = len(distances) + 1
    if not 0 <= first_step <= num_steps:
        raise ValueError(f"expected first_step in 0..{num_steps}, got {first_step}")
    plan: list[bool] = []
    accumulated = 0.0
    for step in range(first_step, num_steps):
        is_last = step >= num_steps - config.num_last_steps
        is_forced = step == first_step or step < config.num_first_steps or is_last
        if not is_forced:
            accumulated += rescale(distances[step - 1], config.coefficients)
        is_computed = is_forced or accumulated >= config.threshold
        accumulated = 0.0 if is_computed else accumulated
        plan.append(is_computed)
    return tuple(plan)


def rescale(distance: float, coefficients: Sequence[float]) -> float:
    """Evaluate the polynomial, never under 0.

    The published ones fall below zero outside the distances they were fitted to, where a step would pay back what
    others have accumulated, and threshold 0 would skip; a distance cannot be negative.
    """
    value = 0.0
    for coefficient in coefficients:
        value = value * distance + coefficient
    return max(0.0, value)
