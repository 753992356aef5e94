"""A very small causal model with adapters that do something, beside the bundled text encoder and VAE."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from reprise.flashforward.denoiser import LongVideoSpec, StageDenoiser
from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Forward, Method, Placement, list_forwards
from reprise.flashforward.worker import RunFacts, render
from reprise.wan.adapter import AdapterConfig, Role, RoleAdapter, new_adapter
from reprise.wan.model import WanModel, encode_prompt, load
from reprise.wan.presets import tiny_4step

SIGMAS = (1.0, 0.9, 0.75, 0.5, 0.0)
SIDE = 16
"""Pixels: two by two latent cells."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kit:
    """Everything that a denoiser is made of."""

    model: WanModel
    adapters: dict[Role, RoleAdapter]

    def denoiser(self, method: Method, layout: Layout, *, seed: int = 1, guidance: float = 1.0) -> StageDenoiser:
        """Make the denoiser of one video."""
        spec = LongVideoSpec(
            method=method,
            layout=layout,
            seed=seed,
            width=SIDE,
            height=SIDE,
            guidance_scale=guidance,
            sigmas=SIGMAS,
        )
        prompt, negative = encode_prompt(self.model, "a red star"), encode_prompt(self.model, "a blue circle")
        return StageDenoiser(self.model, self.adapters, spec, prompt, negative)

    def video(
        self,
        method: Method,
        layout: Layout,
        placement: Placement = Placement.ONE_WORKER,
        *,
        seed: int = 1,
        facts: RunFacts | None = None,
        forwards: Sequence[Forward] | None = None,
    ) -> Tensor:
        """Make a video and join its latents."""
        forwards = list(list_forwards(method, layout, placement)) if forwards is None else forwards
        done = list(render(forwards, self.denoiser(method, layout, seed=seed), facts=facts))
        assert [place for one in done for place in one.positions] == list(range(layout.num_latents))
        return torch.cat([one.latent_BCTHW for one in done], 2)


@pytest.fixture(scope="session")
def kit() -> Kit:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformer = WanTransformer3DModel(
        patch_size=(1, 1, 1),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=128,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        rope_max_seq_len=1024,
    )
    transformer.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(2)
    adapters = {}
    for role in Role:
        fresh = new_adapter(transformer, role, AdapterConfig(rank=2, alpha=2), generator=generator)
        # As made they change nothing, and all roles would be one.
        tensors = {name: torch.randn(one.shape, generator=generator) * 0.3 for name, one in fresh.tensors.items()}
        adapters[role] = dataclasses.replace(fresh, tensors=tensors)
    return Kit(dataclasses.replace(load(tiny_4step()), transformer=transformer), adapters)
