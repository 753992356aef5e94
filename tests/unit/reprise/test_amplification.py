"""TGAA: how the gains fade, and that the hooks are eqs. 2 and 3, on one thread, for one forward, without trace."""

import concurrent.futures
import dataclasses
import itertools
import math
import pathlib
import threading
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from reprise.chorus.amplification import amplified, amplify_token_attention
from reprise.chorus.gains import AmplificationConfig, Gains, gains_at
from reprise.chorus.region import region_index
from reprise.wan.model import WanModel, encode_prompt, predict_velocity, solver_for
from reprise.wan.region import masked_forward, predict_region_velocity, region_model
from tests.unit.reprise.regions import PATCHES, full_masks, latent_of, patch_of, random_masks, small_model

CONFIG = AmplificationConfig(key_peak=1.8, output_peak=1.2, decay=2.0)
TAU = 0.65
GAINS = Gains(key=1.7, output=1.3)
TOKENS = (1, 2, 7)
LENGTH = 16
TIMESTEP = torch.tensor(600.25)
scores = st.floats(-1, 1)
sigmas = st.floats(0, 1)


# The schedule


@given(sigma=sigmas, score=scores, tau=st.floats(-1, 1))
def test_gains_stay_between_one_and_their_peaks(sigma: float, score: float, tau: float) -> None:
    gains = gains_at(CONFIG, sigma=sigma, matching_score=score, tau=tau)
    assert 1 <= gains.key <= CONFIG.key_peak
    assert 1 <= gains.output <= CONFIG.output_peak


@given(pair=st.tuples(sigmas, sigmas), score=scores)
def test_gains_fall_with_the_noise(pair: tuple[float, float], score: float) -> None:
    later, earlier = (gains_at(CONFIG, sigma=sigma, matching_score=score, tau=TAU) for sigma in sorted(pair))
    assert later.key <= earlier.key
    assert later.output <= earlier.output


@given(pair=st.tuples(scores, scores), sigma=sigmas)
def test_gains_fall_with_the_matching_score(pair: tuple[float, float], sigma: float) -> None:
    unlike, alike = (gains_at(CONFIG, sigma=sigma, matching_score=score, tau=TAU) for score in sorted(pair))
    assert alike.key <= unlike.key
    assert alike.output <= unlike.output


