"""The denoiser replica: a shell that turns a planned request into a clip, its files and its stored latents.

Loads a video model, fetches the one latent a plan needs straight from the latent store, and denoises in a
thread of its own, so that the replica's event loop keeps answering health checks. Decides nothing about reuse;
knows nothing about jobs or HTTP.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncGenerator, Callable

import torch
from torch import Tensor

from actors.device_memory import check_fits
from actors.engines.media import make_media
from actors.event_stream import stream_events
from actors.messages import ClipDone, ClipRequest, DenoiseEvent, DenoiseRequest, StepDone, TrajectoryStored
from cache_store.contracts import LatentKey, LatentStore
from cache_store.errors import StoreError
from cache_store.latents.tensors import from_tensor, to_tensor
from cache_store.partition import PartitionKey
from reprise.chorus.clip import Clip, ClipSpec, generate_clip
from reprise.chorus.mask_codec import unpack_mask
from reprise.chorus.plan import MissReason, RegionReason, ReuseMode, ReusePlan, plan_miss
from reprise.chorus.source import Source
from reprise.teacache import TeaCacheConfig
from reprise.wan.model import WanModel, latent_shape, load, solver_for
from reprise.wan.presets import ModelPreset

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DenoiserConfig:
    """Which model runs where."""

    preset: ModelPreset
    device: str = "cpu"
    memory_gib: float | None = None
    """What may be used of the device's memory; None is all that is free."""
    num_threads: int = 1
    """Threads of the CPU kernels."""
    teacache: TeaCacheConfig | None = None
    """Leave the blocks out at steps that hardly change; None computes every step."""


