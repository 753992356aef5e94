"""Latents as they are stored, in a small dtype, and the states between two stored ones, rebuilt on demand.

A flow-matching path is x_sigma = (1 - sigma) x0 + sigma eps with an x0 that the model changes slowly, so between two
grid points it is close to a straight line in sigma. `benchmarks.trajectory` measures how close.
Symbols: N number of steps, sigma noise level. Knows nothing about which steps are stored, stores or models.
 Shape letters: B batch, C channels, T latent frames, H, W latent grid.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from reprise.chorus.grid import TrajectoryGrid

DTYPES: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


DEFAULT_DTYPE: Final = "float16"
"""bfloat16 keeps three bits fewer and has range to spare, which latents do not need."""


def compress(latent_BCTHW: Tensor, *, dtype: str = DEFAULT_DTYPE) -> Tensor:
    """Give the latent as it is stored; on its device, so that no step waits for a copy."""
    return latent_BCTHW.to(DTYPES[dtype])


def rebuild(points: Mapping[int, Tensor], step: int, *, sigmas: Sequence[float]) -> Tensor:
    """Give the latent that enters `step`, in float32, from the fetched points by step.

    A stored step is returned as it was stored; one between two points lies on the straight line in sigma through the
    nearest of them on either side. `sigmas` are the N + 1 noise levels of the source's schedule, on the host. There is
    no solver history: a rebuilt state starts afresh. Raises ValueError when a side is missing.
    """
    if step in points:
        return points[step].to(torch.float32)
    before = max((point for point in points if point < step), default=None)
    after = min((point for point in points if point > step), default=None)
    if before is None or after is None:
        raise ValueError(f"step {step} needs a point on either side, got points at {tuple(sorted(points))}")
    share = (sigmas[before] - sigmas[step]) / (sigmas[before] - sigmas[after])
    # In float32 before the sum: half precision would round the result a second time.
    return torch.lerp(points[before].to(torch.float32), points[after].to(torch.float32), share)


def entry_bytes(grid: TrajectoryGrid, *, num_elements: int, dtype: str = DEFAULT_DTYPE) -> int:
    """Give what the latents of one entry take, without a store's headers; `num_elements` of one latent."""
    return len(grid.steps) * num_elements * DTYPES[dtype].itemsize


def exact_bytes(num_steps: int, *, num_elements: int) -> int:
    """Give what every state of a run takes in float32, the start noise left out as the grid leaves it out."""
    return num_steps * num_elements * torch.float32.itemsize
