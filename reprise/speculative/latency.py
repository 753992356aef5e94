"""What a viewer has to wait for a change, in closed form (Speculative Sampling, sections 3.4 and A).

For isolated changes that come at any phase alike, calls of a fixed time, and a refill that ends just when it is
needed. Symbols: K groups a chunk, delta seconds a group, T = K delta, C seconds a call, L seconds from a change to
its first picture. Standard library only.
"""

import dataclasses
import enum
import math


class Commitment(enum.StrEnum):
    """How much becomes irreplaceable at a time."""

    GROUP = "group"
    """One group when it is delivered: Speculative Sampling."""
    CHUNK = "chunk"
    """A chunk when it is sampled: the baseline, in which a change waits for the next refill."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LatencyModel:
    """A stream's fixed times."""

    chunk_groups: int
    group_s: float
    compute_s: float

    def __post_init__(self) -> None:
        if self.chunk_groups < 1 or self.group_s <= 0 or not 0 <= self.compute_s <= self.chunk_s:
            raise ValueError(
                "expected chunk_groups >= 1, group_s > 0 and 0 <= compute_s <= chunk_groups * group_s, got "
                f"chunk_groups={self.chunk_groups}, group_s={self.group_s}, compute_s={self.compute_s}"
            )

    @property
    def chunk_s(self) -> float:
        """Give T."""
        return self.chunk_groups * self.group_s

    @property
    def fixed_boundary_s(self) -> float:
        """Give the mean of the baseline, C + T/2 (A.1)."""
        return self.compute_s + self.chunk_s / 2

    @property
    def group_boundary_s(self) -> float:
        """Give the mean where the worker is idle when the change comes, C + delta/2 (A.2)."""
        return self.compute_s + self.group_s / 2

    @property
    def reduction_s(self) -> float:
        """Give the difference of the two, (T - delta)/2."""
        return (self.chunk_s - self.group_s) / 2

    @property
    def busy_share(self) -> float:
        """Give how much of the time a refill runs, C/T."""
        return self.compute_s / self.chunk_s

    def expected_response_s(self, commitment: Commitment) -> float:
        """Give the mean over all phases, with the refills that a change may find running (A.3).

        A refill ends on a boundary, C after its launch. A change that finds it running has C/2 left on average, and its
        own call then ends ceil(C / delta) delta after that boundary. A change in the idle time between waits for the
        next boundary after its call; that time need not be whole groups, so the mean wait is not quite delta/2.
        At C = T the sum is 3 T/2, the baseline's.
        """
        if commitment is Commitment.CHUNK:
            return self.fixed_boundary_s
        rounded_s = self.group_s * math.ceil(self.compute_s / self.group_s - 1e-9)
        blocked_s = self.compute_s / 2 + rounded_s
        idle_s = self.chunk_s - self.compute_s
        waits_s2 = ((rounded_s - self.compute_s) ** 2 + (self.chunk_s - rounded_s) * self.group_s) / 2
        idle_response_s = self.compute_s + waits_s2 / idle_s if idle_s > 0 else 0.0
        return (1 - self.busy_share) * idle_response_s + self.busy_share * blocked_s
