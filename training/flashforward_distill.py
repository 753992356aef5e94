"""Distil the causal transformer to four stages without guidance, phase 2: `python -m training.flashforward_distill`.

As `training.distill` does for clips, on whole videos and in every role (FlashForward, C.2): from a state at one of the
four noise levels the guided teacher takes small steps to the next, and the student learns the one velocity that lands
there. Half of the steps start from videos that the student makes itself, with its own anchors and its own history, as
it will when it is served; half from noised training videos. Each schedule trains on as many.

The paper matches distributions with a critic instead. That needs a score model of long videos beside the student;
following the teacher's path needs the phase-1 model alone, which exists.

Shape letters: B samples, C latent channels, T latent frames, h, w latent grid, A anchors, R frames of the chunks, U
frames of a context, L text tokens, D text width.
"""

import argparse
import copy
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from reprise.flashforward.layout import Layout
from reprise.tinyworld import is_held_out, sample_scene, write_prompt
from reprise.wan.adapter import Role
from reprise.wan.kv import ChunkKV
from training.flashforward_sft import (
    ADAPTER,
    LEVELS,
    NUM_FRAMES,
    START_SHARE,
    CausalWan,
    draw_crop,
    noised,
    rows_of,
    save,
)
from training.latents import load_latents
from training.muon import Muon, split_parameters
from training.packing import Crop, history_mask, planner_mask, renderer_mask
from training.recipe import RUNS, WEIGHTS, Average, Run, generator_for, write_card
from training.text_encoder import encode, load_text

