"""Which words differ: paraphrases, moved clauses and swaps; every place right; what a model says is checked."""

import dataclasses
import itertools
import json
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.alignment import align_words
from reprise.chorus.phrases import PromptWord, parse_prompt
from reprise.chorus.prompt_diff import (
    MAX_ANSWER_CHARS,
    TokenDiff,
    UnknownWord,
    align_diff,
    object_phrases,
    parse_diff,
)
from reprise.chorus.stemming import folded_stem, is_plural, stem
from reprise.tinyworld import change_one, sample_scene, write_prompt

VOCABULARY = [
    *("a", "the", "red", "blue", "dark", "small", "two", "3", "cats", "cat", "dog", "circle", "square", "man", "woman"),
    *("moves", "left", "right", "up", "not", "is", "running", "wearing", "hat", "park", "background", "video", "from"),
    *("over", "on", "of", "with", "under", "in", "front", ",", ".", "and", "while"),
]
prompts = st.lists(st.sampled_from(VOCABULARY), max_size=14).map(" ".join)
texts = st.text(st.sampled_from(string.printable + "\u00e9\u4e2d\u1f600\u2019\U0001f35c"), max_size=60)


def words(found: tuple[PromptWord, ...]) -> list[str]:
    return [word.text for word in found]


def phrase(diff: TokenDiff) -> str | None:
    return None if diff.object_phrase is None else diff.object_phrase.text


@given(source=prompts | texts, target=prompts | texts)
def test_every_word_is_somewhere_once_and_at_its_place(source: str, target: str) -> None:
    diff = align_diff(source, target)
    assert sorted(diff.kept + diff.added, key=lambda word: word.start) == list(parse_prompt(target).words)
    for prompt, found in ((source, diff.removed), (target, diff.added), (target, diff.kept)):
        assert all(word.text == prompt[word.start : word.stop] for word in found)
        assert all(first.stop <= second.start for first, second in itertools.pairwise(found))
    if diff.object_phrase is not None:
        assert diff.object_phrase.text == source[diff.object_phrase.start : diff.object_phrase.stop]


@given(source=prompts | texts)
def test_a_prompt_does_not_differ_from_itself(source: str) -> None:
    diff = align_diff(source, source.upper() if source.isascii() else source)
    assert (diff.added, diff.removed, diff.object_phrase) == ((), (), None)


@given(source=prompts, target=prompts)
def test_what_is_kept_is_in_the_source_as_often(source: str, target: str) -> None:
    diff = align_diff(source, target)
    in_source = sorted(word.stem for word in parse_prompt(source).words)
    assert sorted([word.stem for word in diff.kept] + [word.stem for word in diff.removed]) == in_source


@pytest.mark.parametrize("seed", range(60))
def test_one_changed_attribute_of_a_scene_is_found_exactly(seed: int) -> None:
    """Ground truth by construction: the canonical wordings of two scenes differ in the attribute's words only."""
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng)
    source, target = write_prompt(scene), write_prompt(change_one(scene, rng))
    diff = align_diff(source, target)
    silent = {"a", "an", "moves", "stays", "plain"}
    for prompt, other, found in ((source, target, diff.removed), (target, source, diff.added)):
        expected = {word for word in prompt.split() if prompt.split().count(word) > other.split().count(word)}
        assert {word for text in words(found) for word in text.split()} == expected - silent


@pytest.mark.parametrize("seed", range(30))
def test_swapped_colours_of_two_objects_are_seen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng, num_objects=2)
    first, second = scene.objects
    swapped = dataclasses.replace(
        scene,
        objects=(
            dataclasses.replace(first, colour=second.colour),
            dataclasses.replace(second, colour=first.colour),
        ),
    )
    diff = align_diff(write_prompt(scene), write_prompt(swapped))
    is_other_scene = set(scene.objects) != set(swapped.objects)
    assert bool(diff.added) is bool(diff.removed) is is_other_scene


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a red circle left of a blue square", "a blue circle left of a red square"),
        ("a red circle left of a square", "a circle left of a red square"),
        ("a blue square left of a red square", "a red square left of a blue square"),
        ("a red cube and a blue sphere", "a red sphere and a blue cube"),
        ("a cat chases a dog", "a dog chases a cat"),
        ("a man with a hat and a woman", "a man and a woman with a hat"),
        ("a man with a hat and a woman with a dog", "a man with a dog and a woman with a hat"),
        ("a ball moves left and a cube moves right", "a ball moves right and a cube moves left"),
        ("a bird flies from left to right", "a bird flies from right to left"),
        ("two apples and three pears", "three apples and two pears"),
    ],
)
def test_the_same_words_bound_otherwise_are_a_difference(source: str, target: str) -> None:
    assert align_diff(source, target).added
    assert align_diff(target, source).added


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a dog runs in a park", "in a park, a dog runs"),
        ("a small dog", "a dog that is small"),
        ("an old boat, fog, a lonely pier", "a lonely pier, an old boat, fog"),
        ("a star over a striped blue background rises", "a star rises over a blue background with stripes"),
        ("a ball moves left and a cube rests", "a cube does not move while a ball drifts to the left"),
        ("a man in a coat walks slowly", "a man slowly walks in a coat"),
        ("kids playing near a fountain", "children play near a fountain"),
        ("A DOG!", "the dog"),
    ],
)
def test_other_wordings_of_the_same_are_none(source: str, target: str) -> None:
    assert (align_diff(source, target).added, align_diff(source, target).removed) == ((), ())


