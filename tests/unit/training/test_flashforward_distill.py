"""What the student rolls out is what its packed forwards step through, for every role."""

import pytest
import torch
from torch import Tensor

from reprise.flashforward.layout import Layout
from reprise.wan.adapter import Role
from training.flashforward_distill import (
    Setting,
    continue_video,
    history_setting,
    plan,
    planner_setting,
    teacher_velocity,
)
from training.flashforward_sft import LEVELS, CausalWan
from training.packing import Crop

SUMS = 2e-5
"""Equal sums in another order, in float32."""


@pytest.fixture(scope="module")
def model() -> CausalWan:
    torch.set_num_threads(1)
    model = CausalWan()
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.tensors.parameters():  # as made the adapters change nothing
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


TEXT = draw(1, 48, 128, seed=9)


def stepped(model: CausalWan, setting: Setting, states: list[Tensor], stage: int) -> Tensor:
    """Take one stage's step with the packed forward."""
    velocity = setting.velocity(model, states[stage], LEVELS[stage], TEXT, setting.encode(model, TEXT))
    return states[stage] + (LEVELS[stage + 1] - LEVELS[stage]) * velocity


@pytest.mark.parametrize("role", [Role.SELF_FORCING, Role.HIAR])
def test_a_baselines_video(model: CausalWan, role: Role) -> None:
    layout = Layout(num_latents=21)
    crop = Crop(layout=layout, chunks=range(layout.num_chunks))
    states = continue_video(model, role, crop, draw(1, 16, 21, 4, 4), TEXT)
    for stage in range(len(LEVELS) - 1):
        read = stage + 1 if role is Role.HIAR else len(LEVELS) - 1
        setting = history_setting(role, crop, states[read], LEVELS[read])
        torch.testing.assert_close(stepped(model, setting, states, stage), states[stage + 1], atol=SUMS, rtol=SUMS)


def test_a_plan(model: CausalWan) -> None:
    layout = Layout(num_latents=81)
    states = plan(model, layout, draw(1, 16, 9, 4, 4), TEXT)
    setting = planner_setting(layout, states[-1])
    for stage in range(len(LEVELS) - 1):
        torch.testing.assert_close(stepped(model, setting, states, stage), states[stage + 1], atol=SUMS, rtol=SUMS)


def test_a_teacher_that_sees_no_difference_between_prompts_takes_its_own_steps(model: CausalWan) -> None:
    """Guidance between equal prompts is none, so two small steps end where two steps of the model end."""
    layout = Layout(num_latents=21)
    setting = planner_setting(layout, draw(1, 16, 3, 4, 4))
    latent = draw(1, 16, 3, 4, 4, seed=2)
    mean = teacher_velocity(model, setting, latent, 1, TEXT, TEXT)
    kv, reached = setting.encode(model, TEXT), latent
    for sigma, next_sigma in ((0.9, 0.8333333), (0.8333333, 0.75)):  # half-way in the unbent time
        reached = reached + (next_sigma - sigma) * setting.velocity(model, reached, sigma, TEXT, kv)
    torch.testing.assert_close(latent + (0.75 - 0.9) * mean, reached, atol=1e-4, rtol=1e-4)
