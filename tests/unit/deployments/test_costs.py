"""Predicted seconds of a job, against made-up workers whose time is known exactly."""

import dataclasses

import pytest

from actors.messages import ClipRequest
from deployments.api.facts import ReuseFacts, StageSeconds, effective_parameters
from deployments.costs import CostModel
from reprise.chorus.stages import StageBoundaries
from tests.unit.deployments.conftest import CLIP

STEP_S, REST_S = 2.0, 3.0


def taken(
    clip: ClipRequest, *, token_share: float = 1.0, see_share: float | None = None, step_s: float = STEP_S
) -> ReuseFacts:
    """Give the facts of a job of a worker that takes so long for a step on all tokens."""
    denoise = 0.5 + step_s * clip.num_inference_steps * token_share
    return ReuseFacts(
        effective=effective_parameters(clip, max_sequence_length=48),
        token_share=token_share,
        see_share=see_share,
        seconds=StageSeconds(prompt=0.5, denoise=denoise, decode=2.0, encode=0.5),
    )


def learnt(clip: ClipRequest = CLIP, **options: float) -> CostModel:
    costs = CostModel()
    costs.learn(clip, taken(clip, **options))
    return costs


def test_nothing_is_known_before_a_job() -> None:
    assert CostModel().predict(CLIP) is None


def test_the_same_again_takes_the_same_time() -> None:
    assert learnt().predict(CLIP) == pytest.approx(CLIP.num_inference_steps * STEP_S + REST_S)


def test_steps_are_counted_and_the_rest_is_not() -> None:
    longer = dataclasses.replace(CLIP, num_inference_steps=50)
    assert learnt().predict(longer) == pytest.approx(50 * STEP_S + REST_S)


def test_a_hit_teaches_the_same_as_a_miss() -> None:
    assert learnt(token_share=0.5).predict(CLIP) == pytest.approx(learnt().predict(CLIP))


def test_a_plan_leaves_the_steps_it_does_not_skip() -> None:
    costs = learnt(see_share=0.5, token_share=0.7)
    miss, half, region = (StageBoundaries(k1=k1, k2=k2) for k1, k2 in ((0, 0), (2, 2), (2, 4)))
    assert costs.predict(CLIP, miss) == pytest.approx(4 * STEP_S + REST_S)
    assert costs.predict(CLIP, half) == pytest.approx(2 * STEP_S + REST_S)
    assert costs.predict(CLIP, region) == pytest.approx(2 * 0.9 * STEP_S + REST_S), (
        "one job has seen half of the tokens"
    )


def test_a_new_shape_is_judged_by_the_nearest() -> None:
    costs = learnt()
    wide = dataclasses.replace(CLIP, width=2 * CLIP.width)
    assert costs.predict(wide) == pytest.approx(2 * (4 * STEP_S + REST_S))
    costs.learn(wide, taken(wide, step_s=100.0))
    assert costs.predict(wide) == pytest.approx(400.0 + REST_S)
    assert costs.predict(CLIP) == pytest.approx(4 * STEP_S + REST_S)


def test_a_slower_worker_is_learnt() -> None:
    costs = learnt()
    for _ in range(30):
        costs.learn(CLIP, taken(CLIP, step_s=5.0))
    assert costs.predict(CLIP) == pytest.approx(20.0 + REST_S, rel=0.01)


def test_a_clip_that_was_there_already_teaches_nothing() -> None:
    costs = learnt()
    costs.learn(CLIP, taken(CLIP, token_share=0.0, step_s=1e9))
    assert costs.predict(CLIP) == pytest.approx(4 * STEP_S + REST_S)


def test_a_failed_job_teaches_nothing() -> None:
    costs = CostModel()
    costs.learn(CLIP, ReuseFacts(effective=effective_parameters(CLIP, max_sequence_length=48)))
    assert costs.predict(CLIP) is None
