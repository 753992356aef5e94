"""A causal model with its role adapters, loaded, and the way from a prompt to a denoiser of one video.

Knows nothing about the order of forwards or workers.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import torch

from reprise.flashforward.denoiser import LongVideoSpec, StageDenoiser, adapters_of
from reprise.flashforward.schedule import Method
from reprise.wan.adapter import Role, RoleAdapter, load_adapter
from reprise.wan.long_presets import LongPreset
from reprise.wan.model import PromptEmbedding, WanModel, encode_prompt, load


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LongModel:
    """The parts of one checkpoint on one device; read only."""

    preset: LongPreset
    wan: WanModel
    adapters: Mapping[Role, RoleAdapter]


def load_long(
    preset: LongPreset, device: str | torch.device = "cpu", *, method: Method = Method.FLASH_FORWARD
) -> LongModel:
    """Load a preset with the adapters of one method, in the transformer's dtype."""
    wan = load(preset.model, device)
    return LongModel(preset=preset, wan=wan, adapters=load_adapters(preset, wan, method))


def load_adapters(preset: LongPreset, wan: WanModel, method: Method) -> dict[Role, RoleAdapter]:
    """Load the adapters of a method's roles; raise CheckpointError for one that is missing or of another role."""
    folder = pathlib.Path(preset.roles_path)
    return {
        role: load_adapter(folder / role.value, wan.device).to(wan.device, wan.transformer.dtype)
        for role in adapters_of(method)
    }


def embed(model: LongModel, prompt: str, negative_prompt: str) -> tuple[PromptEmbedding, PromptEmbedding | None]:
    """Encode what the forwards attend to; no negative prompt where there is no guidance."""
    negative = encode_prompt(model.wan, negative_prompt) if model.preset.guidance_scale > 1 else None
    return encode_prompt(model.wan, prompt), negative


def new_denoiser(
    model: LongModel, spec: LongVideoSpec, embedding: PromptEmbedding, negative: PromptEmbedding | None = None
) -> StageDenoiser:
    """Make the denoiser of one video."""
    return StageDenoiser(model.wan, model.adapters, spec, embedding, negative)
