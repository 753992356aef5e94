"""Where the stages of a reused run end: the map F(m; N) -> (K1, K2), as a plain table (Chorus, section 3.1, eq. 1).

Symbols: m matching score, N number of denoising steps, K1 and K2 stage boundaries, tau least score that is reused.
Standard library only; knows nothing about latents, prompts or where scores come from.
"""

import dataclasses
import json


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StageBoundaries:
    """Steps `[0, k1)` are taken over from the source, `[k1, k2)` are reused by region, the rest is computed."""

    k1: int
    k2: int

    def __post_init__(self) -> None:
        if not 0 <= self.k1 <= self.k2:
            raise ValueError(f"expected 0 <= k1 <= k2, got k1={self.k1}, k2={self.k2}")


NO_REUSE = StageBoundaries(k1=0, k2=0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StageRow:
    """From this matching score on, up to the next row's, the boundaries at the table's own number of steps."""

    min_score: float
    k1: int
    k2: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StageMap:
    """F(m; N) as a table made at `num_steps`; other N follow by noise level.

    Both boundaries never fall as m grows, which the constructor checks. A calibration replaces `rows` and nothing else.
    """

    tau: float
    num_steps: int
    """N at which the rows were made."""
    rows: tuple[StageRow, ...]
    """In order of `min_score`, none under tau."""

    def __post_init__(self) -> None:
        if not -1 <= self.tau <= 1:
            raise ValueError(f"tau must be a cosine similarity in -1..1, got {self.tau}")
        if self.num_steps < 2:
            raise ValueError(f"num_steps of a stage map must be at least 2, got {self.num_steps}")
        for row in self.rows:
            if not (self.tau <= row.min_score <= 1 and 0 <= row.k1 <= row.k2 <= self.num_steps):
                raise ValueError(
                    f"expected tau={self.tau} <= min_score <= 1 and 0 <= k1 <= k2 <= num_steps={self.num_steps}, "
                    f"got {row}"
                )
        for lower, upper in zip(self.rows, self.rows[1:], strict=False):
            if not (lower.min_score < upper.min_score and lower.k1 <= upper.k1 and lower.k2 <= upper.k2):
                raise ValueError(f"rows must rise in min_score and never fall in k1 or k2, got {lower} before {upper}")

    def stage_boundaries(self, matching_score: float, *, num_steps: int) -> StageBoundaries:
        """Look F up. A score under tau, or one that is not a number, reuses nothing."""
        if not matching_score >= self.tau:  # also false for NaN
            return NO_REUSE
        reached = [row for row in self.rows if row.min_score <= matching_score]
        return self._at(reached[-1], num_steps) if reached else NO_REUSE

    def reachable_steps(self, *, num_steps: int) -> tuple[int, ...]:
        """Give every K1 and K2 above 0 that F alone can return for this N; the second gate may lower them further."""
        found = {k for row in self.rows for b in [self._at(row, num_steps)] for k in (b.k1, b.k2)}
        return tuple(sorted(found - {0}))

    def moved_to(self, tau: float) -> "StageMap":
        """Let the table begin at another tau, every score moved alike: another encoder's cosines lie elsewhere."""
        rows = tuple(
            dataclasses.replace(row, min_score=min(1.0, round(row.min_score + tau - self.tau, 6))) for row in self.rows
        )
        return dataclasses.replace(self, tau=tau, rows=rows)

    def _at(self, row: StageRow, num_steps: int) -> StageBoundaries:
        return StageBoundaries(k1=self._rescale(row.k1, num_steps), k2=self._rescale(row.k2, num_steps))

    def _rescale(self, step: int, num_steps: int) -> int:
        """Find the last step at N whose noise level is not under that of `step` in the table.

        One shift bends every schedule alike, so equal levels mean equal places on the unbent grid: 1 - k / N in the
        UniPC schedule, 1 - k / (N - 1) in the Euler one. The smaller of the two answers is safe for both.
        """
        if num_steps == self.num_steps:
            return step
        return min(step * num_steps // self.num_steps, step * (num_steps - 1) // (self.num_steps - 1))


def stage_map_from_json(text: str) -> StageMap:
    """Read the table that a calibration stored with a model's weights."""
    table = json.loads(text)["table"]
    rows = tuple(StageRow(**row) for row in table["rows"])
    return StageMap(tau=table["tau"], num_steps=table["num_steps"], rows=rows)


def nirvana_map(*, num_steps: int = 50) -> StageMap:
    """Give the policy of NIRVANA (Agarwal et al., NSDI 2024): stage 1 only, K of 50 by similarity, none under 0.65.

    The paper asks for more than a score where a row here is reached by that score itself. For another number of steps
    each K is the same share of it, rounded down.
    """
    ladder = ((0.65, 5), (0.75, 10), (0.85, 15), (0.9, 20), (0.95, 25))
    rows = tuple(StageRow(min_score=m, k1=k * num_steps // 50, k2=k * num_steps // 50) for m, k in ladder)
    return StageMap(tau=0.65, num_steps=num_steps, rows=rows)


def many_step_map() -> StageMap:
    """Give the table of models with about 50 steps, not yet calibrated: NIRVANA's steps, the late ones stricter."""
    ladder = ((0.65, 5), (0.75, 10), (0.85, 15), (0.92, 20), (0.97, 25))
    return StageMap(tau=0.65, num_steps=50, rows=tuple(StageRow(min_score=m, k1=k, k2=k) for m, k in ladder))


def few_step_map() -> StageMap:
    """Give the table of models distilled to 4 steps, not yet calibrated; stage 2 empty."""
    ladder = ((0.75, 1), (0.95, 2))
    return StageMap(tau=0.75, num_steps=4, rows=tuple(StageRow(min_score=m, k1=k, k2=k) for m, k in ladder))
