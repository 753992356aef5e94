"""The one configuration of the application: a typed model that the Serve config file or a caller fills in.

Unknown keys are errors that name the key. Converts to the plain dataclasses that actors take; nothing below
this package knows YAML or pydantic.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from actors.embedder import EmbedderConfig
from actors.retrieval import RetrievalConfig
from cache_store.contracts import EncoderTag
from cache_store.partition import PartitionKey
from deployments.api.jobs import JobStoreConfig
from deployments.api.limits import ApiLimits
from deployments.api.services import ApiSettings
from reprise.wan import presets
from reprise.wan.presets import ModelPreset

PRESETS: Final[dict[str, tuple[Callable[[], ModelPreset], str]]] = {
    "tiny": (presets.tiny, f"local-dir:{presets.WEIGHTS / 'tiny_clip'}"),
    "wan2.1-t2v-1.3b": (presets.wan21_t2v_1_3b, "ViT-L-14:openai"),
    "wan2.1-t2v-14b": (presets.wan21_t2v_14b, "ViT-L-14:openai"),
}
"""Name -> video model, and the open_clip model that its thresholds were made with."""


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreSection(Section):
    """Where latents, metadata and jobs live."""

    url: str = "embedded"
    """`embedded` starts a Valkey server in the data folder; otherwise a redis://, rediss:// or unix:// URL."""
    capacity_bytes: int = Field(2 * 1024**3, gt=0)
    """Latents kept in all; beyond it the policy evicts."""
    eviction: Literal["lcbfu", "lru"] = "lcbfu"
    entry_ttl_s: int = Field(7 * 24 * 3600, gt=0)
    """Seconds a reusable entry is kept after it was stored, however often it is used."""


class EmbedderSection(Section):
    """Which open_clip model embeds prompts; by default the preset's."""

    model: str | None = None
    device: str = "cpu"
    num_replicas: int = Field(1, ge=1)


class DenoiserSection(Section):
    """The replicas that hold the video model; one job at a time each."""

    num_replicas: int = Field(1, ge=1)
    num_cpus: float = Field(1.0, ge=0)
    num_gpus: float = Field(0.0, ge=0)
    device: str = "cpu"
    num_threads: int = Field(1, ge=1)
    """Threads of one replica's CPU kernels."""


class RouterSection(Section):
    """Deadlines of everything reuse depends on; a miss of one is a miss of reuse, never of the job."""

    embed_timeout_s: float = Field(2.0, gt=0)
    lookup_timeout_s: float = Field(0.5, gt=0)
    fetch_timeout_s: float = Field(2.0, gt=0)
    max_attempts: int = Field(2, ge=1)
    """Runs of a job whose worker died, the first included."""


class ApiSection(Section):
    """The HTTP edge."""

    num_replicas: int = Field(1, ge=1)
    result_ttl_s: int = Field(24 * 3600, gt=0)
    """Seconds a finished job and its files are kept."""


class AppConfig(Section):
    """Everything `build_app` needs."""

    preset: str = "tiny"
    """Which video model: a name in PRESETS."""
    model_path: str | None = None
    """A folder or hub id in place of the preset's."""
    data_dir: str = "data"
    """Folder of the embedded store and of finished files."""
    artifacts_url: str | None = None
    """Any fsspec URL for finished files; by default a folder in `data_dir`."""
    reuse: bool = True
    """False computes every request in full: the baseline."""
    store: StoreSection = StoreSection()
    embedder: EmbedderSection = EmbedderSection()
    denoiser: DenoiserSection = DenoiserSection()
    router: RouterSection = RouterSection()
    api: ApiSection = ApiSection()

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        return name

    def data_path(self) -> pathlib.Path:
        """Give the data folder as an absolute path, the same for every process."""
        return pathlib.Path(self.data_dir).expanduser().resolve()

    def artifacts(self) -> str:
        """Give the URL of finished files."""
        return self.artifacts_url or str(self.data_path() / "videos")

    def model_preset(self) -> ModelPreset:
        """Give the preset, with the caller's checkpoint in place of its own if there is one."""
        preset = PRESETS[self.preset][0]()
        return preset if self.model_path is None else dataclasses.replace(preset, path=self.model_path)

    def embedder_config(self) -> EmbedderConfig:
        """Give the embedder's settings."""
        return EmbedderConfig(model=self.embedder.model or PRESETS[self.preset][1], device=self.embedder.device)

    def retrieval_config(self) -> RetrievalConfig:
        """Give the cache's bounds."""
        store = self.store
        return RetrievalConfig(capacity_bytes=store.capacity_bytes, ttl_s=store.entry_ttl_s, eviction=store.eviction)

    def job_store_config(self) -> JobStoreConfig:
        """Give the job store's settings."""
        return JobStoreConfig(retention_s=float(self.api.result_ttl_s), max_attempts=self.router.max_attempts)

    def complete_partition(self, model: PartitionKey, encoder: EncoderTag) -> PartitionKey:
        """Add the embedder to the model's part of the reuse key."""
        return dataclasses.replace(model, embedder_revision=f"{encoder.name}@{encoder.revision}")

    def api_settings(self) -> ApiSettings:
        """Say what the served model accepts."""
        preset = self.model_preset()
        return ApiSettings(
            limits=ApiLimits(
                model=preset.name,
                sizes=preset.sizes,
                default_size=preset.default_size,
                default_fps=preset.fps,
                min_fps=1,
                max_fps=60,
                default_num_frames=preset.default_num_frames,
                min_num_frames=preset.min_num_frames,
                max_num_frames=preset.max_num_frames,
                default_num_inference_steps=preset.num_inference_steps,
                min_num_inference_steps=len(preset.step_sigmas) or 1,
                max_num_inference_steps=len(preset.step_sigmas) or 100,
                default_guidance_scale=preset.guidance_scale,
                min_guidance_scale=1.0,
                max_guidance_scale=20.0,
                max_prompt_characters=4000,
                max_sequence_length=preset.max_sequence_length,
            )
        )
