"""Distillation: what the student is to learn, on velocity fields whose paths are known."""

import pytest
import torch
from torch import Tensor

from training.distill import GUIDANCE, LEVELS, Recipe

SHAPE = (2, 3, 1, 2, 2)
TEXT, EMPTY = torch.ones(2, 4, 5), torch.zeros(2, 4, 5)
START, END = torch.tensor(LEVELS)[torch.tensor([0, 3])], torch.tensor(LEVELS)[torch.tensor([1, 4])]


def bare_recipe() -> Recipe:
    recipe = Recipe.__new__(Recipe)
    recipe.bfloat16 = False
    return recipe


def noise() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def test_target_of_a_straight_path_is_its_guided_velocity() -> None:
    recipe = bare_recipe()
    recipe.forward_teacher = lambda latent, _timestep, text: (torch.full_like(latent, float(text.mean())), None)
    target = recipe.teacher_target(noise(), START, END, TEXT, EMPTY)
    assert torch.allclose(target, torch.full(SHAPE, GUIDANCE), atol=1e-5)  # 0 + 4 * (1 - 0)


def test_one_step_along_the_target_ends_where_the_teachers_small_steps_end() -> None:
    recipe, visited = bare_recipe(), list[Tensor]()

    def forward(latent: Tensor, timestep_BL: Tensor, _text: Tensor) -> tuple[Tensor, None]:
        visited.append(timestep_BL[:, 0] / 1000)
        return latent, None

    recipe.forward_teacher = forward
    latent = noise()
    target = recipe.teacher_target(latent, START, END, TEXT, EMPTY)
    sigmas = torch.stack([*visited[::2], END], 1)  # guided and unguided are asked at the same levels
    expected = latent * (1 + sigmas.diff(dim=1)).prod(1)[:, None, None, None, None]
    reached = latent + (END - START)[:, None, None, None, None] * target
    assert torch.allclose(reached, expected, atol=1e-5)
    assert torch.allclose(sigmas[:, 0], START)
    assert bool((sigmas.diff(dim=1) < 0).all())


@pytest.mark.parametrize("segment", [0, 1, 3])
def test_student_path_stops_where_each_samples_segment_begins(segment: int) -> None:
    recipe = bare_recipe()
    recipe.forward_student = lambda latent, _timestep, _text: (torch.ones_like(latent), None)
    reached = recipe.student_path(noise(), TEXT, torch.tensor([segment, 0]))
    assert torch.allclose(reached[0], noise()[0] + LEVELS[segment] - 1, atol=1e-6)
    assert torch.equal(reached[1], noise()[1])