class DenoiserReplica:
    """One model on one device, one clip at a time."""

    def __init__(self, config: DenoiserConfig, latents: LatentStore) -> None:
        self._config = config
        self._latents = latents
        self._model: WanModel | None = None
        self._executor = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="denoise")

    def start(self) -> None:
        """Load the model and make one real clip, so that the first caller waits for nothing that could be done now."""
        check_fits(self._config.preset, self._config.device, memory_gib=self._config.memory_gib)
        torch.set_num_threads(self._config.num_threads)
        self._model = load(self._config.preset, self._config.device)
        begin = time.perf_counter()
        self._executor.submit(self._warm_up).result()
        logger.info("%s is warm after %.1f s", self._config.preset.name, time.perf_counter() - begin)

    def stop(self) -> None:
        """Release the model."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._model = None

    @property
    def model(self) -> WanModel:
        """Give the loaded model."""
        if self._model is None:
            raise RuntimeError("the denoiser was not started: call start() first")
        return self._model

    @property
    def partition(self) -> PartitionKey:
        """Give the model's part of the reuse key; tenant, embedder and the request's part are left open."""
        model, preset = self.model, self._config.preset
        solver = solver_for(model, num_steps=preset.num_inference_steps)
        return PartitionKey(
            tenant="",
            model_id=preset.name,
            model_revision=f"{preset.revision}-{model.fingerprint}",
            dtype="/".join((preset.transformer_dtype, preset.text_encoder_dtype, preset.vae_dtype)),
            quantisation="",
            scheduler=type(solver).__name__ + _suffix(self._config.teacache),
            shift=preset.flow_shift,
            num_steps=preset.num_inference_steps,
            guidance=preset.guidance_scale,
            width=0,
            height=0,
            num_frames=0,
            fps=0,
            negative_prompt="",
            loras=(),
            text_encoder_revision=model.fingerprint,
            embedder_revision="",
            vae_revision=model.fingerprint,
        )

    async def generate(self, request: DenoiseRequest) -> AsyncGenerator[DenoiseEvent, None]:
        """Yield a StepDone a step, then ClipDone, then on a miss TrajectoryStored.

        Closing or cancelling the iterator stops the work before its next step.
        """
        work = functools.partial(self._run, request)
        async with contextlib.aclosing(stream_events(self._executor, work)) as events:
            async for event in events:
                yield event

    def _run(
        self, request: DenoiseRequest, emit: Callable[[DenoiseEvent], None], should_stop: Callable[[], bool]
    ) -> None:
        spec, num_steps = clip_spec(request.clip), request.clip.num_inference_steps
        begin = time.perf_counter()
        plan, source = self._fetch(request)
        fetch_s = time.perf_counter() - begin
        clip = generate_clip(
            self.model,
            spec,
            plan,
            source,
            teacache=self._config.teacache,
            on_step=lambda step: emit(StepDone(step=step, num_steps=num_steps)),
            should_stop=should_stop,
        )
        begin = time.perf_counter()
        media = make_media(
            clip.frames_FHWC,
            fps=request.clip.fps,
            canvas_width=request.clip.canvas_width,
            canvas_height=request.clip.canvas_height,
        )
        emit(
            ClipDone(
                plan=clip.plan,
                files=media,
                work=clip.work,
                num_tokens=clip.num_tokens,
                num_tokens_dropped=clip.num_tokens_dropped,
                fetch_s=fetch_s,
                decode_s=clip.decode_s,
                encode_s=time.perf_counter() - begin,
            )
        )
        if clip.trajectory is not None and request.clip.reuse is not ReuseMode.OFF and not should_stop():
            emit(self._store(request, clip))

    def _fetch(self, request: DenoiseRequest) -> tuple[ReusePlan, Source | None]:
        """Fetch what the plan goes on from; a source that is gone, damaged or too slow makes it a miss.

        What only stage 2 needs may be missing: then the plan goes on without that stage.
        """
        plan = request.plan
        if plan.source_id is None:
            return plan, None
        points = {step: self._fetch_latent(request, plan.source_id, step) for step in plan.source_steps}
        fetched = {step: latent for step, latent in points.items() if latent is not None}
        k1 = plan.boundaries.k1
        if k1 not in fetched:
            return plan_miss(MissReason.SOURCE_MISSING, matching_score=plan.matching_score), None
        if len(fetched) < len(points):
            plan = plan.without_region(RegionReason.NO_LATENTS)
        return plan, Source(points=fetched, mask_FHW=self._fetch_mask(request, plan))

    def _fetch_latent(self, request: DenoiseRequest, source_id: str, step: int) -> Tensor | None:
        key = LatentKey(tenant=request.tenant, source_id=source_id, step=step)
        clip = request.clip
        expected = latent_shape(self.model, width=clip.width, height=clip.height, num_frames=clip.num_frames)
        try:
            record = self._latents.get(key)
        except StoreError as error:
            logger.warning("latent %s could not be fetched: %s", key, error)
            return None
        if record is None:
            return None
        latent_BCTHW = to_tensor(record)
        if record.shape == expected and bool(torch.isfinite(latent_BCTHW).all()):
            return latent_BCTHW.to(self.model.device)
        logger.warning("latent %s is not finite or of shape %s, expected %s", key, record.shape, expected)
        return None

    def _fetch_mask(self, request: DenoiseRequest, plan: ReusePlan) -> Tensor | None:
        source_id, phrase, clip = plan.source_id, plan.region_phrase, request.clip
        if source_id is None or phrase is None:
            return None
        try:
            packed = self._latents.mask(request.tenant, source_id, phrase)
            mask_FHW = None if packed is None else unpack_mask(packed)
        except (StoreError, ValueError) as error:
            logger.warning("the mask of %r of %s could not be fetched: %s", phrase, source_id, error)
            return None
        expected = (clip.num_frames, clip.height, clip.width)
        if mask_FHW is None or mask_FHW.shape == expected:
            return None if mask_FHW is None else torch.from_numpy(mask_FHW)
        logger.warning("the mask of %r of %s is of %s, expected %s", phrase, source_id, mask_FHW.shape, expected)
        return None

    def _store(self, request: DenoiseRequest, clip: Clip) -> TrajectoryStored:
        """Put every captured latent; what the store refuses is simply not offered to later requests."""
        assert clip.trajectory is not None
        steps, num_bytes = [], 0
        for step, latent_BCTHW in clip.trajectory.latents.items():
            record = from_tensor(latent_BCTHW)
            key = LatentKey(tenant=request.tenant, source_id=request.video_id, step=step)
            try:
                if self._latents.put(key, record):
                    steps.append(step)
                    num_bytes += len(record.data)
            except StoreError as error:
                logger.warning("latent %s was not stored: %s", key, error)
                break
        return TrajectoryStored(steps=tuple(steps), num_bytes=num_bytes, frames_FHWC=clip.frames_FHWC)

    def _warm_up(self) -> None:
        preset = self._config.preset
        width, height = preset.sizes[preset.default_size]
        spec = ClipSpec(
            prompt="warm up",
            negative_prompt="",
            seed=0,
            num_steps=len(preset.step_sigmas) or 2,
            guidance_scale=preset.guidance_scale,
            width=width,
            height=height,
            num_frames=preset.default_num_frames,
        )
        clip = generate_clip(self.model, spec, plan_miss(MissReason.OFF))
        canvas_width, canvas_height = map(int, preset.default_size.split("x"))
        make_media(clip.frames_FHWC, fps=preset.fps, canvas_width=canvas_width, canvas_height=canvas_height)


def _suffix(teacache: TeaCacheConfig | None) -> str:
    """Tell runs with skipped steps from others, in the reuse key: their latents are not the same."""
    return "" if teacache is None else f"+teacache-{teacache.threshold}"


def clip_spec(clip: ClipRequest) -> ClipSpec:
    """Take what determines the pixels out of a request."""
    return ClipSpec(
        prompt=clip.prompt,
        negative_prompt=clip.negative_prompt,
        seed=clip.seed,
        num_steps=clip.num_inference_steps,
        guidance_scale=clip.guidance_scale,
        width=clip.width,
        height=clip.height,
        num_frames=clip.num_frames,
    )
