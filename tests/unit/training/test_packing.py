"""Training's packed forward over a whole video is what chunk after chunk computes when served."""

import itertools

import pytest
import torch
from torch import Tensor

from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Method, Placement, Source, list_forwards
from reprise.flashforward.worker import render
from reprise.wan.adapter import Role, adapted
from reprise.wan.causal import causal_forward, encode_prompt_kv
from reprise.wan.kv import ChunkKV
from reprise.wan.model import encode_prompt
from tests.unit.flashforward.conftest import SIGMAS, Kit, kit
from training.packing import Crop, history_mask, planner_mask, renderer_mask

__all__ = ["kit"]
LAYOUT = Layout(num_latents=35)
SUMS = 1e-4
"""Equal sums in another order, in float32, over four stages."""


def packed(
    kit: Kit, role: Role, latent_BCTHW: Tensor, sigma: Tensor, positions: list[int], sees_TU: Tensor, *context: ChunkKV
) -> tuple[Tensor, ChunkKV]:
    net = kit.model.transformer
    with torch.no_grad(), adapted(net, kit.adapters[role]):
        prompt = encode_prompt_kv(net, encode_prompt(kit.model, "a red star").states_BLD)
        steps_BT = 1000 * sigma.expand(1, latent_BCTHW.shape[2])
        return causal_forward(
            net, latent_BCTHW, steps_BT, prompt, positions=positions, context=context, sees_TU=sees_TU
        )


def noise_of(kit: Kit, method: Method, source: Source, units: int) -> Tensor:
    denoiser = kit.denoiser(method, LAYOUT)
    return torch.cat([denoiser.noise(source, unit) for unit in range(units)], 2)


def test_flash_forward(kit: Kit) -> None:
    crop = Crop(layout=LAYOUT, chunks=range(LAYOUT.num_chunks))
    anchors_at = [LAYOUT.anchor_position(anchor) for anchor in range(LAYOUT.num_anchors)]
    count, sees = LAYOUT.num_anchors, planner_mask(LAYOUT)
    anchors = noise_of(kit, Method.FLASH_FORWARD, Source.ANCHOR, LAYOUT.num_blocks)
    clean = torch.zeros_like(anchors)
    # A block needs the clean ones before it: each time the packed planner is run, one more block is right.
    for _ in range(LAYOUT.num_blocks):
        latent = anchors
        for sigma, next_sigma in itertools.pairwise(SIGMAS):
            both = torch.cat([clean, latent], 2)
            levels = torch.tensor([[0.0] * count + [sigma] * count])
            velocity, kv = packed(kit, Role.PLANNER, both, levels, 2 * anchors_at, sees)
            latent = latent + (next_sigma - sigma) * velocity[:, :, count:]
        clean = latent
    _, kv = packed(kit, Role.PLANNER, clean, torch.zeros(1, 1), anchors_at, sees[:count, :count])
    latent = noise_of(kit, Method.FLASH_FORWARD, Source.CHUNK, LAYOUT.num_chunks)
    for sigma, next_sigma in itertools.pairwise(SIGMAS):
        velocity, _ = packed(
            kit, Role.RENDERER, latent, torch.tensor([[sigma]]), list(crop.positions), renderer_mask(crop), kv
        )
        latent = latent + (next_sigma - sigma) * velocity
    torch.testing.assert_close(latent, kit.video(Method.FLASH_FORWARD, LAYOUT), atol=SUMS, rtol=SUMS)


@pytest.mark.parametrize("method", [Method.SELF_FORCING, Method.HIAR])
def test_the_baselines(kit: Kit, method: Method) -> None:
    crop = Crop(layout=LAYOUT, chunks=range(LAYOUT.num_chunks))
    count, role = LAYOUT.num_latents, Role(method.value)
    states = {0: noise_of(kit, method, Source.CHUNK, LAYOUT.num_chunks)}
    served = list(render(list(list_forwards(method, LAYOUT, Placement.ONE_WORKER)), kit.denoiser(method, LAYOUT)))
    finished = torch.cat([one.latent_BCTHW for one in served], 2)
    # From the finished video backwards: what a chunk reads is known, so each stage can be run packed.
    for stage in range(4):
        sigma, next_sigma = SIGMAS[stage], SIGMAS[stage + 1]
        read_sigma = 0.0 if method is Method.SELF_FORCING else next_sigma
        latent = states[stage]
        encoded = finished if method is Method.SELF_FORCING else latent
        for _ in range(1 if method is Method.SELF_FORCING else LAYOUT.num_chunks):
            both = torch.cat([encoded, latent], 2)
            levels = torch.tensor([[read_sigma] * count + [sigma] * count])
            velocity, _ = packed(kit, role, both, levels, 2 * list(crop.positions), history_mask(crop))
            states[stage + 1] = latent + (next_sigma - sigma) * velocity[:, :, count:]
            encoded = finished if method is Method.SELF_FORCING else states[stage + 1]
    torch.testing.assert_close(states[4], finished, atol=SUMS, rtol=SUMS)


def test_a_crop_inside_a_video_sees_the_windows_of_its_chunks() -> None:
    crop = Crop(layout=Layout(num_latents=81), chunks=range(6, 14))
    assert crop.positions == range(18, 42)
    assert crop.anchors == range(5)
    sees_TU = renderer_mask(crop)
    anchors_seen = [row.nonzero().flatten().tolist() for row in sees_TU[:, :5]]
    assert anchors_seen[0] == [0, 1, 2]
    assert anchors_seen[3] == [2, 3, 4]
    assert sees_TU[-1, 5:].nonzero().flatten().tolist() == list(range(6, 24)), "five chunks and its own"
