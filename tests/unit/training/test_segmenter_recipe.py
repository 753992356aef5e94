"""The segmenter's recipe: labels are what phrases mean, data repeat from their seed, and the folder it writes loads."""

import json
import pathlib
import sys

import numpy as np
import pytest
import torch

from actors.engines.tiny_segmenter import TinySegmenter
from reprise.tinyworld import ObjectSpec, SceneSpec, is_held_out, sample_scene
from reprise.tinyworld.grammar import COLOUR_WORDS, SHAPE_WORDS
from training import recipe, segmenter
from training.segmenter import (
    STRANGERS,
    UNSEEN_STRANGERS,
    Wanted,
    draw_absent,
    draw_batch,
    draw_present,
    objects_named,
    render_frames,
    segmentation_loss,
)

STARS = SceneSpec(
    (ObjectSpec("star", "red", "large", "up"), ObjectSpec("star", "cyan", "small", "up")), "blue", "plain"
)


@pytest.mark.parametrize(
    ("wanted", "objects"),
    [
        (Wanted("star", None, None), [0, 1]),
        (Wanted("star", "cyan", None), [1]),
        (Wanted("star", None, "large"), [0]),
        (Wanted("star", None, "medium"), [0, 1]),
        (Wanted("star", "red", "small"), [0]),
        (Wanted("star", "green", None), []),
        (Wanted("square", "red", None), []),
        (Wanted("dog", None, None), []),
    ],
)
def test_a_size_chooses_among_objects_that_fit_and_excludes_no_last_one(wanted: Wanted, objects: list[int]) -> None:
    assert objects_named(wanted, STARS) == objects


def said(phrase: str, table: dict[str, tuple[str, ...]]) -> str | None:
    """Read an attribute out of a phrase."""
    return next((name for name, words in table.items() if set(words) & set(phrase.split())), None)


def test_phrases_mean_what_their_words_say() -> None:
    rng = np.random.default_rng(1)
    strangers = 0
    for _ in range(400):
        scene = sample_scene(rng)
        phrase, objects = draw_present(scene, rng)
        shape, colour = said(phrase, SHAPE_WORDS), said(phrase, COLOUR_WORDS)
        fits = [i for i, o in enumerate(scene.objects) if o.shape == shape and colour in (None, o.colour)]
        assert objects
        assert set(objects) <= set(fits)
        absent = draw_absent(scene, rng)
        shape, colour = said(absent, SHAPE_WORDS), said(absent, COLOUR_WORDS)
        assert not any(o.shape == shape and colour in (None, o.colour) for o in scene.objects)
        strangers += absent.split()[-1] in STRANGERS
    assert strangers > 20


def test_nouns_of_the_measurement_are_never_trained_on() -> None:
    assert not set(STRANGERS) & set(UNSEEN_STRANGERS)


def test_frames_are_of_the_split_that_was_asked_for_and_partly_decoded() -> None:
    plain = render_frames(4, 3, held_out=True, num_decoded=0)
    mixed = render_frames(4, 3, held_out=True, num_decoded=2)
    assert plain.scenes == mixed.scenes
    assert all(is_held_out(scene) for scene in plain.scenes)
    assert plain.frames_NHWC.shape == (8, 64, 64, 3)
    difference = (plain.frames_NHWC.float() - mixed.frames_NHWC.float()).abs().flatten(1).mean(1)
    # Two frames a clip: those of the first two clips were decoded, with a small error; the others are untouched.
    assert ((difference > 0) & (difference < 20)).tolist() == [True] * 4 + [False] * 4
    assert not any(is_held_out(scene) for scene in render_frames(4, 3, held_out=False, num_decoded=0).scenes)


def test_a_step_draws_the_same_batch_each_time() -> None:
    data = render_frames(4, 3, held_out=False, num_decoded=0)
    frames, phrases, targets = draw_batch(data, 7)
    again = draw_batch(data, 7)
    assert torch.equal(frames, again[0])
    assert phrases == again[1]
    assert torch.equal(targets, again[2])
    assert draw_batch(data, 8)[1] != phrases
    assert targets.flatten(2).any(2)[:, segmenter.PHRASES // 2 :].sum() == 0


def test_the_loss_is_small_for_the_truth_and_large_for_its_opposite() -> None:
    truth = torch.zeros(1, 2, 8, 8)
    truth[0, 0, 2:5, 2:5] = 1
    logits, presence = truth * 40 - 20, torch.tensor([[20.0, -20.0]])
    assert segmentation_loss(logits, presence, truth) < 1e-3
    assert segmentation_loss(-logits, presence, truth) > 10
    assert segmentation_loss(logits, -presence, truth) > 10


def test_the_recipe_resumes_and_writes_a_folder_that_the_engine_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(segmenter, "FOLDER", tmp_path / "weights")
    monkeypatch.setattr(segmenter, "HELD_OUT_SCENES", 4)
    monkeypatch.setattr(segmenter, "BATCH", 2)
    for steps in ("1", "2"):
        monkeypatch.setattr(sys, "argv", ["segmenter", "--steps", steps, "--scenes", "4"])
        segmenter.main()
    output = capsys.readouterr().out
    assert "segmenter: resumed at step 1 of 2" in output
    facts = json.loads(output.splitlines()[-1])
    assert facts["steps"] == 2
    assert {"rendered_iou_one_object", "decoded_iou_two_objects", "decoded_absent_empty"} <= facts.keys()
    assert "python -m training.segmenter --steps 2 --scenes 4" in (tmp_path / "weights" / "card.md").read_text()
    engine = TinySegmenter(str(tmp_path / "weights"))
    assert engine.segment(np.zeros((1, 64, 64, 3), np.uint8), ["red star"]).shape == (1, 1, 64, 64)
