"""Train the causal transformer of the tiny family, phase 1: `python -m training.flashforward_sft`.

Flow matching on long videos (FlashForward, C.1), from the clip model. One backbone learns four roles, each with an
adapter of its own: FlashForward's planner and renderer, and one for each baseline. Every step trains each of the three
schedules on as many videos, so that their comparison is one of schedules. A video's beginning is shifted at random,
which gives the planner ten times as many anchors (time-rebased supervision).

Shape letters: B samples, C latent channels, T latent frames, h, w latent grid, A anchors, R frames of the chunks, L
text tokens, D text width.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from reprise.flashforward.layout import Layout
from reprise.tinyworld import write_prompt
from reprise.wan.adapter import AdapterConfig, Role, RoleAdapter, adapted, new_adapter, save_adapter
from reprise.wan.causal import causal_forward, encode_prompt_kv
from reprise.wan.kv import ChunkKV, LayerKV
from training.latents import load_latents
from training.muon import Muon, split_parameters
from training.packing import Crop, history_mask, planner_mask, renderer_mask
from training.recipe import WEIGHTS, Average, Run, generator_for, load_half, save_half
from training.text_encoder import encode, load_text
from training.transformer import draw_sigma

SEED, BATCH, DROP_PROMPT, SHIFT = 61, 2, 0.1, 3.0
NUM_FRAMES, NUM_LATENTS, CROP_CHUNKS = 321, 81, 8
MATRIX_LR, OTHER_LR, COOLDOWN = 0.005, 1e-3, 0.5
START_SHARE: Final = 0.35
"""Of the crops, how many begin where the video does."""
MAX_OFFSET: Final = 9
LEVELS: Final = (1.0, 0.9, 0.75, 0.5, 0.0)
"""Noise levels of the four stages, as in `training.distill`."""
ADAPTER: Final = AdapterConfig(rank=16, alpha=16)


class CausalWan(nn.Module):
    """The backbone and the adapters of all roles."""

    def __init__(self) -> None:
        super().__init__()
        folder = WEIGHTS / "tiny" / "transformer"
        self.wan = WanTransformer3DModel.from_config(WanTransformer3DModel.load_config(folder))
        load_half(self.wan, folder / "diffusion_pytorch_model.safetensors")
        self.wan.set_attention_backend("_native_math")  # three times faster backwards, on a CPU in bfloat16
        generator = torch.Generator().manual_seed(SEED)
        fresh = {role: new_adapter(self.wan, role, ADAPTER, generator=generator).tensors for role in Role}
        self.names = list(fresh[Role.PLANNER])
        self.tensors = nn.ModuleDict({role.value: nn.ParameterList(fresh[role].values()) for role in Role})

    def adapter(self, role: Role) -> RoleAdapter:
        """Give one role's adapter; gradients reach its tensors."""
        tensors = dict(zip(self.names, self.tensors[role.value], strict=True))  # type: ignore[call-overload]
        return RoleAdapter(role=role, config=ADAPTER, tensors=tensors)

    def velocity(
        self,
        role: Role,
        latent_BCTHW: Tensor,
        sigma_BT: Tensor,
        text_BLD: Tensor,
        *,
        positions: list[int],
        sees_TU: Tensor,
        context: tuple[ChunkKV, ...] = (),
    ) -> tuple[Tensor, ChunkKV]:
        """Predict the velocity of all frames in a role, and give their KV."""
        with adapted(self.wan, self.adapter(role)):
            prompt = encode_prompt_kv(self.wan, text_BLD)
            return causal_forward(
                self.wan, latent_BCTHW, 1000 * sigma_BT, prompt, positions=positions, context=context, sees_TU=sees_TU
            )


