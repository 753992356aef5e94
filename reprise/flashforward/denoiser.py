"""One forward of a schedule, carried out: noise or a latent and KV in, the next latent and new KV out.

The same for all methods; a role's adapter is all that differs. Knows nothing about the order of forwards, where KV
is kept, or on how many workers the video is made.

Shape letters: B batch, C latent channels, T latent frames of one chunk or block, H, W latent grid.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from reprise.errors import NumericalError
from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Forward, Method, Source
from reprise.sampling import euler_step
from reprise.wan import adapter
from reprise.wan.adapter import RoleAdapter, adapted
from reprise.wan.causal import encode_prompt_kv, predict_chunk
from reprise.wan.kv import ChunkKV, PromptKV, split_kv
from reprise.wan.model import PromptEmbedding, WanModel

Entry = tuple[ChunkKV, ...]
"""The KV of one chunk or anchor: of the forward of the prompt and, if guided, of that of the negative prompt."""

_ROLES: Final = {
    (Method.FLASH_FORWARD, Source.ANCHOR): adapter.Role.PLANNER,
    (Method.FLASH_FORWARD, Source.CHUNK): adapter.Role.RENDERER,
    (Method.SELF_FORCING, Source.CHUNK): adapter.Role.SELF_FORCING,
    (Method.HIAR, Source.CHUNK): adapter.Role.HIAR,
}
_SOURCE_NUMBERS: Final = {Source.CHUNK: 0, Source.ANCHOR: 1}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongVideoSpec:
    """What determines a long video's pixels, besides the weights."""

    method: Method
    layout: Layout
    seed: int
    width: int
    """Pixels, as are heights."""
    height: int
    guidance_scale: float
    sigmas: tuple[float, ...]
    """Noise levels (S + 1,) that chunks enter the stages at, falling from 1; the last is 0, clean."""

    def __post_init__(self) -> None:
        if len(self.sigmas) != self.layout.num_stages + 1 or self.sigmas[0] != 1 or self.sigmas[-1] != 0:
            raise ValueError(
                f"sigmas must be num_stages + 1 = {self.layout.num_stages + 1} levels from 1 to 0, got {self.sigmas}"
            )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ForwardResult:
    """What one forward leaves."""

    latent_BCTHW: Tensor | None
    """The latent as it enters the next stage; None where the forward only makes KV."""
    published: tuple[Entry, ...]
    """One entry for each index of the forward's `publishes`; empty where it publishes nothing."""


class StageDenoiser:
    """Runs the forwards of one video on one device."""

    def __init__(
        self,
        model: WanModel,
        adapters: Mapping[adapter.Role, RoleAdapter],
        spec: LongVideoSpec,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None = None,
    ) -> None:
        """Take a loaded model; `negative` is needed for a guidance above 1."""
        if spec.guidance_scale > 1 and negative is None:
            raise ValueError(f"guidance_scale={spec.guidance_scale} needs an embedding of the negative prompt")
        self._model, self._adapters, self._spec = model, adapters, spec
        self._embeddings = (embedding,) if negative is None or spec.guidance_scale <= 1 else (embedding, negative)
        self._prompts: dict[adapter.Role, tuple[PromptKV, ...]] = {}

    def run(self, forward: Forward, latent_BCTHW: Tensor | None, context: Sequence[Entry]) -> ForwardResult:
        """Run one forward; `latent_BCTHW` is None at the first stage, which begins from noise.

        `context` holds the entries that the forward reads, in its order. Raises NumericalError for a latent that is
        not finite, rather than show a black video.
        """
        spec, model = self._spec, self._model
        positions = positions_of(spec.layout, forward.source, forward.unit)
        if latent_BCTHW is None:
            latent_BCTHW = self.noise(forward.source, forward.unit)
        prompts = self._prompt_kv(_ROLES[spec.method, forward.source])
        sigma = torch.tensor(spec.sigmas[forward.stage])
        with adapted(model.transformer, self._adapters[_ROLES[spec.method, forward.source]]):
            prediction = predict_chunk(
                model,
                latent_BCTHW,
                sigma * model.scheduler.config.num_train_timesteps,
                prompts,
                [[entry[number] for entry in context] for number in range(len(prompts))],
                positions=positions,
                guidance_scale=spec.guidance_scale,
            )
        published: tuple[Entry, ...] = ()
        if forward.publishes is not None:
            count = len(forward.publishes.indices)
            parts = [split_kv(kv, count) for kv in prediction.published]
            published = tuple(zip(*parts, strict=True))
        if not forward.advances:
            return ForwardResult(None, published)
        next_sigma = torch.tensor(spec.sigmas[forward.stage + 1])
        latent_BCTHW = euler_step(latent_BCTHW, prediction.velocity_BCTHW, sigma=sigma, next_sigma=next_sigma)
        if forward.stage == spec.layout.num_stages - 1 and not bool(torch.isfinite(latent_BCTHW).all()):
            raise NumericalError(f"the latent of {forward.source} {forward.unit} is not finite")
        return ForwardResult(latent_BCTHW, published)

    def noise(self, source: Source, unit: int) -> Tensor:
        """Draw the start latent of a chunk or block, float32; the same wherever and in whatever order it is drawn."""
        spec, vae = self._spec, self._model.vae.config
        words = np.random.SeedSequence((spec.seed, _SOURCE_NUMBERS[source], unit)).generate_state(2, np.uint32)
        generator = torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
        size = (spec.height // vae.scale_factor_spatial, spec.width // vae.scale_factor_spatial)
        frames = len(positions_of(spec.layout, source, unit))
        shape = (1, self._model.transformer.config.in_channels, frames, *size)
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(self._model.device)

    @torch.no_grad()
    def _prompt_kv(self, role: adapter.Role) -> tuple[PromptKV, ...]:
        """Project the prompts for a role, once."""
        if role not in self._prompts:
            with adapted(self._model.transformer, self._adapters[role]):
                self._prompts[role] = tuple(
                    encode_prompt_kv(self._model.transformer, embedding.states_BLD) for embedding in self._embeddings
                )
        return self._prompts[role]


def positions_of(layout: Layout, source: Source, unit: int) -> list[int]:
    """Give the latent frames of a chunk, or of a block's anchors."""
    if source is Source.CHUNK:
        return list(layout.chunk_positions(unit))
    return [layout.anchor_position(anchor) for anchor in layout.block_anchors_of(unit)]


def adapters_of(method: Method) -> tuple[adapter.Role, ...]:
    """Name the role adapters that a method's forwards need."""
    return tuple(role for (of, _), role in _ROLES.items() if of is method)