SEED, BATCH, GUIDANCE, SUBSTEPS, CROP_CHUNKS = 71, 2, 3.0, 2, 7
MATRIX_LR, OTHER_LR, COOLDOWN = 0.002, 3e-4, 0.5
PHASE_FACTS: Final = {"steps": "step", "loss": "loss", "seconds": "seconds"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setting:
    """A packed forward, and what it reads: encoded latents, in the role that encodes them."""

    role: Role
    positions: list[int]
    sees_TU: Tensor
    """U are the context's frames that are kept, then the T own ones."""
    context_role: Role
    context: Tensor
    """(B, C, U, h, w)."""
    context_sigma: float
    context_positions: list[int]
    context_sees_UU: Tensor
    kept: range

    def encode(self, model: CausalWan, text_BLD: Tensor) -> ChunkKV:
        """Make the KV that the forward reads."""
        sigma_BT = torch.full((len(self.context), self.context.shape[2]), self.context_sigma)
        _, kv = model.velocity(
            self.context_role,
            self.context,
            sigma_BT,
            text_BLD,
            positions=self.context_positions,
            sees_TU=self.context_sees_UU,
        )
        return rows_of(kv, self.kept)

    def velocity(self, model: CausalWan, latent: Tensor, sigma: float, text_BLD: Tensor, kv: ChunkKV) -> Tensor:
        """Predict the velocity of a latent at one noise level, in float32."""
        sigma_BT = torch.full((len(latent), latent.shape[2]), sigma)
        velocity, _ = model.velocity(
            self.role, latent, sigma_BT, text_BLD, positions=self.positions, sees_TU=self.sees_TU, context=(kv,)
        )
        return velocity.float()


def planner_setting(layout: Layout, anchors: Tensor) -> Setting:
    """Denoise every block after the clean ones before it."""
    count, sees = layout.num_anchors, planner_mask(layout)
    positions = [layout.anchor_position(anchor) for anchor in range(count)]
    return Setting(
        role=Role.PLANNER,
        positions=positions,
        sees_TU=sees[count:],
        context_role=Role.PLANNER,
        context=anchors,
        context_sigma=0.0,
        context_positions=positions,
        context_sees_UU=sees[:count, :count],
        kept=range(count),
    )


def renderer_setting(crop: Crop, anchors: Tensor) -> Setting:
    """Denoise chunks beside each other, with clean anchors."""
    planner = planner_setting(crop.layout, anchors)
    return dataclasses.replace(
        planner, role=Role.RENDERER, positions=list(crop.positions), sees_TU=renderer_mask(crop), kept=crop.anchors
    )


def history_setting(role: Role, crop: Crop, encoded: Tensor, sigma: float) -> Setting:
    """Denoise chunks after encoded ones, all at noise level `sigma`."""
    count, sees = len(crop.positions), history_mask(crop)
    return Setting(
        role=role,
        positions=list(crop.positions),
        sees_TU=sees[count:],
        context_role=role,
        context=encoded,
        context_sigma=sigma,
        context_positions=list(crop.positions),
        context_sees_UU=sees[:count, :count],
        kept=range(count),
    )


@torch.no_grad()
def forward_unit(
    model: CausalWan,
    role: Role,
    latent: Tensor,
    sigma: float,
    text_BLD: Tensor,
    *,
    positions: list[int],
    reads: list[ChunkKV],
) -> tuple[Tensor, ChunkKV]:
    """Run one chunk or block, which sees all of what it reads; its velocity in float32."""
    count = latent.shape[2]
    velocity, kv = model.velocity(
        role,
        latent,
        torch.full((len(latent), count), sigma),
        text_BLD,
        positions=positions,
        sees_TU=torch.ones(count, sum(len(one.positions) for one in reads) + count, dtype=torch.bool),
        context=tuple(reads),
    )
    return velocity.float(), kv


def plan(model: CausalWan, layout: Layout, noise: Tensor, text_BLD: Tensor) -> list[Tensor]:
    """Plan a video: all anchors at each noise level, block after block."""
    states = [noise.clone() for _ in LEVELS]
    history: list[ChunkKV] = []
    for block in range(layout.num_blocks):
        own = layout.block_anchors_of(block)
        positions = [layout.anchor_position(anchor) for anchor in own]
        reads = history[layout.history_anchors_of(block).start // layout.block_anchors :]
        latent = noise[:, :, own.start : own.stop]
        for stage, sigma in enumerate(LEVELS):
            states[stage][:, :, own.start : own.stop] = latent
            velocity, kv = forward_unit(model, Role.PLANNER, latent, sigma, text_BLD, positions=positions, reads=reads)
            if sigma > 0:
                latent = latent + (LEVELS[stage + 1] - sigma) * velocity
            else:
                history.append(kv)
    return states


def continue_video(model: CausalWan, role: Role, crop: Crop, noise: Tensor, text_BLD: Tensor) -> list[Tensor]:
    """Make a video as a baseline does: all chunks at each noise level, each after the encoded ones before it."""
    layout, states = crop.layout, [noise.clone() for _ in LEVELS]
    encoded: dict[float, list[ChunkKV]] = {sigma: [] for sigma in LEVELS}
    for chunk in crop.chunks:
        own = layout.chunk_positions(chunk)
        first, positions = layout.history_chunks_of(chunk).start, list(own)
        latent = noise[:, :, own.start : own.stop]
        for stage, sigma in enumerate(LEVELS[:-1]):
            states[stage][:, :, own.start : own.stop] = latent
            next_sigma = LEVELS[stage + 1]
            reads = encoded[next_sigma if role is Role.HIAR else 0.0][first:]
            velocity, _ = forward_unit(model, role, latent, sigma, text_BLD, positions=positions, reads=reads)
            latent = latent + (next_sigma - sigma) * velocity
            if role is Role.HIAR or next_sigma == 0:
                reads = encoded[next_sigma][first:]
                _, kv = forward_unit(model, role, latent, next_sigma, text_BLD, positions=positions, reads=reads)
                encoded[next_sigma].append(kv)
        states[-1][:, :, own.start : own.stop] = latent
    return states


@torch.no_grad()
def teacher_velocity(
    teacher: CausalWan, setting: Setting, latent: Tensor, stage: int, text_BLD: Tensor, empty_BLD: Tensor
) -> Tensor:
    """Give the mean velocity of the guided teacher's small steps from one level to the next."""
    start, end = LEVELS[stage], LEVELS[stage + 1]
    # Small steps are even in the unbent time 1 .. 0, where a shift of 3 bends t to 3 t / (1 + 2 t).
    time, end_time = start / (3 - 2 * start), end / (3 - 2 * end)
    guided_kv, unguided_kv = setting.encode(teacher, text_BLD), setting.encode(teacher, empty_BLD)
    reached, sigma = latent, start
    for substep in range(1, SUBSTEPS + 1):
        next_time = time + (end_time - time) * substep / SUBSTEPS
        next_sigma = 3 * next_time / (1 + 2 * next_time)
        guided = setting.velocity(teacher, reached, sigma, text_BLD, guided_kv)
        unguided = setting.velocity(teacher, reached, sigma, empty_BLD, unguided_kv)
        reached = reached + (next_sigma - sigma) * (unguided + GUIDANCE * (guided - unguided))
        sigma = next_sigma
    return (reached - latent) / (end - start)


class Recipe:
    """Teacher, student and data; `step(i)` is all the loop needs."""

    def __init__(self, num_steps: int, *, bfloat16: bool) -> None:
        self.num_steps, self.bfloat16 = num_steps, bfloat16
        self.data = load_latents(NUM_FRAMES)
        self.tokenizer, self.encoder = load_text()
        self.teacher = CausalWan()
        saved = torch.load(RUNS / "flashforward_sft" / "state.pt", weights_only=False)
        self.teacher.load_state_dict(saved["state"]["average"]["shadow"], strict=False)
        self.first_phase = {f"first_phase_{name}": saved[key] for name, key in PHASE_FACTS.items()}
        self.student = copy.deepcopy(self.teacher)
        self.teacher.requires_grad_(False)
        matrices, self.others = split_parameters(self.student)
        self.matrix_optimizer = Muon(matrices, lr=MATRIX_LR, weight_decay=0.0)
        self.other_optimizer = torch.optim.AdamW(self.others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = Average(self.student, decay=0.98)

    def follow(self, setting: Setting, latent: Tensor, stage: int, text: tuple[Tensor, Tensor], *, skip: int) -> Tensor:
        """Give the error of the student's one step against the teacher's several, in velocity."""
        target = teacher_velocity(self.teacher, setting, latent, stage, *text)
        kv = setting.encode(self.student, text[0])
        velocity = setting.velocity(self.student, latent, LEVELS[stage], text[0], kv)
        return nn.functional.mse_loss(velocity[:, :, skip:], target[:, :, skip:])

    def loss(self, method: int, generator: torch.Generator, rng: np.random.Generator) -> Tensor:
        """Give one schedule's loss: 0 FlashForward, 1 Self-Forcing, 2 HiAR."""
        is_own = bool(torch.rand((), generator=generator) < 0.5)
        stage = int(torch.randint(len(LEVELS) - 1, (), generator=generator))
        offset, crop = draw_crop(generator, num_chunks=CROP_CHUNKS, start_share=1.0 if is_own else START_SHARE)
        rows = torch.randint(len(self.data.scenes), (BATCH,), generator=generator)
        scenes = [self.data.scenes[row] for row in rows.tolist()]
        if is_own:  # needs no video, so its prompt may be any training prompt
            for sample in range(BATCH):
                scenes[sample] = sample_scene(rng)
                while is_held_out(scenes[sample]):
                    scenes[sample] = sample_scene(rng)
        with torch.no_grad():
            text_BLD = encode(self.tokenizer, self.encoder, [write_prompt(scene, rng) for scene in scenes])
            empty_BLD = encode(self.tokenizer, self.encoder, [""]).expand_as(text_BLD)
        text, layout = (text_BLD, empty_BLD), crop.layout
        video = self.data.latents[rows, :, offset:].float()
        clean = video[:, :, crop.positions.start : crop.positions.stop]
        noise = torch.randn(clean.shape, generator=generator)
        anchors = video[:, :, :: layout.anchor_stride]
        anchor_noise = torch.randn(anchors.shape, generator=generator)
        skip = 0 if is_own or (offset == 0 and crop.chunks.start == 0) else layout.chunk_latents

        def at(clean: Tensor, noise: Tensor, stage: int) -> Tensor:
            return noised(clean, noise, torch.full((BATCH, clean.shape[2]), LEVELS[stage]))

        if method > 0:
            role = (Role.SELF_FORCING, Role.HIAR)[method - 1]
            next_stage = stage + 1 if role is Role.HIAR else len(LEVELS) - 1
            if is_own:
                states = continue_video(self.student, role, crop, noise, text_BLD)
                latent, encoded = states[stage], states[next_stage]
            else:
                latent, encoded = at(clean, noise, stage), at(clean, noise, next_stage)
            setting = history_setting(role, crop, encoded, LEVELS[next_stage])
            return self.follow(setting, latent, stage, text, skip=skip)
        blocks = at(anchors, anchor_noise, stage)
        if is_own:
            planned = plan(self.student, layout, anchor_noise, text_BLD)
            anchors, blocks = planned[-1], planned[stage]
        setting = renderer_setting(crop, anchors)
        latent = noise if is_own else at(clean, noise, stage)
        if is_own:
            with torch.no_grad():
                kv = setting.encode(self.student, text_BLD)
                for before in range(stage):
                    velocity = setting.velocity(self.student, latent, LEVELS[before], text_BLD, kv)
                    latent = latent + (LEVELS[before + 1] - LEVELS[before]) * velocity
        planner_loss = self.follow(planner_setting(layout, anchors), blocks, stage, text, skip=0)
        return self.follow(setting, latent, stage, text, skip=skip) + 0.5 * planner_loss

    def step(self, index: int) -> float:
        """Train on one batch of each schedule; the rate warms up, holds, and cools down."""
        scale = min(1.0, (index + 1) / 20) * min(1.0, (1 - index / self.num_steps) / COOLDOWN + 0.01)
        self.matrix_optimizer.param_groups[0]["lr"] = MATRIX_LR * scale
        self.other_optimizer.param_groups[0]["lr"] = OTHER_LR * scale
        generator, rng = generator_for(SEED, index), np.random.default_rng((SEED, index))
        self.student.zero_grad()
        losses = []
        for method in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                loss = self.loss(method, generator, rng)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.matrix_optimizer.step()
        self.other_optimizer.step()
        self.average.update(self.student)
        return sum(losses) / len(losses)


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bfloat16", action="store_true", help="as in training.transformer")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    recipe = Recipe(args.steps, bfloat16=args.bfloat16)
    state = {
        "student": recipe.student,
        "matrix_optimizer": recipe.matrix_optimizer,
        "other_optimizer": recipe.other_optimizer,
        "average": recipe.average,
    }
    run = Run(name="flashforward_distill", num_steps=args.steps, state=state, save_every=25, log_every=5)
    facts = run.train(recipe.step)
    recipe.average.copy_to(recipe.student)
    folder = WEIGHTS / "tiny_long"
    save(recipe.student, folder)
    write_cards(folder, args.steps, bfloat16=args.bfloat16, facts=facts | recipe.first_phase)


def write_cards(folder: pathlib.Path, num_steps: int, *, bfloat16: bool, facts: Mapping[str, float]) -> None:
    """Write a card for the backbone and for each role."""
    recipe = f"python -m training.flashforward_distill --steps {num_steps}" + " --bfloat16" * bfloat16
    text = (
        f"For noise levels {LEVELS[:-1]} without guidance: the teacher's guidance of {GUIDANCE} is in the weights. "
        "`loss` is the smoothed error in velocity; `first_phase_*` are of training.flashforward_sft."
    )
    title = "Tiny causal Wan transformer for long videos"
    write_card(
        folder / "transformer", title=title, recipe=recipe, text=f"The backbone of four roles. {text}", facts=facts
    )
    for role in Role:
        words = f"Embedding and LoRA of rank {ADAPTER.rank} of one role of the backbone. {text}"
        write_card(folder / "roles" / role.value, title=f"Role {role}", recipe=recipe, text=words, facts=facts)


if __name__ == "__main__":
    main()
