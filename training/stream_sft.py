"""Train the transformer that continues a live stream: `python -m training.stream_sft`.

Flow matching from the clip model, on clips that follow a picture whose prompt may be another one. The picture is the
first latent, clean, at timestep 0, as Wan2.2-TI2V is shown it; some samples begin from nothing. Windows of two, four
and eight latents after the first are trained in turn, so that one model serves short and long chunks.

Shape letters: B samples, C latent channels, L latent frames, h, w latent grid.
"""

import argparse
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from reprise.tinyworld import write_prompt
from training.continuations import load_continuations
from training.muon import Muon, split_parameters
from training.recipe import WEIGHTS, Average, Run, generator_for, load_half
from training.text_encoder import encode, load_text
from training.transformer import TrainableWan, draw_sigma

SEED, BATCH, DROP_PROMPT, SHIFT, FROM_NOTHING_SHARE = 91, 12, 0.1, 3.0, 0.15
CHUNKS: Final = (2, 4, 8)
"""Latents after the first, one length a step, in turn."""
MATRIX_LR, OTHER_LR, COOLDOWN = 0.006, 6e-4, 0.5


class Recipe:
    """Model, optimisers and data; `step(i)` is all the loop needs."""

    def __init__(self, num_steps: int, *, compile_model: bool, bfloat16: bool) -> None:
        self.num_steps, self.bfloat16 = num_steps, bfloat16
        self.data = load_continuations()
        self.tokenizer, self.encoder = load_text()
        self.model = TrainableWan()
        self.model.cell_head.requires_grad_(False)
        load_half(self.model.wan, WEIGHTS / "tiny" / "transformer" / "diffusion_pytorch_model.safetensors")
        matrices, self.others = split_parameters(self.model)
        self.matrix_optimizer = Muon(matrices, lr=MATRIX_LR)
        self.other_optimizer = torch.optim.AdamW(self.others, lr=OTHER_LR, betas=(0.9, 0.98), weight_decay=0.0)
        self.average = Average(self.model, decay=0.99)
        self.forward: Any = torch.compile(self.model, dynamic=False) if compile_model else self.model

    def loss(self, index: int) -> Tensor:
        """Give the flow-matching loss of step `index`; what is shown clean does not count."""
        generator, rng = generator_for(SEED, index), np.random.default_rng((SEED, index))
        rows = torch.randint(len(self.data.scenes), (BATCH,), generator=generator)
        prompts = [
            "" if rng.random() < DROP_PROMPT else write_prompt(self.data.scenes[row], rng) for row in rows.tolist()
        ]
        with torch.no_grad():
            text = encode(self.tokenizer, self.encoder, prompts)
        from_nothing_B = torch.rand(BATCH, generator=generator) < FROM_NOTHING_SHARE
        first = torch.where(
            from_nothing_B[:, None, None, None, None], self.data.firsts[rows], self.data.boundaries[rows]
        )
        clean = torch.cat([first, self.data.latents[rows, :, : CHUNKS[index % len(CHUNKS)]]], 2).float()
        weight_BL = torch.ones(BATCH, clean.shape[2])
        weight_BL[~from_nothing_B, 0] = 0.0
        sigma_BL = weight_BL * draw_sigma(BATCH, SHIFT, generator)[:, None]
        noise = torch.randn(clean.shape, generator=generator)
        sigma = sigma_BL[:, None, :, None, None]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            velocity, _ = self.forward((1 - sigma) * clean + sigma * noise, 1000 * sigma_BL, text)
        error_BL = (velocity.float() - (noise - clean)).pow(2).mean((1, 3, 4))
        return torch.sum(error_BL * weight_BL) / weight_BL.sum()

    def step(self, index: int) -> float:
        """Train on one batch; the rate warms up, holds, and cools down."""
        scale = min(1.0, (index + 1) / 30) * min(1.0, (1 - index / self.num_steps) / COOLDOWN + 0.01)
        self.matrix_optimizer.param_groups[0]["lr"] = MATRIX_LR * scale
        self.other_optimizer.param_groups[0]["lr"] = OTHER_LR * scale
        loss = self.loss(index)
        self.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.matrix_optimizer.step()
        self.other_optimizer.step()
        self.average.update(self.model)
        return float(loss.detach())

    @property
    def state(self) -> dict[str, Any]:
        """Give what a resumed run needs."""
        return {
            "model": self.model,
            "matrix_optimizer": self.matrix_optimizer,
            "other_optimizer": self.other_optimizer,
            "average": self.average,
        }


def main() -> None:
    """Run the recipe; `training.stream_distill` goes on from its state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bfloat16", action="store_true", help="as in training.transformer")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    recipe = Recipe(args.steps, compile_model=args.compile, bfloat16=args.bfloat16)
    print(Run(name="stream_sft", num_steps=args.steps, state=recipe.state, save_every=100).train(recipe.step))


if __name__ == "__main__":
    main()
