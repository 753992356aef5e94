"""A gang of real actors makes the very latents of one worker, and leaves nothing behind whatever happens to it."""

import dataclasses
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch
from ray.util import placement_group_table
from torch import Tensor

from actors.placement import GangUnplaceable
from actors.wavefront import GangConfig, GangLost, Wavefront
from reprise.errors import Cancelled
from reprise.flashforward.denoiser import LongVideoSpec
from reprise.flashforward.model import LongModel, embed, load_long, new_denoiser
from reprise.flashforward.schedule import Method, Placement, list_forwards
from reprise.flashforward.worker import Delivery, RunFacts, render
from reprise.wan.long_presets import LongPreset, tiny_long

pytestmark = [pytest.mark.serve, pytest.mark.timeout(300)]

PRESET = dataclasses.replace(tiny_long(), sigmas=(1.0, 0.75, 0.0))
"""Two stages in place of four: half the actors to start."""
FRAMES = 4 * 40 + 1
CPUS = 4


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    torch.set_num_threads(1)
    ray.init(
        address="local",
        num_cpus=CPUS,  # logical: the actors share whatever there is
        object_store_memory=128 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module", params=[Method.FLASH_FORWARD, Method.HIAR])
def model(request: pytest.FixtureRequest) -> LongModel:
    return load_long(PRESET, method=request.param)


def spec_of(method: Method, *, seed: int = 1, frames: int = FRAMES) -> LongVideoSpec:
    return LongVideoSpec(
        method=method,
        layout=PRESET.layout(frames),
        seed=seed,
        width=32,
        height=32,
        guidance_scale=1.0,
        sigmas=PRESET.sigmas,
    )


def gang(method: Method, placement: Placement, preset: LongPreset = PRESET, **changes: Any) -> Wavefront:
    return Wavefront(GangConfig(preset=preset, placement=placement, method=method, **changes))


def deliveries(wavefront: Wavefront, model: LongModel, spec: LongVideoSpec, facts: RunFacts) -> Iterator[Delivery]:
    prompt, negative = embed(model, "a red circle moves left over a blue background", "")
    return wavefront.render(spec, prompt, negative, facts=facts, should_stop=lambda: False)


def alone(model: LongModel, spec: LongVideoSpec) -> Tensor:
    prompt, negative = embed(model, "a red circle moves left over a blue background", "")
    forwards = list(list_forwards(spec.method, spec.layout, Placement.ONE_WORKER))
    done = render(forwards, new_denoiser(model, spec, prompt, negative))
    return torch.cat([one.latent_BCTHW for one in done], 2)


def assert_nothing_is_left() -> None:
    while ray.available_resources().get("CPU") != CPUS:  # an actor that is alive holds its share
        time.sleep(0.05)
    assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}


def method_of(model: LongModel) -> Method:
    return Method.HIAR if len(model.adapters) == 1 else Method.FLASH_FORWARD


def test_a_gang_makes_the_latents_of_one_worker(model: LongModel) -> None:
    method = method_of(model)
    placement = Placement.WORKER_PER_STAGE if method is Method.HIAR else Placement.DEDICATED_PLANNER
    wavefront = gang(method, placement)
    try:
        for seed in (1, 2):
            facts, spec = RunFacts(), spec_of(method, seed=seed)
            done = list(deliveries(wavefront, model, spec, facts))
            assert [place for one in done for place in one.positions] == list(range(spec.layout.num_latents))
            assert torch.equal(torch.cat([one.latent_BCTHW for one in done], 2), alone(model, spec))
            forwards = list(list_forwards(method, spec.layout, placement))
            assert facts.forwards.total() == len(forwards)
            assert facts.workers == len(facts.wait_s) == placement.num_workers(2)
            assert facts.peak_kv_bytes > 0
    finally:
        wavefront.close()
    assert_nothing_is_left()


@pytest.mark.parametrize("model", [Method.FLASH_FORWARD], indirect=True)
def test_a_lost_actor_ends_its_video_and_the_next_one_has_a_new_gang(model: LongModel) -> None:
    wavefront = gang(Method.FLASH_FORWARD, Placement.WORKER_PER_STAGE)
    try:
        wavefront.start()
        pid = ray.get(wavefront._actors[1].__ray_call__.remote(lambda _: os.getpid()))
        done = deliveries(wavefront, model, spec_of(Method.FLASH_FORWARD, frames=1281), RunFacts())
        next(done)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GangLost) as lost:
            list(done)
        assert lost.value.code == "worker_lost"
        assert_nothing_is_left()
        spec = spec_of(Method.FLASH_FORWARD, frames=21)
        again = list(deliveries(wavefront, model, spec, RunFacts()))
        assert torch.equal(torch.cat([one.latent_BCTHW for one in again], 2), alone(model, spec))
        stop = iter([False, True])
        prompt, negative = embed(model, "a star", "")
        with pytest.raises(Cancelled):
            list(
                wavefront.render(
                    spec_of(Method.FLASH_FORWARD, frames=1281),
                    prompt,
                    negative,
                    facts=RunFacts(),
                    should_stop=lambda: next(stop, True),
                )
            )
        after = list(deliveries(wavefront, model, spec, RunFacts()))
        assert torch.equal(after[0].latent_BCTHW, again[0].latent_BCTHW), "the gang goes on after a cancel"
    finally:
        wavefront.close()
    assert_nothing_is_left()


def test_a_gang_without_room_takes_none_of_it() -> None:
    wavefront = gang(Method.FLASH_FORWARD, Placement.WORKER_PER_STAGE, tiny_long(), num_cpus=2.0, place_timeout_s=0.5)
    with pytest.raises(GangUnplaceable, match=r"4 actors with \[\{'CPU': 2.0\}.*free in the whole cluster.*4"):
        wavefront.start()
    assert_nothing_is_left()
