"""A loaded Wan model and the functions from a prompt to frames: encode, predict the velocity, decode.

Gives what diffusers' WanPipeline gives for the same seed, with every step open to a caller. A `WanModel` is read
only, so requests on several threads cannot disturb each other. Knows nothing about reuse, jobs or files.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid, L text tokens, D text width,
S latent tokens of one sample; in frames_FHWC: F frames, H, W pixels.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from numpy.typing import NDArray
from torch import Tensor

from reprise.errors import NumericalError
from reprise.sampling import Solver, SolverState, new_solver, run_steps
from reprise.wan import checkpoint
from reprise.wan.presets import ModelPreset

logger = logging.getLogger(__name__)

Conditioned = Callable[[], contextlib.AbstractContextManager[Any]]
"""Makes the context in which the forward of the prompt runs, as opposed to that of the negative prompt."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WanModel:
    """The parts of one checkpoint on one device; the scheduler is a pattern that requests copy, never run."""

    preset: ModelPreset
    tokenizer: Any
    text_encoder: Any
    transformer: Any
    vae: Any
    scheduler: Any
    device: torch.device
    fingerprint: str
    """Of the weights' content; part of every reuse key."""
    tokenizer_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """A fast tokenizer sets its truncation per call and fails with "Already borrowed" when two calls meet."""
    vae_lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """AutoencoderKLWan keeps the frames it convolves over in itself while it decodes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PromptEmbedding:
    """What the transformer attends to, and how much of the prompt that is."""

    states_BLD: Tensor
    num_tokens: int
    """Tokens that were read, the end mark included; the states after them are zero."""
    num_dropped: int
    """Tokens at the end of the prompt that did not fit; tell the caller when there are any."""


def load(preset: ModelPreset, device: str | torch.device = "cpu") -> WanModel:
    """Load a preset's checkpoint; the bundled family takes the same way as any other."""
    folder = checkpoint.locate(preset.path, preset.revision)
    index = checkpoint.read_index(folder)
    other = preset.transformer_path
    transformer_folder = folder if other is None else checkpoint.locate_transformer(other, preset.revision)
    device = torch.device(device)
    text_encoder = checkpoint.load_text_encoder(folder, index, getattr(torch, preset.text_encoder_dtype))
    transformer = checkpoint.load_module(
        transformer_folder, index, "transformer", getattr(torch, preset.transformer_dtype)
    )
    vae = checkpoint.load_module(folder, index, "vae", getattr(torch, preset.vae_dtype))
    model = WanModel(
        preset=preset,
        tokenizer=checkpoint.load_tokenizer(folder),
        text_encoder=text_encoder.to(device),
        transformer=transformer.to(device),
        vae=vae.to(device),
        scheduler=checkpoint.load_scheduler(folder, index, flow_shift=preset.flow_shift),
        device=device,
        fingerprint=checkpoint.fingerprint(folder, transformer_folder),
    )
    solver_for(model, num_steps=preset.num_inference_steps)  # an unusable scheduler fails here, not in a job
    for width, height in preset.sizes.values():
        latent_shape(model, width=width, height=height, num_frames=preset.default_num_frames)
    for name, module in (("text encoder", text_encoder), ("transformer", transformer), ("vae", vae)):
        logger.info("loaded %s of %s on %s: %s", name, preset.name, device, count_dtypes(module))
    return model


def count_dtypes(module: Any) -> dict[str, int]:
    """Count a module's parameters by dtype, for the report at start."""
    counts: dict[str, int] = {}
    for parameter in module.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + parameter.numel()
    return counts


def solver_for(model: WanModel, *, num_steps: int) -> Solver:
    """Build one request's own solver with the checkpoint's scheduler settings."""
    return new_solver(model.scheduler, num_steps=num_steps, step_sigmas=model.preset.step_sigmas)


