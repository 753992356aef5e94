"""A list of forwards carried out: the same video on any placement, of any length, in memory that does not grow."""

import pytest
import torch
from torch import Tensor

from reprise.errors import Cancelled, NumericalError
from reprise.flashforward import formulas
from reprise.flashforward.denoiser import LongVideoSpec
from reprise.flashforward.layout import Layout
from reprise.flashforward.routing import route
from reprise.flashforward.schedule import Forward, Method, Placement, Role, Source, flash_forward, list_forwards
from reprise.flashforward.worker import RunFacts, StageWorker, render
from tests.unit.flashforward.conftest import SIGMAS, Kit


@pytest.mark.parametrize("num_latents", [1, 2, 3, 4, 10, 11, 29, 30, 31, 35])
@pytest.mark.parametrize("method", Method)
def test_any_length_is_made_once_and_in_order(kit: Kit, method: Method, num_latents: int) -> None:
    facts = RunFacts()
    video = kit.video(method, Layout(num_latents=num_latents), facts=facts)
    assert video.shape == (1, 16, num_latents, 2, 2)
    layout = Layout(num_latents=num_latents)
    count = {
        Method.FLASH_FORWARD: formulas.flash_forward_forwards,
        Method.SELF_FORCING: formulas.self_forcing_forwards,
        Method.HIAR: formulas.hiar_forwards,
    }[method]
    assert facts.forwards == {role: number for role, number in count(layout).items() if number}


@pytest.mark.parametrize("placement", [place for place in Placement if place is not Placement.ONE_WORKER])
def test_placement_changes_no_latent(kit: Kit, placement: Placement) -> None:
    layout, facts = Layout(num_latents=35), RunFacts()
    alone = kit.video(Method.FLASH_FORWARD, layout)
    assert torch.equal(kit.video(Method.FLASH_FORWARD, layout, placement, facts=facts), alone)
    assert facts.workers == placement.num_workers(4)


def test_hiar_on_its_workers_makes_the_same(kit: Kit) -> None:
    layout = Layout(num_latents=17)
    apart = kit.video(Method.HIAR, layout, Placement.WORKER_PER_STAGE)
    assert torch.equal(apart, kit.video(Method.HIAR, layout))


def test_another_seed_makes_another_video_and_a_longer_one_begins_alike(kit: Kit) -> None:
    layout = Layout(num_latents=9)
    assert not torch.allclose(
        kit.video(Method.SELF_FORCING, layout), kit.video(Method.SELF_FORCING, layout, seed=2), atol=0.1
    )
    longer = kit.video(Method.SELF_FORCING, Layout(num_latents=12))
    assert torch.equal(longer[:, :, :9], kit.video(Method.SELF_FORCING, layout))


def test_memory_does_not_grow_with_the_length(kit: Kit) -> None:
    peaks = []
    for num_latents in (81, 161, 321):
        facts = RunFacts()
        kit.video(Method.FLASH_FORWARD, Layout(num_latents=num_latents), facts=facts)
        peaks.append(facts.peak_kv_bytes)
    assert peaks[0] == peaks[1] == peaks[2] > 0


def test_anchors_condition_and_are_never_delivered(kit: Kit) -> None:
    layout = Layout(num_latents=21)
    forwards = list(flash_forward(layout, Placement.ONE_WORKER))
    assert {forward.role for forward in forwards if forward.delivers is not None} == {Role.RENDERER}
    without = [forward._replace(reads=_without_anchors(forward)) for forward in forwards]
    assert not torch.allclose(
        kit.video(Method.FLASH_FORWARD, layout, forwards=without), kit.video(Method.FLASH_FORWARD, layout), atol=1e-3
    )
    worker, latents = StageWorker(0, kit.denoiser(Method.FLASH_FORWARD, layout)), dict[int, Tensor | None]()
    for routed in route([forward for forward in forwards if forward.source is Source.ANCHOR]):
        result = worker.run(routed, latents.get(routed.forward.unit))
        latents[routed.forward.unit] = result.latent_BCTHW if routed.forward.advances else latents[routed.forward.unit]
    video, anchors = kit.video(Method.FLASH_FORWARD, layout), latents[0]
    assert anchors is not None
    assert (video[:, :, ::10] - anchors).abs().amin() > 0, "every position is the renderer's own"


def _without_anchors(forward: Forward) -> tuple:  # type: ignore[type-arg]
    is_chunk = forward.role is Role.RENDERER
    return tuple(span for span in forward.reads if not (is_chunk and span.source is Source.ANCHOR))


def test_it_stops_before_the_next_forward(kit: Kit) -> None:
    layout, facts = Layout(num_latents=9), RunFacts()
    forwards = list(list_forwards(Method.HIAR, layout, Placement.ONE_WORKER))
    with pytest.raises(Cancelled, match="before forward 4 of"):
        list(
            render(
                forwards,
                kit.denoiser(Method.HIAR, layout),
                facts=facts,
                should_stop=lambda: facts.forwards.total() == 3,
            )
        )


def test_guidance_keeps_the_two_passes_apart(kit: Kit) -> None:
    """A guidance of 2 is twice the prompt's velocity less the other's, each with the KV of its own kind."""
    layout = Layout(num_latents=6)
    forwards = list(list_forwards(Method.SELF_FORCING, layout, Placement.ONE_WORKER))
    guided = list(render(forwards, kit.denoiser(Method.SELF_FORCING, layout, guidance=2.0)))
    facts = RunFacts()
    again = list(render(forwards, kit.denoiser(Method.SELF_FORCING, layout, guidance=2.0), facts=facts))
    single = RunFacts()
    plain = list(render(forwards, kit.denoiser(Method.SELF_FORCING, layout), facts=single))
    assert torch.equal(guided[1].latent_BCTHW, again[1].latent_BCTHW)
    assert not torch.allclose(guided[1].latent_BCTHW, plain[1].latent_BCTHW, atol=1e-3)
    assert facts.peak_kv_bytes == 2 * single.peak_kv_bytes


def test_a_latent_that_is_not_finite_is_an_error(kit: Kit) -> None:
    layout = Layout(num_latents=3)
    forwards = list(list_forwards(Method.SELF_FORCING, layout, Placement.ONE_WORKER))[1:]
    starts = {(Source.CHUNK, 0): torch.full((1, 16, 3, 2, 2), torch.nan)}
    with pytest.raises(NumericalError, match="chunk 0 is not finite"):
        list(render(forwards, kit.denoiser(Method.SELF_FORCING, layout), starts=starts))


@pytest.mark.parametrize("sigmas", [SIGMAS[:-1], (0.9, *SIGMAS[1:]), (*SIGMAS[:-1], 0.1)])
def test_noise_levels_must_fit_the_stages(sigmas: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="sigmas must be"):
        LongVideoSpec(
            method=Method.HIAR,
            layout=Layout(num_latents=3),
            seed=0,
            width=16,
            height=16,
            guidance_scale=1.0,
            sigmas=sigmas,
        )