@pytest.mark.parametrize(
    ("source", "target", "removed", "added"),
    [
        ("a dog in the rain", "a wolf in the rain", ["dog"], ["wolf"]),
        ("in the rain, a dog", "a wolf in the rain", ["dog"], ["wolf"]),
        ("a jar on a shelf", "jars on a shelf", ["jar"], ["jars"]),
        ("a fox by a well", "a fox by a well, snow", [], ["snow"]),
        ("it is not raining in Rome", "it is raining in Rome", ["not"], []),
        ("a kite over a dark blue sea", "a kite over a green sea", ["dark blue"], ["green"]),
        ("a \U0001f35c on a table", "a \U0001f355 on a table", ["\U0001f35c"], ["\U0001f355"]),
        ("\u4e00\u53ea\u732b\u5750\u7740", "\u4e00\u53ea\u72d7\u5750\u7740", ["\u732b"], ["\u72d7"]),
        ("", "a dog", [], ["dog"]),
        ("a dog", "", ["dog"], []),
    ],
)
def test_differing_words(source: str, target: str, removed: list[str], added: list[str]) -> None:
    diff = align_diff(source, target)
    assert (words(diff.removed), words(diff.added)) == (removed, added)


def test_prompts_of_any_length_are_compared() -> None:
    middle = [f"word{number}" for number in range(20_000)]
    source, target = (" ".join(["fox", *middle, extra, "den"]) for extra in ("hen", "owl"))
    diff = align_diff(source, target)
    assert (words(diff.removed), words(diff.added)) == (["hen"], ["owl"])
    turned = align_diff(source, " ".join(["fox", *reversed(middle), "den"]))
    assert words(turned.kept) == ["fox", "den"]


def test_of_a_repeated_word_the_place_that_changed_counts() -> None:
    diff = align_diff("a red ball, a red cube, a red cone", "a red ball, a green cube, a red cone")
    (removed,) = diff.removed
    assert removed.start == len("a red ball, a ")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a spotted dog runs in a park", "a wild cat runs in a park", "spotted dog"),
        ("a chef cuts a ripe apple", "a chef cuts an onion", "ripe apple"),
        ("a large red circle on a gray background", "a large green circle on a gray background", "large red circle"),
        ("a man walks in a street", "a robotic man walks in a street", "man"),
        ("a dog sleeps", "a dog wearing a scarf sleeps", "dog"),
        ("two small boats", "three small boats", "small boats"),
        ("a pair of dancers", "a dozen dancers", "dancers"),
        ("a portrait of a king", "a portrait of a queen", "king"),
        ("a man with a red umbrella", "a man with a blue umbrella", "red umbrella"),
        ("a girl with a kite and a boy", "a woman with a kite and a boy", "girl"),
        # Nothing to point at: place, time, style, motion, or something that only the target has.
        ("a dog in a park", "a dog on a beach", None),
        ("a red star on a blue background", "a red star on a green background", None),
        ("a star over a grey background with stripes", "a star over a grey background with dots", None),
        ("a city at night", "a city at noon", None),
        ("a castle, oil painting", "a castle, pencil sketch", None),
        ("a dog running", "a dog sleeping", None),
        ("a ball moves left", "a ball moves right", None),
        ("a table", "a table and a lamp", None),
        ("a dog", "a dog", None),
        # Without word lists for its script nothing can be told to be an object.
        ("\u4e00\u53ea\u732b", "\u4e00\u53ea\u72d7", None),
    ],
)
def test_the_object_that_differs_most(source: str, target: str, expected: str | None) -> None:
    assert phrase(align_diff(source, target)) == expected


