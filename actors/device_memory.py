"""Whether a model fits its device, checked before anything is loaded or downloaded. Reads the device; loads nothing."""

import psutil
import torch

from reprise.errors import DoesNotFitError
from reprise.wan.memory import GIB
from reprise.wan.presets import ModelPreset


def free_bytes(device: str) -> int:
    """Give what is free on a device now: of a GPU's own memory, or of the machine's."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def check_fits(preset: ModelPreset, device: str, *, memory_gib: float | None = None) -> None:
    """Raise DoesNotFitError unless the largest clip that may be asked for fits; `memory_gib` bounds what may be used.

    On a GPU the bound then holds for the process: beyond it this job fails, and no neighbour on the card.
    """
    free = free_bytes(device)
    if memory_gib is not None and torch.device(device).type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory_gib * GIB / total), device)
    largest = max(preset.sizes, key=lambda size: preset.memory_need(size, preset.max_num_frames).peak)
    need = preset.memory_need(largest, preset.max_num_frames).peak
    if need > free:
        raise DoesNotFitError(
            f"{preset.name} at {largest} and {preset.max_num_frames} frames needs {need / GIB:.1f} GiB of {device}, "
            f"which has {free / GIB:.1f} GiB free; take a larger device, or set denoiser.memory_gib to offer only the "
            "sizes that fit"
        )