def test_gains_at_the_ends_and_between() -> None:
    assert gains_at(CONFIG, sigma=1.0, matching_score=TAU, tau=TAU) == Gains(key=1.8, output=1.2)
    assert gains_at(CONFIG, sigma=1.0, matching_score=-0.2, tau=TAU) == Gains(key=1.8, output=1.2)  # a forced source
    for sigma, score in ((0.0, TAU), (1.0, 1.0), (1.0, 1.0000001)):
        assert gains_at(CONFIG, sigma=sigma, matching_score=score, tau=TAU) == Gains(key=1.0, output=1.0)
    middle = gains_at(CONFIG, sigma=0.5, matching_score=(1 + TAU) / 2, tau=TAU)
    assert middle.key == pytest.approx(1 + 0.8 * 0.25 * 0.5)
    assert middle.output == pytest.approx(1 + 0.2 * 0.25 * 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_peak": 0.99}, r"key=0\.99"),
        ({"output_peak": math.nan}, "output=nan"),
        ({"key_peak": math.inf}, "key=inf"),
        ({"decay": 0.0}, r"got 0\.0"),
        ({"decay": math.nan}, "got nan"),
    ],
)
def test_impossible_setting_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("sigma", "score", "message"), [(1.1, 0.8, r"got 1\.1"), (math.nan, 0.8, "got nan"), (0.5, math.nan, "is NaN")]
)
def test_impossible_place_is_refused(sigma: float, score: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gains_at(CONFIG, sigma=sigma, matching_score=score, tau=TAU)


# The hooks


@pytest.fixture(scope="module", params=PATCHES)
def model(request: pytest.FixtureRequest, wan_folders: dict[str, pathlib.Path]) -> WanModel:
    return small_model(wan_folders["euler"], PATCHES[request.param])


def velocity_of(model: WanModel, seed: int = 1) -> Tensor:
    return predict_velocity(model, latent_of(seed), TIMESTEP, encode_prompt(model, "a red ball moves"), None, 1.0)


def hook_counts(model: WanModel) -> list[tuple[int, int]]:
    return [(len(b.attn2._forward_hooks), len(b.attn2.norm_k._forward_hooks)) for b in model.transformer.blocks]


@pytest.mark.parametrize(
    "gains", [GAINS, Gains(key=2.5, output=1.0), Gains(key=1.0, output=1.4)], ids=["both", "key", "output"]
)
def test_a_hooked_module_is_equations_2_and_3(model: WanModel, gains: Gains) -> None:
    attention = model.transformer.blocks[1].attn2
    generator = torch.Generator().manual_seed(0)
    tokens_BQD, text_BLD = (torch.randn(2, n, 24, generator=generator) for n in (30, LENGTH))
    with amplified(model.transformer, gains, TOKENS, num_text_tokens=LENGTH):
        hooked = attention(tokens_BQD, text_BLD, None, None)

    def heads(values: Tensor) -> Tensor:
        return values.reshape(2, -1, 2, 12).transpose(1, 2)

    query = heads(attention.norm_q(attention.to_q(tokens_BQD)))
    key, value = heads(attention.norm_k(attention.to_k(text_BLD))), heads(attention.to_v(text_BLD))
    attended = amplify_token_attention(query, key, value, token_indices=TOKENS, gain=gains.key)
    expected = gains.output * attention.to_out[0](attended.transpose(1, 2).flatten(2))
    # The same sums in float32, in another order.
    torch.testing.assert_close(hooked, expected, rtol=1e-4, atol=1e-5)
    plain = attention(tokens_BQD, text_BLD, None, None)
    assert (hooked - plain).abs().max() > 0.01


def test_amplifying_a_key_that_agrees_with_the_query_draws_attention_to_it() -> None:
    query, value = torch.ones(1, 1, 1, 4), torch.eye(3, 4)[None, None]
    key = torch.ones(1, 1, 3, 4)
    even = amplify_token_attention(query, key, value, token_indices=(), gain=2.0)
    skewed = amplify_token_attention(query, key, value, token_indices=(1,), gain=2.0)
    assert even[0, 0, 0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    # Logits 2, 4, 2: the middle token weighs e^2 times as much as each of the others.
    assert skewed[0, 0, 0].tolist() == pytest.approx(
        [1 / (2 + math.e**2), math.e**2 / (2 + math.e**2), 1 / (2 + math.e**2), 0]
    )
    assert key.eq(1).all()  # the keys given are not written to


@pytest.mark.parametrize(
    ("gains", "tokens", "counts"),
    [
        (GAINS, TOKENS, (1, 1)),
        (Gains(key=1.7, output=1.0), TOKENS, (0, 1)),
        (Gains(key=1.0, output=1.3), TOKENS, (1, 0)),
        (GAINS, (), (1, 0)),
        (Gains(key=1.7, output=1.0), (), (0, 0)),
        (Gains(key=1.0, output=1.0), TOKENS, (0, 0)),
    ],
)
def test_only_what_is_amplified_is_hooked(
    model: WanModel, gains: Gains, tokens: tuple[int, ...], counts: tuple[int, int]
) -> None:
    plain = velocity_of(model)
    with amplified(model.transformer, gains, tokens, num_text_tokens=LENGTH):
        assert hook_counts(model) == [counts] * 3
        changed = velocity_of(model)
    assert torch.equal(changed, plain) is (counts == (0, 0))
    assert hook_counts(model) == [(0, 0)] * 3


def test_nothing_is_left_behind_even_after_an_error(model: WanModel) -> None:
    def traces() -> dict[str, Any]:
        return {
            f"{name}.{key}": dict(value) if isinstance(value, dict) else value
            for name, module in model.transformer.named_modules()
            for key, value in vars(module).items()
            if key not in ("_parameters", "_modules", "_buffers")
        }

    before, plain = traces(), velocity_of(model)
    weights = {name: value.clone() for name, value in model.transformer.state_dict().items()}
    with (
        pytest.raises(RuntimeError, match="must match"),
        amplified(model.transformer, GAINS, TOKENS, num_text_tokens=LENGTH - 1),
    ):
        velocity_of(model)  # has one text token more
    assert traces() == before
    assert all(torch.equal(value, weights[name]) for name, value in model.transformer.state_dict().items())
    assert torch.equal(velocity_of(model), plain)


def test_another_thread_on_the_same_model_sees_no_gain(model: WanModel) -> None:
    plain = velocity_of(model)
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        amplified(model.transformer, GAINS, TOKENS, num_text_tokens=LENGTH),
    ):
        elsewhere = pool.submit(velocity_of, model).result()
        here = velocity_of(model)
    assert torch.equal(elsewhere, plain)
    assert not torch.allclose(here, plain, atol=1e-3)


def test_threads_with_gains_of_their_own_do_not_mix(model: WanModel) -> None:
    every = [Gains(key=1.0 + n, output=1.0 + n / 4) for n in range(4)]

    def run(gains: Gains) -> Tensor:
        with amplified(model.transformer, gains, TOKENS, num_text_tokens=LENGTH):
            return velocity_of(model)

    alone = [run(gains) for gains in every]
    assert not torch.allclose(alone[1], alone[2], atol=1e-3)
    start = threading.Barrier(len(every))

    def run_together(gains: Gains) -> list[Tensor]:
        start.wait()
        return [run(gains) for _ in range(10)]

    with concurrent.futures.ThreadPoolExecutor(len(every)) as pool:
        together = list(pool.map(run_together, every))
    for expected, found in zip(alone, together, strict=True):
        assert all(torch.equal(expected, velocity) for velocity in found)
    assert hook_counts(model) == [(0, 0)] * 3


def test_dense_and_region_forward_are_amplified_alike(model: WanModel) -> None:
    embedding = encode_prompt(model, "a red ball moves")
    arguments = (latent_of(1), TIMESTEP, embedding, None, 1.0)
    region = region_index(random_masks(2), patch_of(model))
    full = region_index(full_masks(), patch_of(model))
    unamplified = predict_region_velocity(model, *arguments, region)
    with amplified(model.transformer, GAINS, TOKENS, num_text_tokens=LENGTH):
        dense = predict_velocity(model, *arguments)
        fast = predict_region_velocity(model, *arguments, region)
        plain = predict_velocity(region_model(model, region, masked_forward), *arguments)
        everything = predict_region_velocity(model, *arguments, full)
    torch.testing.assert_close(everything, dense, rtol=0, atol=2e-5)  # float32, sums in another order
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-5)
    assert (fast - unamplified).abs().max() > 0.01


