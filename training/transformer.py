"""Train the video transformer of the tiny family: `python -m training.transformer --stage image`, then `clip`.

Flow matching (velocity = noise - clean) on cached latents with frozen text states. The image stage learns
shapes, colours and backgrounds from single frames, which cost a fifth of a clip; the clip stage adds motion.
In the clip stage a share of the samples keeps its first latent frame clean at timestep 0, so that the same
weights continue from a picture (the per-token timestep of Wan2.2-TI2V). A training-only head on a middle block
names the shape that covers each latent cell.

Shape letters: B samples, C latent channels, L latent frames, h, w latent grid, S tokens, D model width.
"""

import argparse
import dataclasses
from typing import Any, Final

import numpy as np
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from reprise.tinyworld import write_prompt
from reprise.tinyworld.scene import SHAPES
from training.latents import load_latents
from training.muon import Muon, split_parameters
from training.recipe import RUNS, WEIGHTS, Average, Run, generator_for, save_half, write_card
from training.text_encoder import encode, load_text

SEED, DROP_PROMPT, FIRST_FRAME_SHARE, CELL_WEIGHT = 31, 0.1, 0.15, 0.1
TRANSFORMER: Final = {
    "patch_size": (1, 1, 1),
    "num_attention_heads": 5,
    "attention_head_dim": 32,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 128,
    "freq_dim": 128,
    "ffn_dim": 480,
    "num_layers": 6,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of the curriculum."""

    num_frames: int
    start: str | None
    batch: int
    steps: int
    matrix_lr: float
    other_lr: float
    shift: float
    """Timestep shift of the training noise levels; clips are more redundant than frames and need more noise."""
    cooldown: float
    """Share of the steps, at the end, over which the rate falls; 0 where another stage goes on."""


STAGES: Final = {
    "image": Stage(
        num_frames=1, start=None, batch=32, steps=1600, matrix_lr=0.02, other_lr=2e-3, shift=2.0, cooldown=0.0
    ),
    "clip": Stage(
        num_frames=17, start="image", batch=12, steps=6000, matrix_lr=0.01, other_lr=1e-3, shift=3.0, cooldown=0.35
    ),
}


class TrainableWan(nn.Module):
    """The diffusers model with a per-frame timestep and the cell head; its forward equals the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.wan = WanTransformer3DModel(**TRANSFORMER)
        nn.init.zeros_(self.wan.proj_out.weight)
        nn.init.zeros_(self.wan.proj_out.bias)
        width = TRANSFORMER["num_attention_heads"] * TRANSFORMER["attention_head_dim"]  # type: ignore[operator]
        self.cell_head = nn.Linear(width, 1 + len(SHAPES))

    def forward(self, latent_BCLhw: Tensor, timestep_BL: Tensor, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity, like the latent, and cell logits (B, S, 1 + shapes)."""
        wan, (B, _, L, h, w) = self.wan, latent_BCLhw.shape
        rotary = wan.rope(latent_BCLhw)
        tokens = wan.patch_embedding(latent_BCLhw).flatten(2).transpose(1, 2).contiguous()
        time, projection, text, _ = wan.condition_embedder(timestep_BL.flatten(), text_BLD, timestep_seq_len=L)
        # One embedding a frame, spread over the frame's cells.
        time = time[:, :, None].expand(-1, -1, h * w, -1).flatten(1, 2)
        projection = projection.unflatten(2, (6, -1))[:, :, None].expand(-1, -1, h * w, -1, -1).flatten(1, 2)
        middle = tokens
        for index, block in enumerate(wan.blocks):
            tokens = block(tokens, text, projection, rotary)
            if index == len(wan.blocks) // 2:
                middle = tokens
        shift, scale = (wan.scale_shift_table.unsqueeze(0) + time.unsqueeze(2)).unbind(2)
        tokens = wan.proj_out(wan.norm_out(tokens) * (1 + scale) + shift)
        velocity = tokens.view(B, L, h, w, -1).permute(0, 4, 1, 2, 3)
        return velocity, self.cell_head(middle)


def draw_sigma(count: int, shift: float, generator: torch.Generator) -> Tensor:
    """Draw noise levels: shifted logit-normal, one in ten uniform so that the ends are seen."""
    level = torch.sigmoid(torch.randn(count, generator=generator) * 1.1 + 0.2)
    level = torch.where(torch.rand(count, generator=generator) < 0.1, torch.rand(count, generator=generator), level)
    return shift * level / (1 + (shift - 1) * level)


class Recipe:
    """Model, optimisers and data of one stage; `step(i)` is all the loop needs."""

    def __init__(self, stage: Stage, *, compile_model: bool, bfloat16: bool) -> None:
        self.stage, self.bfloat16 = stage, bfloat16
        self.data = load_latents(stage.num_frames)
        self.tokenizer, self.encoder = load_text()
        self.model = TrainableWan()
        if stage.start is not None:
            saved = torch.load(RUNS / f"transformer-{stage.start}" / "state.pt", weights_only=False)
            self.model.load_state_dict(saved["state"]["average"]["shadow"], strict=False)
        matrices, self.others = split_parameters(self.model)
        self.matrix_optimizer = Muon(matrices, lr=stage.matrix_lr)
        self.other_optimizer = torch.optim.AdamW(self.others, lr=stage.other_lr, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = Average(self.model, decay=0.996)
        self.forward: Any = torch.compile(self.model, dynamic=False) if compile_model else self.model

    def batch(self, index: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Give latents, cell labels and text states of step `index`; prompts are worded afresh."""
        rows = torch.randint(len(self.data.scenes), (self.stage.batch,), generator=generator)
        rng = np.random.default_rng((SEED, index))
        prompts = [
            ""
            if rng.random() < DROP_PROMPT
            else write_prompt(self.data.scenes[row], rng if rng.random() < 0.8 else None)
            for row in rows.tolist()
        ]
        with torch.no_grad():
            text = encode(self.tokenizer, self.encoder, prompts)
        return self.data.latents[rows].float(), self.data.cells[rows].long(), text

    def loss(self, index: int) -> tuple[Tensor, Tensor]:
        """Give the flow-matching loss and the loss with the cell term."""
        generator = generator_for(SEED, index)
        clean, cells, text = self.batch(index, generator)
        B, _, L, _, _ = clean.shape
        sigma_BL = draw_sigma(B, self.stage.shift, generator)[:, None].expand(B, L).clone()
        weight_BL = torch.ones(B, L)
        if L > 1:
            keep_first = torch.rand(B, generator=generator) < FIRST_FRAME_SHARE
            sigma_BL[keep_first, 0], weight_BL[keep_first, 0] = 0.0, 0.0
        noise = torch.randn(clean.shape, generator=generator)
        sigma = sigma_BL[:, None, :, None, None]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            velocity, logits = self.forward((1 - sigma) * clean + sigma * noise, 1000 * sigma_BL, text)
        error_BL = (velocity.float() - (noise - clean)).pow(2).mean((1, 3, 4))
        flow = (error_BL * weight_BL).sum() / weight_BL.sum()
        cell = nn.functional.cross_entropy(logits.float().flatten(0, 1), cells.flatten())
        return flow, flow + CELL_WEIGHT * cell

    def step(self, index: int) -> float:
        """Train on one batch; the rate warms up, holds, and cools down."""
        left, cooldown = 1 - index / self.stage.steps, self.stage.cooldown
        scale = min(1.0, (index + 1) / 60) * (min(1.0, left / cooldown + 0.01) if cooldown else 1.0)
        self.matrix_optimizer.param_groups[0]["lr"] = self.stage.matrix_lr * scale
        self.other_optimizer.param_groups[0]["lr"] = self.stage.other_lr * scale
        flow, total = self.loss(index)
        self.model.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.matrix_optimizer.step()
        self.other_optimizer.step()
        self.average.update(self.model)
        return float(flow.detach())


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", choices=list(STAGES), required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--bfloat16", action="store_true", help="matrix products in bfloat16: a third faster on CPUs with AVX512-BF16"
    )
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    stage = dataclasses.replace(STAGES[args.stage], steps=args.steps or STAGES[args.stage].steps)
    recipe = Recipe(stage, compile_model=args.compile, bfloat16=args.bfloat16)
    run = Run(
        name=f"transformer-{args.stage}",
        num_steps=stage.steps,
        state={
            "model": recipe.model,
            "matrix_optimizer": recipe.matrix_optimizer,
            "other_optimizer": recipe.other_optimizer,
            "average": recipe.average,
        },
    )
    facts = run.train(recipe.step)
    recipe.average.copy_to(recipe.model)
    folder = WEIGHTS / "tiny" / "transformer"
    recipe.model.wan.save_config(folder)
    save_half(recipe.model.wan, folder / "diffusion_pytorch_model.safetensors")
    write_card(
        folder,
        title="Tiny Wan transformer",
        recipe=f"python -m training.transformer --stage {args.stage} --steps {stage.steps}"
        + " --bfloat16" * args.bfloat16,
        text="WanTransformer3DModel, 6 layers of width 160, flow matching at 64x64. "
        f"Stage `{args.stage}` of `image`, `clip`: {len(recipe.data.scenes)} cached samples, batch {stage.batch}. "
        "`loss` is the smoothed flow-matching loss.",
        facts=facts,
    )


if __name__ == "__main__":
    main()
