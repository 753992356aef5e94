"""Which checkpoint to serve, and what may be asked of it; each preset is a function that returns a value.

Change a preset with `dataclasses.replace`, never in place. Standard library only; knows nothing about tensors or
HTTP, and reads no weights.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

from reprise.chorus.gains import AmplificationConfig, amplification_from_json
from reprise.chorus.stages import StageMap, many_step_map, stage_map_from_json
from reprise.teacache import TeaCacheConfig, teacache_from_json, wan21_t2v_1_3b_teacache, wan21_t2v_14b_teacache
from reprise.wan.memory import GIB, MemoryCosts, MemoryNeed

TEMPORAL_STRIDE = 4
"""Every Wan VAE makes one latent of the first frame and one of each four that follow."""

WEIGHTS = pathlib.Path(__file__).parent.parent / "weights"
_DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelPreset:
    """A checkpoint, how it is loaded, and the requests it takes."""

    name: str
    """What `model` of a request says."""
    path: str
    """A folder in diffusers' layout, or the id of one on the hub."""
    revision: str
    """Branch, tag or commit on the hub; for a folder, the name of the weights' version."""
    transformer_dtype: str
    text_encoder_dtype: str
    vae_dtype: str
    """Half-precision Wan VAEs fail or drift; keep it at float32."""
    sizes: Mapping[str, tuple[int, int]]
    """Size of a request, "WIDTHxHEIGHT" as delivered, to the width and height that are generated."""
    default_size: str
    fps: int
    min_num_frames: int
    max_num_frames: int
    default_num_frames: int
    num_inference_steps: int
    """The default of a request, as are guidance_scale and flow_shift."""
    guidance_scale: float
    flow_shift: float
    max_sequence_length: int
    """Tokens that a prompt is padded or cut to; Wan attends to padding, so it belongs to the weights."""
    memory: MemoryCosts
    stage_map: StageMap
    edit_radius: int
    """Latent cells by which the differing object's mask grows to what stage 2 denoises."""
    see_radius: int
    """And to what takes part in the computation, at most."""
    amplification: AmplificationConfig | None = None
    """How strongly the differing words are amplified after reuse; None does not."""
    teacache: TeaCacheConfig | None = None
    """The setting with which steps may be skipped, where an operator asks for it; None knows none."""
    transformer_path: str | None = None
    """A folder or hub id whose `transformer` is taken in place of the checkpoint's own, such as a distilled one."""
    step_sigmas: tuple[float, ...] = ()
    """Noise levels that a distilled model was made for, one a step, falling from 1; empty follows the scheduler."""

    def __post_init__(self) -> None:
        if not 0 <= self.edit_radius <= self.see_radius:
            raise ValueError(f"expected 0 <= edit_radius <= see_radius, got {self.edit_radius} and {self.see_radius}")
        if self.default_size not in self.sizes:
            raise ValueError(f"default_size={self.default_size} is none of sizes={sorted(self.sizes)}")
        for field in ("transformer_dtype", "text_encoder_dtype", "vae_dtype"):
            if getattr(self, field) not in _DTYPES:
                raise ValueError(f"{field} must be one of {_DTYPES}, got {getattr(self, field)!r}")
        for num_frames in (self.min_num_frames, self.max_num_frames, self.default_num_frames):
            self.check_num_frames(num_frames)
        sigmas = self.step_sigmas
        if sigmas and not (len(sigmas) == self.num_inference_steps and sigmas[0] == 1.0 and sigmas[-1] > 0):
            raise ValueError(
                f"step_sigmas must fall from 1 to above 0, one level for each of num_inference_steps="
                f"{self.num_inference_steps}, got {sigmas}"
            )

    @property
    def tau(self) -> float:
        """Least matching score that is reused."""
        return self.stage_map.tau

    @property
    def seconds(self) -> tuple[int, ...]:
        """Give the whole lengths, in seconds, that can be asked for."""
        every = range(1, self.max_num_frames // self.fps + 1)
        return tuple(s for s in every if self._is_valid(s * self.fps + 1))

    def memory_need(self, size: str, num_frames: int) -> MemoryNeed:
        """Predict what a clip takes on its device, the weights included."""
        width, height = self.sizes[size]
        return self.memory.need(
            width=width,
            height=height,
            num_frames=num_frames,
            text_encoder_dtype=self.text_encoder_dtype,
            transformer_dtype=self.transformer_dtype,
            vae_dtype=self.vae_dtype,
        )

    def within(self, memory_gib: float) -> "ModelPreset":
        """Keep the sizes whose longest clip fits; raise ValueError when the default's does not."""
        need = {size: self.memory_need(size, self.max_num_frames).peak / GIB for size in self.sizes}
        if need[self.default_size] > memory_gib:
            raise ValueError(
                f"{self.name} at {self.default_size} and {self.max_num_frames} frames needs "
                f"{need[self.default_size]:.1f} GiB, has {memory_gib:g}"
            )
        return dataclasses.replace(self, sizes={size: self.sizes[size] for size in need if need[size] <= memory_gib})

    def num_frames(self, seconds: int) -> int:
        """Give the frames of a clip of so many seconds: both ends are shown, so one more than seconds * fps."""
        if seconds not in self.seconds:
            raise ValueError(f"{self.name} makes clips of {self.seconds} seconds, got {seconds}")
        return seconds * self.fps + 1

    def check_num_frames(self, num_frames: int) -> None:
        """Refuse a number of frames that the VAE cannot group or the model is not meant for."""
        if not self._is_valid(num_frames):
            raise ValueError(
                f"{self.name} makes 1 + {TEMPORAL_STRIDE}k frames, from {self.min_num_frames} to "
                f"{self.max_num_frames}, got {num_frames}"
            )

    def _is_valid(self, num_frames: int) -> bool:
        in_range = self.min_num_frames <= num_frames <= self.max_num_frames
        return in_range and num_frames % TEMPORAL_STRIDE == 1


def tiny() -> ModelPreset:
    """Give the bundled model: 64x64 at 4 frames a second, centred on a canvas of the size that was asked for."""
    delivered = ("720x1280", "1280x720", "1024x1792", "1792x1024", "64x64")
    return ModelPreset(
        name="reprise-tiny",
        path=str(WEIGHTS / "tiny"),
        revision="1",
        transformer_dtype="float32",
        text_encoder_dtype="float32",
        vae_dtype="float32",
        sizes=dict.fromkeys(delivered, (64, 64)),
        default_size="720x1280",
        fps=4,
        min_num_frames=5,
        max_num_frames=17,
        default_num_frames=17,
        num_inference_steps=50,
        guidance_scale=4.0,
        flow_shift=3.0,
        max_sequence_length=48,
        memory=MemoryCosts(
            text_encoder_parameters=410_496,
            transformer_parameters=2_426_416,
            vae_parameters=1_779_568,
            forward_elements_per_token=1_720,
            decode_elements_per_pixel=255,
            token_pixels=8,
        ),
        stage_map=stage_map_from_json((WEIGHTS / "tiny" / "stage_map.json").read_text()),
        edit_radius=1,
        see_radius=2,
        amplification=amplification_from_json((WEIGHTS / "tiny" / "amplification.json").read_text()),
        teacache=teacache_from_json((WEIGHTS / "tiny" / "teacache.json").read_text()),
    )


def tiny_4step() -> ModelPreset:
    """Give the bundled model distilled to four steps without guidance."""
    return dataclasses.replace(
        tiny(),
        name="reprise-tiny-4step",
        num_inference_steps=4,
        guidance_scale=1.0,
        step_sigmas=(1.0, 0.9, 0.75, 0.5),
        transformer_path=str(WEIGHTS / "tiny_4step"),
        stage_map=stage_map_from_json((WEIGHTS / "tiny_4step" / "stage_map.json").read_text()),
        amplification=amplification_from_json((WEIGHTS / "tiny_4step" / "amplification.json").read_text()),
        teacache=None,
    )


def wan21_t2v_1_3b() -> ModelPreset:
    """Give Wan2.1-T2V-1.3B, at its native 480p sizes."""
    return ModelPreset(
        name="wan2.1-t2v-1.3b",
        path="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        revision="main",
        transformer_dtype="bfloat16",
        text_encoder_dtype="bfloat16",
        vae_dtype="float32",
        sizes={"832x480": (832, 480), "480x832": (480, 832)},
        default_size="832x480",
        fps=16,
        min_num_frames=17,
        max_num_frames=81,
        default_num_frames=81,
        num_inference_steps=50,
        guidance_scale=5.0,
        flow_shift=3.0,
        max_sequence_length=512,
        memory=MemoryCosts(
            text_encoder_parameters=5_680_910_336,
            transformer_parameters=1_418_996_800,
            vae_parameters=126_892_531,
            forward_elements_per_token=24_800,
            decode_elements_per_pixel=4_880,
        ),
        stage_map=many_step_map(),
        edit_radius=8,
        see_radius=14,
        teacache=wan21_t2v_1_3b_teacache(),
    )


def wan21_t2v_14b() -> ModelPreset:
    """Give Wan2.1-T2V-14B, at its native 720p and 480p sizes and the shift for 720p."""
    small = wan21_t2v_1_3b()
    return dataclasses.replace(
        small,
        name="wan2.1-t2v-14b",
        path="Wan-AI/Wan2.1-T2V-14B-Diffusers",
        memory=dataclasses.replace(
            small.memory, transformer_parameters=14_288_491_584, forward_elements_per_token=57_300
        ),
        sizes={name: _parse_size(name) for name in ("1280x720", "720x1280", "832x480", "480x832")},
        default_size="1280x720",
        flow_shift=5.0,
        teacache=wan21_t2v_14b_teacache(),
    )


def _parse_size(name: str) -> tuple[int, int]:
    width, height = name.split("x")
    return int(width), int(height)
