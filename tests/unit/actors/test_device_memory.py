"""Memory: what does not fit is refused before it is loaded, and what runs out in the middle costs one clip."""

import dataclasses

import pytest
import torch

from actors import device_memory
from actors.denoiser import DenoiserConfig, DenoiserReplica
from actors.messages import ClipDone, ClipRequest, DenoiseRequest
from cache_store.latents.memory import MemoryLatentStore
from reprise.chorus.plan import MissReason, plan_miss
from reprise.errors import DoesNotFitError
from reprise.wan.memory import GIB
from reprise.wan.presets import tiny_4step, wan21_t2v_14b

CLIP = ClipRequest(
    prompt="a large red circle moves right over a blue background",
    negative_prompt="",
    seed=5,
    num_inference_steps=4,
    guidance_scale=1.0,
    width=64,
    height=64,
    num_frames=5,
    fps=4,
    canvas_width=64,
    canvas_height=64,
)


def test_a_model_too_large_is_refused_before_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_bytes", lambda _device: 24 * GIB)
    preset = dataclasses.replace(wan21_t2v_14b(), path="/no/such/folder")
    with pytest.raises(DoesNotFitError, match=r"wan2.1-t2v-14b at 1280x720 and 81 frames needs 60\.8 GiB.*24\.0 GiB"):
        DenoiserReplica(DenoiserConfig(preset=preset), MemoryLatentStore()).start()


def test_sizes_that_fit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = dataclasses.replace(wan21_t2v_14b(), default_size="832x480")
    assert set(preset.within(60).sizes) == {"832x480", "480x832"}
    monkeypatch.setattr(device_memory, "free_bytes", lambda _device: 60 * GIB)
    device_memory.check_fits(preset.within(60), "cpu", memory_gib=60)
    with pytest.raises(ValueError, match=r"needs 60\.8 GiB, has 60"):
        wan21_t2v_14b().within(60)


class Memory:
    """Lets the VAE run out of memory as often as told."""

    def __init__(self) -> None:
        self.failures = 0

    def take(self, *_: object) -> None:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.70 GiB")


async def test_out_of_memory_in_the_decoder_costs_one_clip() -> None:
    store, memory = MemoryLatentStore(), Memory()
    replica = DenoiserReplica(DenoiserConfig(preset=tiny_4step()), store)
    replica.start()
    hook = replica.model.vae.decode_out.register_forward_pre_hook(memory.take)

    async def make(video_id: str) -> ClipDone:
        request = DenoiseRequest(tenant="t", video_id=video_id, clip=CLIP, plan=plan_miss(MissReason.EMPTY_CACHE))
        (done,) = [event async for event in replica.generate(request) if isinstance(event, ClipDone)]
        return done

    before = await make("a")
    memory.failures = 1
    with pytest.raises(torch.OutOfMemoryError):
        await make("b")
    assert store.sizes("t", "b") == {}, "nobody may start from a clip that was never seen"
    after = await make("c")
    assert after.files == before.files
    hook.remove()
    replica.stop()
