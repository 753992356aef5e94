"""Which things of a prompt get masks: what the comparison of two prompts points at is always among them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.traces import DATA
from reprise.chorus.objects import match_phrase, object_phrases
from reprise.chorus.prompt_diff import align_diff
from reprise.tinyworld import change_one, read_prompt, sample_scene, write_prompt
from reprise.tinyworld.grammar import COLOUR_WORDS, SHAPE_WORDS

EDIT_PAIRS = DATA / "edit_pairs"


@pytest.mark.parametrize(
    ("prompt", "phrases"),
    [
        ("a man and a woman dancing in the rain, cinematic lighting", ("man", "woman")),
        ("Two grey sharks swim in the blue sea on a coral reef.", ("grey sharks", "coral reef")),
        ("the old man's hat, 4k, highly detailed", ("old man's hat",)),
        ("A MAN RIDING A BMX BIKE", ("man", "bmx bike")),
        ("a cat chases a cat", ("cat",)),
        ("a cat chases a Cat and two cats", ("cat", "cats")),
        ("an old   wooden\nboat drifts", ("old wooden boat",)),
        ("red", ()),
        ("", ()),
        ("?! 1980 ...", ()),
        ("\u4e00\u53ea\u72d7\u5728\u8dd1", ()),
    ],
)
def test_each_thing_once_in_order_and_in_lower_case(prompt: str, phrases: tuple[str, ...]) -> None:
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


@given(st.text(max_size=200))
def test_any_text_gives_phrases_that_occur_in_it(text: str) -> None:
    lower = " ".join(text.lower().split())
    phrases = object_phrases(text)
    assert len(set(phrases)) == len(phrases)
    assert all(phrase and phrase in lower for phrase in phrases)


def named_object(source: str, target: str) -> str | None:
    """Give what differs most, which must be among the phrases of the source."""
    phrase = align_diff(source, target).object_phrase
    if phrase is None:
        return None
    assert match_phrase(phrase.text, object_phrases(source)) == " ".join(phrase.text.lower().split()), (source, target)
    return phrase.text


def test_the_object_that_differs_has_a_mask_in_the_tiny_world() -> None:
    rng = np.random.default_rng(1)
    named = 0
    for _ in range(2_000):
        scene = sample_scene(rng)
        named += named_object(write_prompt(scene, rng), write_prompt(change_one(scene, rng), rng)) is not None
    assert named > 500


@pytest.mark.skipif(not EDIT_PAIRS.is_dir(), reason=f"needs {EDIT_PAIRS}: set REPRISE_DATA to the folder that has it")
def test_the_object_that_differs_has_a_mask_in_real_edits() -> None:
    named = 0
    for path in sorted(EDIT_PAIRS.glob("*.jsonl")):
        pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        named += sum(named_object(pair["source"], pair["target"]) is not None for pair in pairs)
    assert named > 100


words = st.sampled_from(
    ["a", "The", "two", "RED", "star", "cat", "cats", "\u0130", "of", ",", "on", "\n", "old", "hat"]
)


@given(source=st.lists(words, max_size=10).map(" ".join), target=st.lists(words, max_size=10).map(" ".join))
def test_the_object_that_differs_has_a_mask_in_any_words(source: str, target: str) -> None:
    named_object(source, target)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("red star", "red star"),
        ("The Red\nStar", "red star"),
        ("star", "red star"),
        ("stars", "red star"),
        ("big blue box", "blue box"),
        ("blue star", None),
        ("dog", None),
        ("a", None),
        ("", None),
    ],
)
def test_a_phrase_is_matched_by_its_noun_unless_both_say_something_else(wanted: str, found: str | None) -> None:
    assert match_phrase(wanted, ("red star", "blue box")) == found


def test_the_phrase_that_differs_least_is_the_match() -> None:
    phrases = ("young tall strong man", "young tall man", "tall man", "man")
    assert match_phrase("the tall man", phrases) == "tall man"
    assert match_phrase("man", phrases) == "man"
    assert match_phrase("strong young man", phrases[:1]) == "young tall strong man"


def test_of_two_that_fit_alike_neither_is_taken() -> None:
    assert match_phrase("star", ("red star", "blue star")) is None
    assert match_phrase("star", ("red star", "blue star", "large dark red star")) is None
    assert match_phrase("red star", ("red star", "blue star")) == "red star"


def test_a_source_of_the_tiny_world_is_found_again_by_its_plain_wording() -> None:
    scene = read_prompt("a scarlet star drifts left against a navy backdrop")
    assert scene is not None
    assert object_phrases(write_prompt(scene)) == ("red star",)
