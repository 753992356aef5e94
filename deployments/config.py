"""The one configuration of the application: a typed model that the Serve config file or a caller fills in.

Unknown keys are errors that name the key. Converts to the plain dataclasses that actors take; nothing below
this package knows YAML or pydantic.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from pydantic import field_validator, model_validator

from actors.embedder import EmbedderConfig
from actors.live_messages import LiveWorkerConfig
from actors.mask_generator import MaskEngineName, MaskGeneratorConfig
from actors.messages import LongRendererConfig
from actors.retrieval import RetrievalConfig
from actors.stream_group import GroupConfig
from actors.stream_session import SessionConfig
from actors.stream_workers import LiveConfig, StreamWorkersConfig
from cache_store.contracts import EncoderTag
from cache_store.partition import PartitionKey
from deployments.api.jobs import JobStoreConfig
from deployments.api.limits import ApiLimits, LongLimits
from deployments.api.services import ApiSettings
from deployments.api.video_job import Lane
from deployments.config_sections import (
    AdmissionSection,
    ApiSection,
    AuthSection,
    DenoiserSection,
    DiffSection,
    EmbedderSection,
    LiveSection,
    LogSection,
    LongSection,
    MaskSection,
    RouterSection,
    Section,
    StoreSection,
)
from reprise.teacache import TeaCacheConfig
from reprise.wan import presets
from reprise.wan.live_presets import LivePreset, tiny_live
from reprise.wan.long_presets import LongPreset, tiny_long
from reprise.wan.presets import ModelPreset


class PresetParts(NamedTuple):
    """A video model and the smaller ones that go with it."""

    model: Callable[[], ModelPreset]
    embedder: str
    """The open_clip model that the thresholds were made with."""
    segmenter: str | None
    """Folder of a PhraseSegmenter that knows what the model shows; None leaves masks off."""
    long: Callable[[], LongPreset] | None
    """The causal model for videos longer than a clip; None makes none."""
    live: Callable[[], LivePreset] | None
    """The model that continues live streams; None has none."""


PRESETS: Final[dict[str, PresetParts]] = {
    "tiny": PresetParts(
        presets.tiny,
        f"local-dir:{presets.WEIGHTS / 'tiny_clip'}",
        str(presets.WEIGHTS / "tiny_segmenter"),
        tiny_long,
        tiny_live,
    ),
    "tiny-4step": PresetParts(
        presets.tiny_4step,
        f"local-dir:{presets.WEIGHTS / 'tiny_clip'}",
        str(presets.WEIGHTS / "tiny_segmenter"),
        tiny_long,
        tiny_live,
    ),
    "wan2.1-t2v-1.3b": PresetParts(presets.wan21_t2v_1_3b, "ViT-L-14:openai", None, None, None),
    "wan2.1-t2v-14b": PresetParts(presets.wan21_t2v_14b, "ViT-L-14:openai", None, None, None),
}


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
    long: LongSection = LongSection()
    live: LiveSection = LiveSection()
    masks: MaskSection = MaskSection()
    diff: DiffSection = DiffSection()
    router: RouterSection = RouterSection()
    api: ApiSection = ApiSection()
    auth: AuthSection = AuthSection()
    admission: AdmissionSection = AdmissionSection()
    log: LogSection = LogSection()

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        return name

    @model_validator(mode="after")
    def _check_masks(self) -> Self:
        self.mask_generator_config()
        return self

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        try:
            self.model_preset()
        except ValueError as error:
            raise ValueError(f"denoiser.memory_gib: {error}") from error
        return self

    @model_validator(mode="after")
    def _check_live(self) -> Self:
        self.live_config()
        return self

    @model_validator(mode="after")
    def _check_teacache(self) -> Self:
        if self.denoiser.teacache and self.model_preset().teacache is None:
            raise ValueError(f"denoiser.teacache: preset {self.preset} has no setting for it")
        return self

    def data_path(self) -> pathlib.Path:
        """Give the data folder as an absolute path, the same for every process."""
        return pathlib.Path(self.data_dir).expanduser().resolve()

    def artifacts(self) -> str:
        """Give the URL of finished files."""
        return self.artifacts_url or str(self.data_path() / "videos")

    def model_preset(self) -> ModelPreset:
        """Give the preset, with the caller's checkpoint in place of its own if there is one."""
        preset, memory_gib = PRESETS[self.preset].model(), self.denoiser.memory_gib
        if memory_gib is not None:
            preset = preset.within(memory_gib)
        if self.embedder.tau is not None:
            preset = dataclasses.replace(preset, stage_map=preset.stage_map.moved_to(self.embedder.tau))
        return preset if self.model_path is None else dataclasses.replace(preset, path=self.model_path)

    def teacache(self) -> TeaCacheConfig | None:
        """Give the setting with which steps are skipped; None computes every step."""
        return self.model_preset().teacache if self.denoiser.teacache else None

    def long_renderer_config(self) -> LongRendererConfig | None:
        """Give the long renderer's settings; None when there are no long videos."""
        long, make = self.long, PRESETS[self.preset].long
        if make is None or not long.enabled or self.model_path is not None:
            return None
        return LongRendererConfig(
            preset=make(),
            placement=long.placement,
            device=long.device,
            num_threads=long.num_threads,
            num_cpus=long.num_cpus,
            num_gpus=long.num_gpus,
        )

    def live_config(self) -> LiveConfig | None:
        """Give the settings of the groups of live streams; None when there are none."""
        live, make = self.live, PRESETS[self.preset].live
        if make is None or not live.enabled or self.model_path is not None:
            return None
        preset = make()
        chunk_latents = live.chunk_latents or preset.chunk_latents
        preset = dataclasses.replace(
            preset, chunk_latents=chunk_latents, group_latents=live.group_latents, fps=live.fps or preset.fps
        )
        session = SessionConfig(
            fallback=live.fallback,
            margin=live.margin,
            vanished_s=live.vanished_s,
            max_stream_s=live.max_stream_s,
            log_folder=str(self.data_path() / "streams") if live.event_logs else None,
        )
        return LiveConfig(
            group=GroupConfig(session=session, max_load=live.max_load),
            workers=StreamWorkersConfig(
                worker=LiveWorkerConfig(preset=preset, device=live.device, num_threads=live.num_threads),
                num_denoisers=live.num_denoisers,
                decodes_apart=live.decodes_apart,
                num_cpus=live.num_cpus,
                num_gpus=live.num_gpus,
            ),
        )

    def embedder_config(self) -> EmbedderConfig:
        """Give the embedder's settings."""
        return EmbedderConfig(model=self.embedder.model or PRESETS[self.preset].embedder, device=self.embedder.device)

    def mask_generator_config(self) -> MaskGeneratorConfig | None:
        """Give the mask generator's settings; None when there are no masks."""
        masks, bundled = self.masks, PRESETS[self.preset].segmenter
        engine = masks.engine or ("off" if bundled is None else "tiny_segmenter")
        segmenter = masks.segmenter or (bundled if engine == "tiny_segmenter" else None)
        given = {"masks.segmenter": segmenter, "masks.detector": masks.detector}
        needed = {"off": (), "tiny_segmenter": ("masks.segmenter",), "grounded_sam": tuple(given)}[engine]
        for field, value in given.items():
            if (value is not None) != (field in needed):
                verb = "needs" if field in needed else "takes no"
                raise ValueError(f"masks.engine={engine} {verb} {field}, got {field}={value!r}")
        if engine == "off":
            return None
        assert segmenter is not None
        return MaskGeneratorConfig(
            engine=MaskEngineName(engine), segmenter=segmenter, detector=masks.detector, device=masks.device
        )

    def retrieval_config(self) -> RetrievalConfig:
        """Give the cache's bounds."""
        store = self.store
        return RetrievalConfig(capacity_bytes=store.capacity_bytes, ttl_s=store.entry_ttl_s, eviction=store.eviction)

    def job_store_config(self) -> JobStoreConfig:
        """Give the job store's settings."""
        admission = self.admission
        return JobStoreConfig(
            retention_s=float(self.api.result_ttl_s),
            max_attempts=self.router.max_attempts,
            lease_timeout_s=self.router.lease_timeout_s,
            max_unfinished_jobs=admission.max_unfinished_jobs,
            max_unfinished_jobs_per_tenant=admission.max_unfinished_jobs_per_tenant or admission.max_unfinished_jobs,
            max_wait_s=admission.max_wait_s,
            workers={Lane.CLIPS: self.denoiser.num_replicas, Lane.LONG: self.long.num_replicas},
        )

    def complete_partition(self, model: PartitionKey, encoder: EncoderTag) -> PartitionKey:
        """Add the embedder to the model's part of the reuse key."""
        return dataclasses.replace(model, embedder_revision=f"{encoder.name}@{encoder.revision}")

    def api_settings(self) -> ApiSettings:
        """Say what the served model accepts."""
        preset, renderer = self.model_preset(), self.long_renderer_config()
        long = None
        if renderer is not None:
            long = LongLimits(
                max_num_frames=renderer.preset.max_num_frames,
                num_inference_steps=len(renderer.preset.sigmas) - 1,
                guidance_scale=renderer.preset.guidance_scale,
            )
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
                min_tau=preset.tau,
                max_prompt_characters=4000,
                max_sequence_length=preset.max_sequence_length,
                max_deadline_s=float(self.api.result_ttl_s),
                long=long,
            ),
            admin_key_sha256=self.auth.admin_key_sha256,
            poll_after_ms=self.api.poll_after_ms,
        )
