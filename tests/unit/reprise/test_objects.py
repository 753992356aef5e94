"""Nameable objects of a prompt: general English, every wording of the tiny world, and text that is no English."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.objects import MAX_PHRASE_WORDS, match_phrase, object_phrases
from reprise.tinyworld import read_prompt, sample_scene, write_prompt
from reprise.tinyworld.grammar import COLOUR_WORDS, SHAPE_WORDS


@pytest.mark.parametrize(
    ("prompt", "phrases"),
    [
        ("A spotted dog runs through the park", ("spotted dog", "park")),
        ("a man and a woman dancing in the rain, cinematic lighting", ("man", "woman", "rain")),
        ("Two grey sharks swim in the blue ocean on a coral reef.", ("grey sharks", "blue ocean", "coral reef")),
        ("Swans gliding over a lake.", ("swans", "lake")),
        ("A brown deer eats leaves next to a green field.", ("brown deer", "leaves", "green field")),
        ("a flying car over the city at night", ("flying car", "city")),
        ("a black and white cat sits on a large, red sofa", ("black and white cat", "large, red sofa")),
        ("a close-up of a butterfly", ("butterfly",)),
        ("the old man's hat, 4k, highly detailed", ("old man's hat",)),
        ("A MAN RIDING A BMX BIKE", ("man", "bmx bike")),
        ("a bunch of bananas and another banana", ("bananas", "banana")),
        ("a cat chases a cat", ("cat",)),
        ("an old   wooden\nboat drifts", ("old wooden boat",)),
        ("running fast", ()),
        ("red", ()),
        ("", ()),
        ("?! 1980 ...", ()),
        ("\u4e00\u53ea\u72d7\u5728\u8dd1", ()),
    ],
)
def test_noun_phrases_in_order_without_articles(prompt: str, phrases: tuple[str, ...]) -> None:
    assert object_phrases(prompt) == phrases


def test_every_wording_of_the_tiny_world_gives_its_objects_and_no_background() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        scene = sample_scene(rng)
        prompt = write_prompt(scene, rng)
        phrases = object_phrases(prompt)
        assert len(phrases) == len(scene.objects), prompt
        for phrase, item in zip(phrases, scene.objects, strict=True):
            assert phrase.split()[-1] in SHAPE_WORDS[item.shape]
            assert any(word in phrase for word in COLOUR_WORDS[item.colour])


def test_a_long_run_keeps_its_end() -> None:
    (phrase,) = object_phrases("a " + "copper " * 20 + "kettle")
    assert phrase.split() == ["copper"] * (MAX_PHRASE_WORDS - 1) + ["kettle"]


@given(st.text(max_size=200))
def test_any_text_gives_phrases_that_occur_in_it(text: str) -> None:
    lower = " ".join(text.lower().split())
    phrases = object_phrases(text)
    assert len(set(phrases)) == len(phrases)
    assert all(phrase and phrase in lower for phrase in phrases)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("red star", "red star"),
        ("The Red Star", "red star"),
        ("star", "red star"),
        ("big blue box", "blue box"),
        ("blue star", None),
        ("dog", None),
        ("a", None),
        ("", None),
    ],
)
def test_a_phrase_is_matched_by_its_noun_unless_both_say_something_else(wanted: str, found: str | None) -> None:
    assert match_phrase(wanted, ("red star", "blue box")) == found


def test_the_phrase_that_adds_least_is_the_match() -> None:
    phrases = ("tall man in black", "young tall man", "tall man", "man")
    assert match_phrase("the tall man", phrases) == "tall man"
    assert match_phrase("man", phrases) == "man"
    assert match_phrase("star", object_phrases("a large red star and a star")) == "star"


def test_a_source_of_the_tiny_world_is_found_again_by_its_plain_wording() -> None:
    scene = read_prompt("a scarlet star drifts left against a navy backdrop")
    assert scene is not None
    assert object_phrases(write_prompt(scene)) == ("red star",)