def test_gains_fade_over_a_run_and_change_every_step(model: WanModel) -> None:
    solver = solver_for(model, num_steps=6)
    run = [gains_at(CONFIG, sigma=float(s), matching_score=0.8, tau=TAU) for s in solver.sigmas[:-1]]
    assert all(later.key < earlier.key and later.output < earlier.output for earlier, later in itertools.pairwise(run))
    distances = []
    for gains in (run[0], run[-1]):
        with amplified(model.transformer, gains, TOKENS, num_text_tokens=LENGTH):
            distances.append(float((velocity_of(model) - plain_velocity(model)).abs().max()))
    assert distances[0] > distances[1] > 0


def plain_velocity(model: WanModel) -> Tensor:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # no gain reaches another thread
        return pool.submit(velocity_of, model).result()


def test_half_precision_stays_half(model: WanModel, tmp_path: pathlib.Path) -> None:
    model.transformer.save_pretrained(tmp_path)
    half = WanTransformer3DModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval().requires_grad_(False)
    attention = half.blocks[0].attn2
    tokens, text = torch.randn(1, 5, 24).bfloat16(), torch.randn(1, LENGTH, 24).bfloat16()
    plain = attention(tokens, text, None, None)
    with amplified(half, GAINS, TOKENS, num_text_tokens=LENGTH):
        changed = attention(tokens, text, None, None)
    assert changed.dtype == torch.bfloat16
    assert not torch.equal(changed, plain)


@pytest.mark.parametrize("tokens", [(16,), (-1, 3)])
def test_tokens_outside_the_text_are_refused(model: WanModel, tokens: tuple[int, ...]) -> None:
    with (
        pytest.raises(ValueError, match="below num_text_tokens=16"),
        amplified(model.transformer, GAINS, tokens, num_text_tokens=LENGTH),
    ):
        pass


def test_compiled_blocks_are_refused_rather_than_left_unamplified(wan_folders: dict[str, pathlib.Path]) -> None:
    model = small_model(wan_folders["euler"], (1, 2, 2))
    model.transformer.blocks[1].compile(backend=CompileCounter())
    with (
        pytest.raises(ValueError, match="torch has compiled"),
        amplified(model.transformer, GAINS, TOKENS, num_text_tokens=LENGTH),
    ):
        pass
    with amplified(model.transformer, Gains(key=1.0, output=1.0), TOKENS, num_text_tokens=LENGTH):
        pass  # nothing to hook, nothing to refuse
