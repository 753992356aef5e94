"""Distil the continuing transformer to four steps without guidance: `python -m training.stream_distill`.

As `training.distill` does for clips, from `training.stream_sft`. Half of the samples continue a picture that the
student has made itself, one chunk before, decoded and encoded again, as it will when it is served: the teacher leads
back to the prompt what would drift from chunk to chunk.

Shape letters: B samples, C latent channels, L latent frames, h, w latent grid, S tokens, D text width.
"""

import argparse
import copy
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from reprise.tinyworld import SceneSpec, change_one, is_held_out, write_prompt
from training.continuations import load_continuations
from training.latents import load_vae, normalise
from training.muon import Muon, split_parameters
from training.recipe import RUNS, WEIGHTS, Average, Run, generator_for, save_half, write_card
from training.stream_sft import CHUNKS, FROM_NOTHING_SHARE
from training.text_encoder import encode, load_text
from training.transformer import TrainableWan

SEED, BATCH, GUIDANCE, SUBSTEPS = 101, 12, 3.0, 2
LEVELS: Final = (1.0, 0.9, 0.75, 0.5, 0.0)
"""As in `training.distill`."""
HOLD_SHARE = 0.5
"""Of the student's own pictures, how many go on under the same prompt; the others see one attribute changed."""
MATRIX_LR, OTHER_LR, COOLDOWN = 0.004, 4e-4, 0.5


