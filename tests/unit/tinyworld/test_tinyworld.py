"""The tiny world: prompts and scenes are inverses, rendering is deterministic, the scorer is exact on renderings."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.tinyworld import (
    FRAME_SIZE,
    AttributeScore,
    ObjectSpec,
    SceneSpec,
    change_one,
    is_held_out,
    read_prompt,
    read_video,
    render_scene,
    sample_scene,
    score_video,
    write_prompt,
)
from reprise.tinyworld.scene import BACKGROUNDS, COLOURS, MOTIONS, PATTERNS, SHAPES, SIZES

ATTRIBUTES = [field.name for field in dataclasses.fields(AttributeScore)]
seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_every_wording_reads_back_as_its_scene(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng)
    assert read_prompt(write_prompt(scene)) == scene
    assert read_prompt(write_prompt(scene, rng)) == scene


def test_the_grammar_makes_more_than_a_hundred_thousand_prompts() -> None:
    rng = np.random.default_rng(0)
    # 110,000 draws; at most a few repeat, since two-object scenes alone number in the millions.
    assert len({write_prompt(sample_scene(rng), rng) for _ in range(110_000)}) > 100_000


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "a robot cooks dinner",
        "a red circle moves left",
        "over a blue background",
        "a circle over a blue background",
    ],
)
def test_a_prompt_of_another_world_is_no_scene(prompt: str) -> None:
    assert read_prompt(prompt) is None


def test_a_prompt_typed_by_hand_is_read() -> None:
    scene = read_prompt("A  Large Red circle  moves right over a blue background")
    assert scene == SceneSpec((ObjectSpec("circle", "red", "large", "right"),), "blue", "plain")


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_rendering_is_determined_by_the_seed(seed: int) -> None:
    scene = sample_scene(np.random.default_rng(seed))
    first, second = (render_scene(scene, 9, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(first.frames_THWC, second.frames_THWC)
    assert np.array_equal(first.masks_KTHW, second.masks_KTHW)


def test_a_longer_rendering_begins_with_the_shorter_one() -> None:
    scene = sample_scene(np.random.default_rng(1), num_objects=2)
    short, long = (render_scene(scene, length, np.random.default_rng(5)).frames_THWC for length in (5, 81))
    assert np.array_equal(long[:5], short)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_masks_cover_what_has_the_object_colour_and_nothing_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng)
    rendering = render_scene(scene, 5, rng)
    assert rendering.frames_THWC.shape == (5, FRAME_SIZE, FRAME_SIZE, 3)
    assert rendering.masks_KTHW.sum(0).max() <= 1
    for item, mask_THW in zip(scene.objects, rendering.masks_KTHW, strict=True):
        inside = rendering.frames_THWC[mask_THW].astype(int)
        # Only the pixel or two of smoothing at the edge may differ from the object's colour.
        share = (np.abs(inside - COLOURS[item.colour]).max(-1) < 3).mean() if len(inside) else 1.0
        assert share > 0.7


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("motion", MOTIONS)
def test_the_scorer_is_exact_on_single_objects(shape: str, size: str, motion: str) -> None:
    rng = np.random.default_rng([SHAPES.index(shape), len(size), len(motion)])
    for colour in COLOURS:
        background = tuple(BACKGROUNDS)[int(rng.integers(len(BACKGROUNDS)))]
        pattern = PATTERNS[int(rng.integers(len(PATTERNS)))]
        scene = SceneSpec((ObjectSpec(shape, colour, size, motion),), background, pattern)
        assert score_video(render_scene(scene, 17, rng).frames_THWC, scene).found() == ATTRIBUTES, scene


def test_the_scorer_reads_nearly_all_pairs() -> None:
    rng = np.random.default_rng(3)
    scenes = [sample_scene(rng, num_objects=2) for _ in range(60)]
    scores = [score_video(render_scene(scene, 17, rng).frames_THWC, scene) for scene in scenes]
    # Objects that cross hide each other, so a few pairs cannot be read; colours never fail.
    assert np.mean([score.shape and score.colour and score.motion for score in scores]) > 0.8
    assert np.mean([score.background for score in scores]) == 1.0


def test_the_scorer_sees_a_wrong_attribute() -> None:
    rng = np.random.default_rng(4)
    shown = SceneSpec((ObjectSpec("circle", "red", "large", "left"),), "blue", "striped")
    frames = render_scene(shown, 17, rng).frames_THWC
    item = shown.objects[0]
    wrong = {
        "shape": dataclasses.replace(shown, objects=(dataclasses.replace(item, shape="star"),)),
        "colour": dataclasses.replace(shown, objects=(dataclasses.replace(item, colour="green"),)),
        "size": dataclasses.replace(shown, objects=(dataclasses.replace(item, size="small"),)),
        "motion": dataclasses.replace(shown, objects=(dataclasses.replace(item, motion="right"),)),
        "background": dataclasses.replace(shown, background="red"),
        "pattern": dataclasses.replace(shown, pattern="plain"),
        "count": dataclasses.replace(shown, objects=(item, dataclasses.replace(item, colour="white"))),
    }
    assert set(wrong) == set(ATTRIBUTES)
    for attribute, scene in wrong.items():
        assert attribute not in score_video(frames, scene).found()
        assert score_video(frames, scene).background is (attribute != "background")


@pytest.mark.parametrize("level", [0, 60, 255])
def test_an_empty_picture_has_no_object(level: int) -> None:
    frames = np.full((17, FRAME_SIZE, FRAME_SIZE, 3), level, np.uint8)
    reading = read_video(frames)
    assert len(reading.objects) <= (1 if level == 255 else 0)
    noise = np.random.default_rng(0).integers(0, 256, frames.shape).astype(np.uint8)
    read_video(noise)  # whatever it reads, it must not fail


def test_one_frame_has_no_motion() -> None:
    scene = sample_scene(np.random.default_rng(6), num_objects=1)
    reading = read_video(render_scene(scene, 1, np.random.default_rng(6)).frames_THWC)
    assert reading.objects[0].motion == "none"


@given(seeds)
def test_a_twin_differs_in_one_attribute(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng)
    twin = change_one(scene, rng)
    pairs = [(scene.background, twin.background), (scene.pattern, twin.pattern)]
    for one, other in zip(scene.objects, twin.objects, strict=True):
        pairs += zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    assert sum(one != other for one, other in pairs) == 1
    assert len({item.colour for item in twin.objects}) == len(twin.objects)


def test_a_tenth_of_the_scenes_is_held_out_whatever_the_order_of_objects() -> None:
    rng = np.random.default_rng(8)
    scenes = [sample_scene(rng) for _ in range(4000)]
    # 4000 fair draws at 0.1 have a standard deviation of 0.005; five of them.
    assert abs(np.mean([is_held_out(scene) for scene in scenes]) - 0.1) < 0.025
    for scene in scenes[:200]:
        assert is_held_out(scene) == is_held_out(dataclasses.replace(scene, objects=scene.objects[::-1]))
