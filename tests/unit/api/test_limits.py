"""Frames, seconds and text: what is taken, what is refused, and that nothing is rounded or replaced."""

import dataclasses
import unicodedata
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deployments.api.errors import InvalidRequest
from deployments.api.limits import ApiLimits
from deployments.api.schema import VideoCreate, normalise_text, read_form_body, read_json_body, to_clip_request
from reprise.chorus.plan import ReuseMode
from tests.unit.api.conftest import tiny_limits

LIMITS = tiny_limits()


def wan_limits() -> ApiLimits:
    return dataclasses.replace(
        LIMITS,
        sizes={"832x480": (832, 480)},
        default_size="832x480",
        default_fps=16,
        default_num_frames=81,
        min_num_frames=17,
        max_num_frames=81,
    )


@pytest.mark.parametrize("num_frames", range(-3, 101))
def test_a_frame_count_is_taken_as_it_is_or_refused(num_frames: int) -> None:
    body = VideoCreate(prompt="a", num_frames=num_frames)
    if num_frames in (5, 9, 13, 17):
        assert to_clip_request(body, LIMITS).num_frames == num_frames
        return
    with pytest.raises(InvalidRequest) as refused:
        to_clip_request(body, LIMITS)
    assert refused.value.param == "num_frames"
    nearest = [int(word) for word in refused.value.message.split("nearest valid: ")[1].split(" or ")]
    assert nearest, refused.value.message
    for frames in nearest:
        assert LIMITS.check_num_frames(frames) == frames
    best = min(abs(num_frames - frames) for frames in (5, 9, 13, 17))
    assert min(abs(num_frames - frames) for frames in nearest) == best


@given(seconds=st.integers(-2, 20), fps=st.integers(1, 30))
def test_seconds_give_exactly_their_frames(seconds: int, fps: int) -> None:
    limits = wan_limits()
    body = VideoCreate(prompt="a", seconds=seconds, fps=fps)
    possible = 17 <= seconds * fps + 1 <= 81 and seconds * fps % 4 == 0
    if possible:
        clip = to_clip_request(body, limits)
        assert (clip.num_frames, clip.fps) == (seconds * fps + 1, fps)
    else:
        with pytest.raises(InvalidRequest) as refused:
            to_clip_request(body, limits)
        assert refused.value.param == "seconds"


def test_defaults_are_those_of_the_model() -> None:
    clip = to_clip_request(VideoCreate(prompt="a"), wan_limits())
    assert (clip.num_frames, clip.fps, clip.num_inference_steps, clip.guidance_scale) == (81, 16, 50, 4.0)
    assert (clip.width, clip.height, clip.canvas_width, clip.canvas_height) == (832, 480, 832, 480)
    assert (clip.negative_prompt, clip.reuse, clip.remix_of) == ("", ReuseMode.CHORUS, None)


def test_each_clip_without_a_seed_draws_its_own() -> None:
    assert len({to_clip_request(VideoCreate(prompt="a"), LIMITS).seed for _ in range(5)}) > 1


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**53 + 1, 2**63 - 1])
def test_every_seed_of_int64_is_taken_exactly(seed: int) -> None:
    as_json = read_json_body(VideoCreate, f'{{"prompt": "a", "seed": {seed}}}'.encode())
    as_form = read_form_body(VideoCreate, {"prompt": "a", "seed": str(seed)})
    assert to_clip_request(as_json, LIMITS).seed == to_clip_request(as_form, LIMITS).seed == seed


@given(text=st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = normalise_text(text)
    assert normalise_text(once) == once
    assert once in unicodedata.normalize("NFC", text)


@given(inner=st.text(alphabet="ab\u200d \n\u0301\u4e2d", min_size=1, max_size=20))
def test_what_stands_between_visible_characters_is_kept(inner: str) -> None:
    text = f"x{inner}y"
    assume(unicodedata.is_normalized("NFC", text))
    assert normalise_text(f" \u200b{text}\ufeff\n") == text


def test_length_is_measured_on_the_text_that_is_kept() -> None:
    padded = "  " * 300 + "x" * 500 + "\u200b" * 300
    assert len(to_clip_request(VideoCreate(prompt=padded), LIMITS).prompt) == 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"default_size": "1x1"}, "default_size"),
        ({"sizes": {"721x1280": (64, 64)}, "default_size": "721x1280"}, "even"),
        ({"sizes": {"720x1280": (800, 64)}, "default_size": "720x1280"}, "hold the generated 800x64"),
        ({"max_num_frames": 16}, "max_num_frames must be 4k"),
        ({"default_fps": 60}, "default_fps 60 is not between min_fps 1 and max_fps 30"),
        ({"min_guidance_scale": 5.0}, "default_guidance_scale 4.0 is not between"),
    ],
)
def test_limits_that_contradict_themselves_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LIMITS, **change)


def test_reuse_is_a_mode_or_an_object_in_json_and_in_forms() -> None:
    for body in (
        read_json_body(VideoCreate, b'{"prompt": "a", "reuse": "exact"}'),
        read_json_body(VideoCreate, b'{"prompt": "a", "reuse": {"mode": "exact"}}'),
        read_form_body(VideoCreate, {"prompt": "a", "reuse": "exact"}),
        read_form_body(VideoCreate, {"prompt": "a", "reuse": {"mode": "exact"}}),
    ):
        assert to_clip_request(body, LIMITS).reuse is ReuseMode.EXACT
    fields = read_form_body(VideoCreate, {"prompt": "a", "reuse": {"tau": "0.8", "source": "video_x"}})
    clip = to_clip_request(fields, LIMITS)
    assert (clip.reuse, clip.tau, clip.source) == (ReuseMode.CHORUS, 0.8, "video_x")