def test_things_that_can_be_pointed_at() -> None:
    prompt = "cinematic shot of two old sailors with a brown dog in a storm, 4k, highly detailed"
    assert [span.text for span in object_phrases(prompt)] == ["old sailors", "brown dog"]
    assert all(span.text == prompt[span.start : span.stop] for span in object_phrases(prompt))


@pytest.mark.parametrize(
    "forms",
    [
        "move moves moving moved",
        "run runs running ran",
        "dance dances dancing danced",
        "fly flies flying flew",
        "stripe stripes striped",
        "cat cats cat's",
        "box boxes",
        "woman women",
        "pony ponies",
        "rotate rotates rotating rotated",
        "fall falls falling fell",
        "wolf wolves",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    "apart", ["plane plan", "star stare", "cube cub", "red ring", "bus bush", "note not", "car care", "left lift"]
)
def test_different_words_keep_apart(apart: str) -> None:
    assert len({stem(word) for word in apart.split()}) == 2


def test_synonyms_share_a_stem() -> None:
    assert folded_stem("huge") == folded_stem("large")
    assert folded_stem("rises") == folded_stem("up") != folded_stem("falls")


@pytest.mark.parametrize(("noun", "expected"), [("cats", True), ("Women", True), ("bus", False), ("glass", False)])
def test_plurals(noun: str, expected: bool) -> None:
    assert is_plural(noun) is expected


@given(old=st.lists(st.sampled_from("abc"), max_size=7), new=st.lists(st.sampled_from("abc"), max_size=7))
def test_pairs_of_an_alignment_are_equal_words_in_order(old: list[str], new: list[str]) -> None:
    pairs = align_words(old, new)
    assert all(old[a] == new[b] for a, b in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
    assert len(pairs) == len(old) or old != new


SOURCE = "a red ball and a red cube on a table"
TARGET = "a red ball and a green cube on a table"


def answer(**changed: object) -> str:
    return json.dumps({"added": ["green"], "removed": ["red"], "object": "red cube"} | changed)


def test_a_models_answer_becomes_places() -> None:
    diff = parse_diff(answer(), source=SOURCE, target=TARGET)
    assert (words(diff.added), words(diff.removed)) == (["green"], ["red"])
    assert diff.removed[0].start == SOURCE.rindex("red")  # of two reds the one that the aligner finds changed
    assert phrase(diff) == "red cube"
    assert words(diff.kept) == ["red", "ball", "cube", "table"]


def test_phrases_and_other_case_are_understood() -> None:
    diff = parse_diff(answer(added=["Green  cube"], removed=["RED", "red"], object=None), source=SOURCE, target=TARGET)
    assert words(diff.added) == ["green", "cube"]
    assert words(diff.removed) == ["red", "red"]
    assert diff.object_phrase is None


def test_words_without_meaning_are_dropped() -> None:
    assert words(parse_diff(answer(added=["a", "green"]), source=SOURCE, target=TARGET).added) == ["green"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"added": ["purple"]}, "added .*'purple'"),
        ({"added": ["gree"]}, "added .*'gree'"),
        ({"removed": ["green"]}, "removed .*'green'"),
        ({"removed": ["red", "table cube"]}, "removed .*'table cube'"),
        ({"object": "green cube"}, "object .*'green cube'"),
        ({"added": [""]}, "added .*''"),
        ({"object": " "}, "object .*' '"),
    ],
)
def test_a_word_that_is_not_in_its_prompt_is_named(changed: dict[str, object], named: str) -> None:
    with pytest.raises(UnknownWord, match=named):
        parse_diff(answer(**changed), source=SOURCE, target=TARGET)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("green instead of red", "JSON object, got 'green instead"),
        ("[]", "added, removed and object"),
        ('{"added": [], "removed": []}', "added, removed and object"),
        (answer(added="green"), "added to be a list"),
        (answer(removed=[7]), "removed to be a list"),
        (answer(object=["cube"]), "object to be a phrase"),
        ("[" * MAX_ANSWER_CHARS, "JSON object"),
        ("x" * (MAX_ANSWER_CHARS + 1), f"at most {MAX_ANSWER_CHARS}"),
    ],
)
def test_an_answer_of_another_form_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_diff(text, source=SOURCE, target=TARGET)


@given(text=texts | st.from_regex(r'\{"added": \[.{0,9}\], "removed": \[\], "object": .{0,5}\}', fullmatch=True))
def test_no_answer_raises_anything_but_a_value_error(text: str) -> None:
    try:
        diff = parse_diff(text, source=SOURCE, target=TARGET)
    except ValueError:
        return
    assert all(word.text == TARGET[word.start : word.stop] for word in diff.added)