def rows_of(kv: ChunkKV, frames: range) -> ChunkKV:
    """Take some of the frames of a forward's KV."""
    tokens = kv.layers[0].key_BSNK.shape[1] // len(kv.positions)
    rows = slice(frames.start * tokens, frames.stop * tokens)
    layers = (LayerKV(layer.key_BSNK[:, rows], layer.value_BSNK[:, rows]) for layer in kv.layers)
    return ChunkKV(tuple(layers), kv.positions[frames.start : frames.stop])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Videos cut alike."""

    video: Tensor
    """(B, C, T, h, w), from the shifted beginning."""
    text_BLD: Tensor
    crop: Crop
    is_start: bool
    """The crop begins where the unshifted video does."""

    @property
    def chunks(self) -> Tensor:
        """Give the latents of the crop."""
        return self.video[:, :, self.crop.positions.start : self.crop.positions.stop]

    @property
    def anchors(self) -> Tensor:
        """Give the latents of all anchors."""
        return self.video[:, :, :: self.crop.layout.anchor_stride]


def noised(clean: Tensor, noise: Tensor, sigma_BT: Tensor) -> Tensor:
    """Mix clean latents and noise, each frame at its level."""
    sigma = sigma_BT[:, None, :, None, None]
    return (1 - sigma) * clean + sigma * noise


def draw_crop(
    generator: torch.Generator, *, num_chunks: int = CROP_CHUNKS, start_share: float = START_SHARE
) -> tuple[int, Crop]:
    """Draw the shift of a video's beginning and the chunks to train on."""
    offset = int(torch.randint(MAX_OFFSET + 1, (), generator=generator))
    start = bool(torch.rand((), generator=generator) < start_share)
    offset = 0 if start else offset
    layout = Layout(num_latents=NUM_LATENTS - offset)
    num_whole = layout.num_latents // layout.chunk_latents
    first = 0 if start else int(torch.randint(num_whole - num_chunks + 1, (), generator=generator))
    return offset, Crop(layout=layout, chunks=range(first, first + num_chunks))


def flow_error(velocity: Tensor, clean: Tensor, noise: Tensor, *, skip: int = 0) -> Tensor:
    """Give the mean squared error of the velocity, leaving out the first frames."""
    return (velocity.float() - (noise - clean))[:, :, skip:].pow(2).mean()


def plan_and_render(model: CausalWan, batch: Batch, generator: torch.Generator) -> Tensor:
    """Give FlashForward's loss: planner blocks after clean ones, chunks beside chunks as noisy as they are."""
    crop, layout = batch.crop, batch.crop.layout
    anchors, chunks = batch.anchors, batch.chunks
    count, size = layout.num_anchors, len(anchors)
    noise = torch.randn(anchors.shape, generator=generator)
    sigma_BT = draw_sigma(size, SHIFT, generator)[:, None].expand(-1, count)
    velocity, kv = model.velocity(
        Role.PLANNER,
        torch.cat([anchors, noised(anchors, noise, sigma_BT)], 2),
        torch.cat([torch.zeros_like(sigma_BT), sigma_BT], 1),
        batch.text_BLD,
        positions=2 * [layout.anchor_position(anchor) for anchor in range(count)],
        sees_TU=planner_mask(layout),
    )
    loss = flow_error(velocity[:, :, count:], anchors, noise)
    noise = torch.randn(chunks.shape, generator=generator)
    sigma_BT = draw_sigma(size, SHIFT, generator)[:, None].expand(-1, chunks.shape[2])
    velocity, _ = model.velocity(
        Role.RENDERER,
        noised(chunks, noise, sigma_BT),
        sigma_BT,
        batch.text_BLD,
        positions=list(crop.positions),
        sees_TU=renderer_mask(crop),
        context=(rows_of(kv, crop.anchors),),
    )
    return 0.5 * loss + flow_error(velocity, chunks, noise, skip=skipped(batch))


