"""Distil the video transformer to four steps without guidance: `python -m training.distill`.

Progressive distillation on the student's own path (after Salimans and Ho, 2022). The four noise levels are fixed.
From a state at one of them the guided teacher takes several small steps to the next level; the student learns the one
velocity that lands there. Half of the states lie on the student's own path from noise, as they will when it is
served, half are noised training clips, which are right from the first step on.

Shape letters: B samples, C latent channels, L latent frames, h, w latent grid, S tokens, D text width.
"""

import argparse
import copy
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from reprise.tinyworld import is_held_out, sample_scene, write_prompt
from training.latents import load_latents
from training.muon import Muon, split_parameters
from training.recipe import WEIGHTS, Average, Run, generator_for, load_half, save_half, write_card
from training.text_encoder import encode, load_text
from training.transformer import TrainableWan

SEED, BATCH, GUIDANCE, SUBSTEPS = 41, 12, 4.0, 4
LEVELS: Final = (1.0, 0.9, 0.75, 0.5, 0.0)
"""A uniform grid of four steps bent by the shift of 3 at which the teacher is sampled."""
NUM_FRAMES, MATRIX_LR, OTHER_LR, COOLDOWN = 17, 0.004, 4e-4, 0.5


class Recipe:
    """Teacher, student and data; `step(i)` is all the loop needs."""

    def __init__(self, num_steps: int, *, compile_model: bool, bfloat16: bool) -> None:
        self.num_steps, self.bfloat16 = num_steps, bfloat16
        self.data = load_latents(NUM_FRAMES)
        self.tokenizer, self.encoder = load_text()
        self.teacher = TrainableWan()
        load_half(self.teacher.wan, WEIGHTS / "tiny" / "transformer" / "diffusion_pytorch_model.safetensors")
        self.student = copy.deepcopy(self.teacher)
        self.student.cell_head.requires_grad_(False)
        self.teacher.requires_grad_(False)
        matrices, self.others = split_parameters(self.student)
        self.matrix_optimizer = Muon(matrices, lr=MATRIX_LR, weight_decay=0.0)
        self.other_optimizer = torch.optim.AdamW(self.others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = Average(self.student, decay=0.99)
        self.forward_teacher: Any = torch.compile(self.teacher, dynamic=False) if compile_model else self.teacher
        self.forward_student: Any = torch.compile(self.student, dynamic=False) if compile_model else self.student

    def velocity(self, forward: Any, latent: Tensor, sigma_B: Tensor, text_BSD: Tensor) -> Tensor:
        """Predict the velocity, like the latent (B, C, L, h, w)."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            velocity, _ = forward(latent, 1000 * sigma_B[:, None].expand(-1, latent.shape[2]), text_BSD)
        return velocity.float()  # type: ignore[no-any-return]

    @torch.no_grad()
    def student_path(self, noise: Tensor, text_BSD: Tensor, segment_B: Tensor) -> Tensor:
        """Follow the student from noise to the level where each sample's segment begins."""
        latent = noise
        for step in range(int(segment_B.max())):
            sigma_B = torch.full((len(noise),), LEVELS[step])
            moved = latent + (LEVELS[step + 1] - LEVELS[step]) * self.velocity(
                self.forward_student, latent, sigma_B, text_BSD
            )
            latent = torch.where((segment_B > step)[:, None, None, None, None], moved, latent)
        return latent

    @torch.no_grad()
    def teacher_target(
        self, latent: Tensor, start_B: Tensor, end_B: Tensor, text_BSD: Tensor, empty_BSD: Tensor
    ) -> Tensor:
        """Give the mean velocity of the guided teacher's small steps from one level to the next."""
        # Small steps are even in the unbent time 1 .. 0, where a shift of 3 bends t to 3 t / (1 + 2 t).
        time_B, end_time_B = start_B / (3 - 2 * start_B), end_B / (3 - 2 * end_B)
        reached, sigma_B = latent, start_B
        for substep in range(1, SUBSTEPS + 1):
            next_B = time_B + (end_time_B - time_B) * substep / SUBSTEPS
            next_B = 3 * next_B / (1 + 2 * next_B)
            guided = self.velocity(self.forward_teacher, reached, sigma_B, text_BSD)
            unguided = self.velocity(self.forward_teacher, reached, sigma_B, empty_BSD)
            velocity = unguided + GUIDANCE * (guided - unguided)
            reached = reached + (next_B - sigma_B)[:, None, None, None, None] * velocity
            sigma_B = next_B
        return (reached - latent) / (end_B - start_B)[:, None, None, None, None]

    def loss(self, index: int) -> Tensor:
        """Give the error of the student's one step against the teacher's several, in velocity."""
        generator, rng = generator_for(SEED, index), np.random.default_rng((SEED, index))
        rows = torch.randint(len(self.data.scenes), (BATCH,), generator=generator)
        scenes = [self.data.scenes[row] for row in rows.tolist()]
        half = BATCH // 2
        for sample in range(half):  # a path from noise needs no clip, so its prompt may be any training prompt
            scenes[sample] = sample_scene(rng)
            while is_held_out(scenes[sample]):
                scenes[sample] = sample_scene(rng)
        with torch.no_grad():
            text = encode(self.tokenizer, self.encoder, [write_prompt(scene, rng) for scene in scenes])
            empty = encode(self.tokenizer, self.encoder, [""]).expand_as(text)
        clean = self.data.latents[rows].float()
        noise = torch.randn(clean.shape, generator=generator)
        levels, segment = torch.tensor(LEVELS), torch.randint(4, (BATCH,), generator=generator)
        start, end = levels[segment], levels[segment + 1]
        wide = start[:, None, None, None, None]
        noised = (1 - wide) * clean + wide * noise
        path = self.student_path(noise[:half], text[:half], segment[:half])
        latent = torch.cat([path, noised[half:]])
        target = self.teacher_target(latent, start, end, text, empty)
        return nn.functional.mse_loss(self.velocity(self.forward_student, latent, start, text), target)

    def step(self, index: int) -> float:
        """Train on one batch; the rate warms up, holds, and cools down."""
        scale = min(1.0, (index + 1) / 30) * min(1.0, (1 - index / self.num_steps) / COOLDOWN + 0.01)
        self.matrix_optimizer.param_groups[0]["lr"] = MATRIX_LR * scale
        self.other_optimizer.param_groups[0]["lr"] = OTHER_LR * scale
        loss = self.loss(index)
        self.student.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.matrix_optimizer.step()
        self.other_optimizer.step()
        self.average.update(self.student)
        return float(loss.detach())


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bfloat16", action="store_true", help="as in training.transformer")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    recipe = Recipe(args.steps, compile_model=args.compile, bfloat16=args.bfloat16)
    state = {
        "student": recipe.student,
        "matrix_optimizer": recipe.matrix_optimizer,
        "other_optimizer": recipe.other_optimizer,
        "average": recipe.average,
    }
    facts = Run(name="distill", num_steps=args.steps, state=state, save_every=100, log_every=25).train(recipe.step)
    recipe.average.copy_to(recipe.student)
    folder = WEIGHTS / "tiny_4step" / "transformer"
    recipe.student.wan.save_config(folder)
    save_half(recipe.student.wan, folder / "diffusion_pytorch_model.safetensors")
    write_card(
        folder,
        title="Tiny Wan transformer for four steps",
        recipe=f"python -m training.distill --steps {args.steps}" + " --bfloat16" * args.bfloat16,
        text=f"The tiny transformer distilled to four steps at noise levels {LEVELS[:-1]}, without guidance: the "
        f"teacher's guidance of {GUIDANCE} is in the weights. `loss` is the smoothed error in velocity.",
        facts=facts,
    )


if __name__ == "__main__":
    main()
