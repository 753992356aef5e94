"""The recipes' shared parts: runs resume exactly, Muon orthogonalises, and what is trained is the served model."""

import pathlib

import numpy as np
import pytest
import torch
from torch import nn

from reprise.tinyworld import render_scene, sample_scene
from training import recipe
from training.latents import label_cells
from training.muon import Muon, orthogonalise
from training.recipe import Average, Run, generator_for
from training.text_encoder import MAX_TOKENS, labelled_batch, load_text
from training.transformer import TrainableWan, draw_sigma


def small_run(name: str, num_steps: int) -> tuple[nn.Linear, float]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer, average = torch.optim.AdamW(model.parameters(), lr=0.1), Average(model, decay=0.9)

    def step(index: int) -> float:
        loss = model(torch.randn(8, 4, generator=generator_for(1, index))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        return float(loss)

    state = {"model": model, "optimizer": optimizer, "average": average}
    facts = Run(name=name, num_steps=num_steps, state=state, save_every=5, log_every=5).train(step)
    average.copy_to(model)
    return model, facts["loss"]


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(recipe, "RUNS", tmp_path)
    whole, loss = small_run("whole", 20)
    small_run("parts", 10)
    parts, resumed_loss = small_run("parts", 20)
    assert torch.equal(whole.weight, parts.weight)
    assert loss == resumed_loss


def test_muon_makes_updates_near_orthogonal_whatever_the_gradient_scale() -> None:
    matrices = (
        torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    )
    singular = torch.linalg.svdvals(orthogonalise(matrices))
    # The quintic is tuned for speed and leaves singular values in about 0.7..1.2.
    assert singular.min() > 0.5
    assert singular.max() < 1.5


def test_muon_steps_along_each_matrix_only() -> None:
    moved, left = nn.Parameter(torch.zeros(4, 8)), nn.Parameter(torch.zeros(4, 8))
    optimizer = Muon([moved, left], lr=0.1)
    moved.grad = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    assert float((moved * moved.grad).sum()) < 0
    assert not left.any()


@pytest.mark.parametrize("num_latents", [1, 3])
def test_the_training_forward_is_the_served_models_own(num_latents: int) -> None:
    torch.manual_seed(0)
    model = TrainableWan().eval()
    nn.init.normal_(model.wan.proj_out.weight)
    latent, text = torch.randn(2, 16, num_latents, 8, 8), torch.randn(2, MAX_TOKENS, 128)
    timestep = torch.tensor([100.0, 900.0])[:, None].expand(2, num_latents).clone()
    with torch.no_grad():
        ours = model(latent, timestep, text)[0]
        served = model.wan(latent, timestep[:, 0], text, return_dict=False)[0]
    # Same arithmetic in another order: one embedding a frame, spread over its cells.
    torch.testing.assert_close(ours, served, rtol=1e-4, atol=1e-5)


def test_a_clean_first_frame_takes_the_per_token_timestep_of_the_served_model() -> None:
    torch.manual_seed(0)
    model = TrainableWan().eval()
    nn.init.normal_(model.wan.proj_out.weight)
    latent, text = torch.randn(1, 16, 2, 8, 8), torch.randn(1, MAX_TOKENS, 128)
    timestep = torch.tensor([[0.0, 700.0]])
    with torch.no_grad():
        ours = model(latent, timestep, text)[0]
        served = model.wan(latent, timestep.repeat_interleave(64, 1), text, return_dict=False)[0]
    torch.testing.assert_close(ours, served, rtol=1e-4, atol=1e-5)


def test_noise_levels_lie_in_range_and_lean_to_noise() -> None:
    sigma = draw_sigma(4000, 3.0, torch.Generator().manual_seed(0))
    assert float(sigma.min()) >= 0
    assert float(sigma.max()) <= 1
    assert float(sigma.median()) > 0.6


def test_cells_name_the_shape_that_covers_them() -> None:
    rng = np.random.default_rng(2)
    scene = sample_scene(rng, num_objects=1)
    cells = label_cells(scene, render_scene(scene, 9, rng))
    assert cells.shape == (3, 8, 8)
    assert set(np.unique(cells)) <= {0, 1 + ["circle", "square", "triangle", "star"].index(scene.objects[0].shape)}
    assert cells.any()


def test_every_token_of_a_prompt_is_labelled_with_its_object() -> None:
    tokenizer, _ = load_text()
    prompts, labels = labelled_batch(tokenizer, np.random.default_rng(0))
    lengths = [len(tokenizer(prompt).input_ids) for prompt in prompts]
    assert max(lengths) <= MAX_TOKENS
    for row, length in enumerate(lengths):
        assert (labels["background"][row, :length] >= 0).all()
        assert (labels["background"][row, length:] == -100).all()
        assert ((labels["colour"][row] >= 0) == ((labels["slot"][row] == 0) | (labels["slot"][row] == 1))).all()