def continue_chunks(model: CausalWan, role: Role, batch: Batch, generator: torch.Generator) -> Tensor:
    """Give a baseline's loss: chunks after encoded ones, which are clean, or one stage less noisy than they are."""
    chunks = batch.chunks
    noise = torch.randn(chunks.shape, generator=generator)
    sigma_B = draw_sigma(len(chunks), SHIFT, generator)
    levels = torch.tensor(LEVELS)
    encoded_B = (levels * (levels < sigma_B[:, None])).amax(1) if role is Role.HIAR else torch.zeros_like(sigma_B)
    count = chunks.shape[2]
    sigma_BT, encoded_BT = sigma_B[:, None].expand(-1, count), encoded_B[:, None].expand(-1, count)
    velocity, _ = model.velocity(
        role,
        torch.cat([noised(chunks, noise, encoded_BT), noised(chunks, noise, sigma_BT)], 2),
        torch.cat([encoded_BT, sigma_BT], 1),
        batch.text_BLD,
        positions=2 * list(batch.crop.positions),
        sees_TU=history_mask(batch.crop),
    )
    return flow_error(velocity[:, :, count:], chunks, noise, skip=skipped(batch))


def skipped(batch: Batch) -> int:
    """Count the frames without a loss: a chunk without history inside a video would learn to begin in its middle."""
    return 0 if batch.is_start else batch.crop.layout.chunk_latents


class Recipe:
    """Model, optimisers and data; `step(i)` is all the loop needs."""

    def __init__(self, num_steps: int, *, bfloat16: bool) -> None:
        self.num_steps, self.bfloat16 = num_steps, bfloat16
        self.data = load_latents(NUM_FRAMES)
        self.tokenizer, self.encoder = load_text()
        self.model = CausalWan()
        matrices, self.others = split_parameters(self.model)
        self.matrix_optimizer = Muon(matrices, lr=MATRIX_LR)
        self.other_optimizer = torch.optim.AdamW(self.others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = Average(self.model, decay=0.99)

    def batches(self, index: int) -> Iterator[tuple[Batch, torch.Generator]]:
        """Give one batch for each schedule."""
        generator = generator_for(SEED, index)
        rng = np.random.default_rng((SEED, index))
        while True:
            offset, crop = draw_crop(generator)
            rows = torch.randint(len(self.data.scenes), (BATCH,), generator=generator)
            scenes = [self.data.scenes[row] for row in rows.tolist()]
            prompts = ["" if rng.random() < DROP_PROMPT else write_prompt(scene, rng) for scene in scenes]
            with torch.no_grad():
                text_BLD = encode(self.tokenizer, self.encoder, prompts)
            video = self.data.latents[rows, :, offset:].float()
            is_start = offset == 0 and crop.chunks.start == 0
            yield Batch(video=video, text_BLD=text_BLD, crop=crop, is_start=is_start), generator

    def step(self, index: int) -> float:
        """Train on one batch of each schedule; the rate warms up, holds, and cools down."""
        scale = min(1.0, (index + 1) / 30) * min(1.0, (1 - index / self.num_steps) / COOLDOWN + 0.01)
        self.matrix_optimizer.param_groups[0]["lr"] = MATRIX_LR * scale
        self.other_optimizer.param_groups[0]["lr"] = OTHER_LR * scale
        self.model.zero_grad()
        batches, losses = self.batches(index), []
        for role in (Role.RENDERER, Role.SELF_FORCING, Role.HIAR):
            batch, generator = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                if role is Role.RENDERER:
                    loss = plan_and_render(self.model, batch, generator)
                else:
                    loss = continue_chunks(self.model, role, batch, generator)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.matrix_optimizer.step()
        self.other_optimizer.step()
        self.average.update(self.model)
        return sum(losses) / len(losses)


def save(model: CausalWan, folder: pathlib.Path) -> None:
    """Write the backbone and the adapters as the product loads them."""
    model.wan.save_config(folder / "transformer")
    save_half(model.wan, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    for role in Role:
        save_adapter(model.adapter(role).to("cpu", torch.float16), folder / "roles" / role.value)


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bfloat16", action="store_true", help="as in training.transformer")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # without it the math kernel works in float32
    recipe = Recipe(args.steps, bfloat16=args.bfloat16)
    state = {
        "model": recipe.model,
        "matrix_optimizer": recipe.matrix_optimizer,
        "other_optimizer": recipe.other_optimizer,
        "average": recipe.average,
    }
    run = Run(name="flashforward_sft", num_steps=args.steps, state=state, save_every=50, log_every=10)
    print(run.train(recipe.step))


if __name__ == "__main__":
    main()