def latent_shape(model: WanModel, *, width: int, height: int, num_frames: int) -> tuple[int, ...]:
    """Give the shape (1, C, T, H, W) of a clip's latent; refuse a clip that does not fit the model's grid."""
    space, time = model.vae.config.scale_factor_spatial, model.vae.config.scale_factor_temporal
    _, patch_height, patch_width = model.transformer.config.patch_size
    if num_frames % time != 1 or width % (space * patch_width) or height % (space * patch_height):
        raise ValueError(
            f"expected 1 + {time}k frames and sides divisible by {space * patch_width} and {space * patch_height}, "
            f"got {num_frames} frames of {width}x{height}"
        )
    channels = model.transformer.config.in_channels
    return (1, channels, (num_frames - 1) // time + 1, height // space, width // space)


def draw_noise(model: WanModel, *, seed: int, width: int, height: int, num_frames: int) -> Tensor:
    """Draw the start latent of a seed, on the host, so that every device starts from the same one."""
    shape = latent_shape(model, width=width, height=height, num_frames=num_frames)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(model.device)


@torch.no_grad()
def encode_prompt(model: WanModel, prompt: str) -> PromptEmbedding:
    """Encode a prompt as WanPipeline does: cleaned, padded to a fixed length, zero on the padding."""
    text, length = prompt_clean(prompt), model.preset.max_sequence_length
    with model.tokenizer_lock:
        num_wanted = len(model.tokenizer(text, add_special_tokens=True, verbose=False).input_ids)
        tokens = model.tokenizer(
            [text],
            padding="max_length",
            max_length=length,
            truncation=True,
            add_special_tokens=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
    num_tokens = int(tokens.attention_mask.sum())
    ids, mask = tokens.input_ids.to(model.device), tokens.attention_mask.to(model.device)
    states_BLD = model.text_encoder(ids, mask).last_hidden_state.to(model.transformer.dtype)
    padding_BLD = states_BLD.new_zeros(1, length - num_tokens, states_BLD.shape[2])
    return PromptEmbedding(
        states_BLD=torch.cat([states_BLD[:, :num_tokens], padding_BLD], 1),
        num_tokens=num_tokens,
        num_dropped=num_wanted - num_tokens,
    )


@torch.no_grad()
def predict_velocity(
    model: WanModel,
    latent_BCTHW: Tensor,
    timestep: Tensor,
    embedding: PromptEmbedding,
    negative: PromptEmbedding | None,
    guidance_scale: float,
    *,
    first_frame_latent_BC1HW: Tensor | None = None,
    conditioned: Conditioned = contextlib.nullcontext,
) -> Tensor:
    """Run the dense forward, twice when guided, and give the velocity in float32.

    `timestep` is a float32 scalar. Guidance up to 1 needs no `negative`. Two forwards rather than one over both
    prompts: as fast on a CPU to within 5 %, half the memory, and WanPipeline's own result. The forward of the prompt,
    and no other, runs within `conditioned()`.
    A first frame is shown clean, at timestep 0, and its velocity is zero (Wan2.2-TI2V).
    """
    if guidance_scale > 1 and negative is None:
        raise ValueError(f"guidance_scale={guidance_scale} needs an embedding of the negative prompt, got None")
    steps = timestep.to(model.device).expand(latent_BCTHW.shape[0])
    if first_frame_latent_BC1HW is not None:
        latent_BCTHW = with_first_frame(latent_BCTHW, first_frame_latent_BC1HW)
        steps = _token_timesteps(model, latent_BCTHW, steps)
    latent_BCTHW = latent_BCTHW.to(model.transformer.dtype)

    def forward(prompt: PromptEmbedding) -> Tensor:
        velocity: Tensor = model.transformer(latent_BCTHW, steps, prompt.states_BLD, return_dict=False)[0]
        return velocity.float()

    with conditioned():
        velocity_BCTHW = forward(embedding)
    if guidance_scale > 1:
        assert negative is not None
        unguided_BCTHW = forward(negative)
        velocity_BCTHW = unguided_BCTHW + guidance_scale * (velocity_BCTHW - unguided_BCTHW)
    if first_frame_latent_BC1HW is not None:
        velocity_BCTHW = with_first_frame(velocity_BCTHW, torch.zeros_like(velocity_BCTHW[:, :, :1]))
    return velocity_BCTHW


def with_first_frame(latent_BCTHW: Tensor, first_frame_BC1HW: Tensor) -> Tensor:
    """Exchange the first latent frame."""
    return torch.cat([first_frame_BC1HW.to(latent_BCTHW), latent_BCTHW[:, :, 1:]], 2)


def _token_timesteps(model: WanModel, latent_BCTHW: Tensor, steps_B: Tensor) -> Tensor:
    """Spread the timestep over the tokens (B, S), with 0 on those of the first frame."""
    _, _, T, H, W = latent_BCTHW.shape
    _, patch_height, patch_width = model.transformer.config.patch_size
    frames_BT = torch.cat([torch.zeros_like(steps_B)[:, None], steps_B[:, None].expand(-1, T - 1)], 1)
    return frames_BT.repeat_interleave((H // patch_height) * (W // patch_width), dim=1)


def denoise(
    model: WanModel,
    solver: Solver,
    state: SolverState,
    embedding: PromptEmbedding,
    negative: PromptEmbedding | None,
    guidance_scale: float,
    *,
    first_frame_latent_BC1HW: Tensor | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[SolverState]:
    """Yield the state after every step that is left; `state` is fresh noise, or where another run is taken up."""
    first = first_frame_latent_BC1HW

    def predict(latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
        return predict_velocity(
            model, latent_BCTHW, timestep, embedding, negative, guidance_scale, first_frame_latent_BC1HW=first
        )

    for reached in run_steps(solver, state, predict, should_stop=should_stop):
        if first is not None:  # the solver carries along a first frame of its own, which the model is never shown
            reached = dataclasses.replace(reached, latent_BCTHW=with_first_frame(reached.latent_BCTHW, first))
        yield reached


@torch.no_grad()
def encode_frame(model: WanModel, frame_HWC: NDArray[np.uint8]) -> Tensor:
    """Encode one picture, 0 to 255, on the VAE's first-frame path: the latent (1, C, 1, H, W) that a video begins with.

    The mode of the posterior, normalised as the transformer sees it, in float32.
    """
    pixels_BCFHW = torch.tensor(frame_HWC, device=model.device).permute(2, 0, 1)[None, :, None]
    pixels_BCFHW = (pixels_BCFHW.float() / 127.5 - 1).to(model.vae.dtype)
    with model.vae_lock:
        latent = model.vae.encode(pixels_BCFHW, return_dict=False)[0].mode().float()
    config = model.vae.config
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(latent) for values in (config.latents_mean, config.latents_std)
    )
    normalised: Tensor = (latent - mean) / std
    return normalised


@torch.no_grad()
def decode_video(model: WanModel, latent_BCTHW: Tensor) -> NDArray[np.uint8]:
    """Decode one clip's final latent to frames_FHWC in 0..255; raise NumericalError rather than show a black video."""
    latent_BCTHW = to_vae_scale(model, latent_BCTHW)
    with model.vae_lock:
        video_BCFHW = model.vae.decode(latent_BCTHW, return_dict=False)[0]
    return to_frames(video_BCFHW)


def to_vae_scale(model: WanModel, latent_BCTHW: Tensor) -> Tensor:
    """Give one video's latent as its VAE decodes it, in the VAE's dtype."""
    if latent_BCTHW.shape[0] != 1:
        raise ValueError(f"expected the latent of one clip, got a batch of {latent_BCTHW.shape[0]}")
    config, latent = model.vae.config, latent_BCTHW.to(model.vae.dtype)
    mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1, 1).to(latent)
    # Divided by the reciprocal, not multiplied: WanPipeline's order of rounding.
    inverse_std = 1.0 / torch.tensor(config.latents_std).view(1, -1, 1, 1, 1).to(latent)
    return latent / inverse_std + mean


def to_frames(video_BCFHW: Tensor) -> NDArray[np.uint8]:
    """Give one decoded video, in -1..1, as frames_FHWC in 0..255; raise NumericalError for NaN."""
    if not bool(torch.isfinite(video_BCFHW).all()):
        raise NumericalError("the decoded video holds NaN: run the transformer or the VAE in float32")
    frames = (video_BCFHW[0].float() * 0.5 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8)
    return np.asarray(frames.permute(1, 2, 3, 0).contiguous().cpu())