class Recipe:
    """Teacher, student and data; `step(i)` is all the loop needs."""

    def __init__(self, num_steps: int, *, compile_model: bool, bfloat16: bool) -> None:
        self.num_steps, self.bfloat16 = num_steps, bfloat16
        self.data, self.vae = load_continuations(), load_vae()
        self.tokenizer, self.encoder = load_text()
        self.teacher = TrainableWan()
        saved = torch.load(RUNS / "stream_sft" / "state.pt", weights_only=False)
        self.teacher.load_state_dict(saved["state"]["average"]["shadow"], strict=False)
        self.first_phase = {f"first_phase_{key}": saved[name] for key, name in (("steps", "step"), ("loss", "loss"))}
        self.student = copy.deepcopy(self.teacher)
        self.student.cell_head.requires_grad_(False)
        self.teacher.requires_grad_(False)
        matrices, self.others = split_parameters(self.student)
        self.matrix_optimizer = Muon(matrices, lr=MATRIX_LR, weight_decay=0.0)
        self.other_optimizer = torch.optim.AdamW(self.others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = Average(self.student, decay=0.99)
        self.forward_teacher: Any = torch.compile(self.teacher, dynamic=False) if compile_model else self.teacher
        self.forward_student: Any = torch.compile(self.student, dynamic=False) if compile_model else self.student

    def velocity(self, forward: Any, latent: Tensor, sigma_B: Tensor, text_BSD: Tensor, noisy_BL: Tensor) -> Tensor:
        """Predict the velocity, like the latent (B, C, L, h, w); zero where `noisy_BL` is zero, at timestep 0."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            velocity, _ = forward(latent, 1000 * sigma_B[:, None] * noisy_BL, text_BSD)
        return velocity.float() * noisy_BL[:, None, :, None, None]  # type: ignore[no-any-return]

    @torch.no_grad()
    def student_path(self, latent: Tensor, text_BSD: Tensor, segment_B: Tensor, noisy_BL: Tensor) -> Tensor:
        """Follow the student from noise to the level where each sample's segment begins."""
        for step in range(int(segment_B.max())):
            sigma_B = torch.full((len(latent),), LEVELS[step])
            velocity = self.velocity(self.forward_student, latent, sigma_B, text_BSD, noisy_BL)
            moved = latent + (LEVELS[step + 1] - LEVELS[step]) * velocity
            latent = torch.where((segment_B > step)[:, None, None, None, None], moved, latent)
        return latent

    @torch.no_grad()
    def teacher_target(
        self, latent: Tensor, start_B: Tensor, end_B: Tensor, text: tuple[Tensor, Tensor], noisy_BL: Tensor
    ) -> Tensor:
        """Give the mean velocity of the guided teacher's small steps from one level to the next."""
        # Small steps are even in the unbent time 1 .. 0, where a shift of 3 bends t to 3 t / (1 + 2 t).
        time_B, end_time_B = start_B / (3 - 2 * start_B), end_B / (3 - 2 * end_B)
        reached, sigma_B = latent, start_B
        for substep in range(1, SUBSTEPS + 1):
            next_B = time_B + (end_time_B - time_B) * substep / SUBSTEPS
            next_B = 3 * next_B / (1 + 2 * next_B)
            guided, unguided = (
                self.velocity(self.forward_teacher, reached, sigma_B, one_BSD, noisy_BL) for one_BSD in text
            )
            velocity = unguided + GUIDANCE * (guided - unguided)
            reached = reached + (next_B - sigma_B)[:, None, None, None, None] * velocity
            sigma_B = next_B
        return (reached - latent) / (end_B - start_B)[:, None, None, None, None]

    @torch.no_grad()
    def own_boundaries(self, boundary: Tensor, text_BSD: Tensor, noise: Tensor) -> Tensor:
        """Continue pictures by one chunk and give its last frame as the VAE's first-frame path encodes it."""
        noisy_BL = torch.ones(len(boundary), noise.shape[2])
        noisy_BL[:, 0] = 0.0
        start = torch.cat([boundary, noise[:, :, 1:]], 2)
        latent = self.student_path(start, text_BSD, torch.full((len(start),), len(LEVELS) - 1), noisy_BL)
        mean = torch.tensor(self.vae.config.latents_mean).view(1, -1, 1, 1, 1)
        raw = latent[:, :, -2:] * torch.tensor(self.vae.config.latents_std).view(1, -1, 1, 1, 1) + mean
        frames = self.vae.decode_group(raw[:, :, 1:], raw[:, :, :1]).clamp(-1, 1)
        return normalise(self.vae, self.vae.moments(frames[:, :, -1:]).chunk(2, 1)[0])

    def loss(self, index: int) -> Tensor:
        """Give the error of the student's one step against the teacher's several, in velocity."""
        generator, rng = generator_for(SEED, index), np.random.default_rng((SEED, index))
        rows = torch.randint(len(self.data.scenes), (BATCH,), generator=generator)
        half = BATCH // 2
        before = [self.data.scenes[row] for row in rows.tolist()]
        scenes = [draw_next(scene, rng) for scene in before[:half]] + before[half:]
        with torch.no_grad():
            text_BSD = encode(self.tokenizer, self.encoder, [write_prompt(scene, rng) for scene in scenes])
            before_BSD = encode(self.tokenizer, self.encoder, [write_prompt(scene, rng) for scene in before[:half]])
            empty_BSD = encode(self.tokenizer, self.encoder, [""]).expand_as(text_BSD)
        clean = self.data.latents[rows, :, : CHUNKS[index % len(CHUNKS)]].float()
        boundary = self.data.boundaries[rows].float()
        noise = torch.randn(BATCH, clean.shape[1], 1 + clean.shape[2], *clean.shape[3:], generator=generator)
        boundary[:half] = self.own_boundaries(boundary[:half], before_BSD, noise[half:])
        from_nothing_B = torch.rand(BATCH, generator=generator) < FROM_NOTHING_SHARE
        noisy_BL = torch.ones(BATCH, noise.shape[2])
        noisy_BL[~from_nothing_B, 0] = 0.0
        levels, segment_B = torch.tensor(LEVELS), torch.randint(4, (BATCH,), generator=generator)
        start_B, end_B = levels[segment_B], levels[segment_B + 1]
        first = torch.where(from_nothing_B[:, None, None, None, None], self.data.firsts[rows].float(), boundary)
        shown = noisy_BL[:, None, :, None, None]
        sigma = start_B[:, None, None, None, None] * shown
        video = torch.cat([first, clean], 2)
        noised = (1 - sigma) * video + sigma * noise
        own = shown[:half] * noise[:half] + (1 - shown[:half]) * video[:half]
        path = self.student_path(own, text_BSD[:half], segment_B[:half], noisy_BL[:half])
        latent = torch.cat([path, noised[half:]])
        target = self.teacher_target(latent, start_B, end_B, (text_BSD, empty_BSD), noisy_BL)
        velocity = self.velocity(self.forward_student, latent, start_B, text_BSD, noisy_BL)
        error_BL = (velocity - target).pow(2).mean((1, 3, 4))
        return error_BL.sum() / noisy_BL.sum()

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


def draw_next(scene: SceneSpec, rng: np.random.Generator) -> SceneSpec:
    """Draw what a viewer asks for next: the same, or one attribute changed; never what is held out."""
    while rng.random() > HOLD_SHARE:
        changed = change_one(scene, rng)
        if not is_held_out(changed):
            return changed
    return scene


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
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
    facts = Run(name="stream_distill", num_steps=args.steps, state=state, save_every=50, log_every=25).train(
        recipe.step
    )
    recipe.average.copy_to(recipe.student)
    folder = WEIGHTS / "tiny_live" / "transformer"
    recipe.student.wan.save_config(folder)
    save_half(recipe.student.wan, folder / "diffusion_pytorch_model.safetensors")
    write_card(
        folder,
        title="Tiny Wan transformer for live streams",
        recipe=f"python -m training.stream_distill --steps {args.steps}" + " --bfloat16" * args.bfloat16,
        text=f"Continues a clean first latent by {CHUNKS} latents, or begins from nothing, in four steps at noise "
        f"levels {LEVELS[:-1]} without guidance: the teacher's guidance of {GUIDANCE} is in the weights. `loss` is the "
        "smoothed error in velocity; `first_phase_*` are of training.stream_sft.",
        facts=facts | recipe.first_phase,
    )


if __name__ == "__main__":
    main()
