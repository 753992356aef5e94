"""The replica that makes long videos: a shell around FlashForward's forwards, decoding and encoding as chunks finish.

Runs the forwards itself, or has a gang of actors run them as a wavefront. Knows nothing about jobs or HTTP.
"""

import concurrent.futures
import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Protocol

import torch

from actors.engines.fragments import FragmentWriter
from actors.engines.media import MediaWriter
from actors.event_stream import stream_events
from actors.messages import ChunkDone, ClipRequest, LongDone, LongEvent, LongRendererConfig, LongRequest, LongWork
from reprise.flashforward.denoiser import LongVideoSpec
from reprise.flashforward.model import LongModel, embed, load_long, new_denoiser
from reprise.flashforward.schedule import Method, Placement, list_forwards
from reprise.flashforward.worker import Delivery, RunFacts, render
from reprise.wan.long_presets import LongPreset
from reprise.wan.model import PromptEmbedding
from reprise.wan.vae_stream import VideoDecoder

logger = logging.getLogger(__name__)


class Renderer(Protocol):
    """Runs the forwards of one video at a time."""

    def render(
        self,
        spec: LongVideoSpec,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None,
        *,
        facts: RunFacts,
        should_stop: Callable[[], bool],
    ) -> Iterator[Delivery]:
        """Yield latents as they are finished, in order; `facts` is complete after the last."""
        ...

    def close(self) -> None:
        """Give back what the renderer holds beyond this process."""
        ...


class OneWorker:
    """All forwards in this process."""

    def __init__(self, model: LongModel) -> None:
        self._model = model

    def render(
        self,
        spec: LongVideoSpec,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None,
        *,
        facts: RunFacts,
        should_stop: Callable[[], bool],
    ) -> Iterator[Delivery]:
        """Yield latents as they are finished."""
        forwards = list(list_forwards(spec.method, spec.layout, Placement.ONE_WORKER))
        denoiser = new_denoiser(self._model, spec, embedding, negative)
        return render(forwards, denoiser, facts=facts, should_stop=should_stop)

    def close(self) -> None:
        """Nothing is held."""


class LongRendererReplica:
    """One model, one video at a time."""

    def __init__(self, config: LongRendererConfig, make_renderer: Callable[[LongModel], Renderer]) -> None:
        self._config = config
        self._make_renderer = make_renderer
        self._model: LongModel | None = None
        self._renderer: Renderer | None = None
        self._executor = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")

    def start(self) -> None:
        """Load the model and make the shortest video there is, so that the first caller waits for nothing."""
        torch.set_num_threads(self._config.num_threads)
        self._model = load_long(self._config.preset, self._config.device)
        self._renderer = self._make_renderer(self._model)
        begin = time.perf_counter()
        self._executor.submit(self._run, _warm_up_request(self._config.preset), lambda _: None, lambda: False).result()
        logger.info("the long model is warm after %.1f s", time.perf_counter() - begin)

    def stop(self) -> None:
        """Release the model and the workers."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._renderer is not None:
            self._renderer.close()
        self._model = self._renderer = None

    async def generate(self, request: LongRequest) -> AsyncGenerator[LongEvent, None]:
        """Yield a ChunkDone a chunk, then LongDone; closing or cancelling stops the work before its next forward."""
        work = functools.partial(self._run, request)
        async with contextlib.aclosing(stream_events(self._executor, work)) as events:
            async for event in events:
                yield event

    def _run(self, request: LongRequest, emit: Callable[[LongEvent], None], should_stop: Callable[[], bool]) -> None:
        model, renderer, clip = self._model, self._renderer, request.clip
        if model is None or renderer is None:
            raise RuntimeError("the renderer was not started: call start() first")
        begin = time.perf_counter()
        spec = long_spec(model.preset, clip)
        embedding, negative = embed(model, clip.prompt, clip.negative_prompt)
        prompt_s = time.perf_counter() - begin
        decoder = VideoDecoder(model.wan)
        canvas = {"fps": clip.fps, "canvas_width": clip.canvas_width, "canvas_height": clip.canvas_height}
        facts, fragments = RunFacts(), FragmentWriter(**canvas)
        decode_s = encode_s = first_latents_s = first_frame_s = 0.0
        rendering = last_latent = time.perf_counter()
        with MediaWriter(**canvas, num_frames=clip.num_frames) as media:
            for delivery in renderer.render(spec, embedding, negative, facts=facts, should_stop=should_stop):
                last_latent = time.perf_counter()
                frames_FHWC = decoder.decode(delivery.latent_BCTHW)
                decoded = time.perf_counter()
                fragment = fragments.write(frames_FHWC)
                media.add(frames_FHWC)
                encoded = time.perf_counter()
                decode_s, encode_s = decode_s + decoded - last_latent, encode_s + encoded - decoded
                if delivery.positions.start == 0:
                    first_latents_s, first_frame_s = last_latent - rendering, encoded - begin
                done, total = delivery.positions.stop, spec.layout.num_latents
                emit(ChunkDone(latents_done=done, num_latents=total, fragment=fragment))
            before = time.perf_counter()
            files = media.finish()
            encode_s += time.perf_counter() - before
        emit(
            LongDone(
                files=files,
                work=LongWork(
                    method=spec.method.value,
                    placement=self._config.placement.value,
                    forwards={role.value: count for role, count in facts.forwards.items()},
                    rounds=facts.rounds,
                    workers=facts.workers,
                    wait_s={str(worker): wait for worker, wait in facts.wait_s.items()},
                    peak_kv_bytes=facts.peak_kv_bytes,
                    render_s=last_latent - rendering,
                    first_latents_s=first_latents_s,
                    first_frame_s=first_frame_s,
                ),
                num_tokens=embedding.num_tokens,
                num_tokens_dropped=embedding.num_dropped,
                prompt_s=prompt_s,
                decode_s=decode_s,
                encode_s=encode_s,
            )
        )


def long_spec(preset: LongPreset, clip: ClipRequest) -> LongVideoSpec:
    """Take what determines the pixels out of a request."""
    return LongVideoSpec(
        method=Method.FLASH_FORWARD,
        layout=preset.layout(clip.num_frames),
        seed=clip.seed,
        width=clip.width,
        height=clip.height,
        guidance_scale=preset.guidance_scale,
        sigmas=preset.sigmas,
    )


def _warm_up_request(preset: LongPreset) -> LongRequest:
    model = preset.model
    width, height = model.sizes[model.default_size]
    canvas_width, canvas_height = map(int, model.default_size.split("x"))
    clip = ClipRequest(
        prompt="warm up",
        negative_prompt="",
        seed=0,
        num_inference_steps=len(preset.sigmas) - 1,
        guidance_scale=preset.guidance_scale,
        width=width,
        height=height,
        num_frames=model.min_num_frames,
        fps=model.fps,
        canvas_width=canvas_width,
        canvas_height=canvas_height,
        is_long=True,
    )
    return LongRequest(video_id="warm-up", clip=clip)
