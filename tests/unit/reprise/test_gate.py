"""The second gate: a table of 60 pairs, and that it only ever lowers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.gate import CAPS, STRICTNESS, ChangeKind, change_kinds, lower_boundaries, region_limit
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import StageBoundaries
from reprise.tinyworld import ObjectSpec, SceneSpec, sample_scene, write_prompt

NONE, ATTRIBUTE, COLOUR, SCENE, OBJECT, MOTION, DIRECTION, SIZE, NUMBER, SWAP, NEW, REROLL, NEGATION = ChangeKind
BALL = "a large red circle moves right over a blue background"

TABLE = [
    # Another wording of the same: nothing may be lowered.
    (BALL, "a big red circle slides to the right over a blue backdrop", NONE),
    ("a small green star rises over a gray background", "over a grey background, a tiny green star moves up", NONE),
    (
        "a red circle moves left and a blue square rests over a black background",
        "a blue square stays still while a red circle drifts left against a black backdrop",
        NONE,
    ),
    (
        "a purple triangle does not move on a striped green background",
        "a violet triangle is still on a green background with stripes",
        NONE,
    ),
    ("a video of a dog running in the park", "a dog runs in the park", NONE),
    ("In a quiet library, an old man reads a book", "an old man is reading a book in a quiet library", NONE),
    ("a woman rides a bicycle down a street", "a lady riding a bike down the road", NONE),
    ("kids playing football on a beach", "children play football on a beach", NONE),
    ("a plane flying above the clouds at sunset", "at sunset, an airplane flies above the clouds", NONE),
    ("a cat without a collar sleeps", "a cat with no collar is sleeping", NONE),
    ("two horses gallop, poppies, golden hour", "poppies, two horses galloping, golden hour", NONE),
    # Colour.
    (BALL, "a large green circle moves right over a blue background", COLOUR),
    (BALL, "a large red circle moves right over a purple background", COLOUR),
    ("a black cat sleeping on a sofa", "a white cat sleeping on a sofa", COLOUR),
    ("a girl in a yellow raincoat", "a girl in a red raincoat", COLOUR),
    ("a silver car parked by the sea", "a blue car parked by the sea", COLOUR),
    ("an orange fish swims in a tank", "a turquoise fish swims in a tank", COLOUR),
    # Another thing, or one more.
    (BALL, "a large red star moves right over a blue background", OBJECT),
    ("a cat sleeping on a sofa", "a dog sleeping on a sofa", OBJECT),
    ("a chef cuts an apple", "a chef cuts an onion", OBJECT),
    ("a knight holding a sword", "a knight holding a shield", OBJECT),
    ("a boy feeds the ducks", "a boy and his mother feed the ducks", NEW),
    ("a table with a vase", "a table with a vase and a lamp", NEW),
    # Number.
    ("two dogs running in the snow", "three dogs running in the snow", NUMBER),
    ("a flock of 5 birds", "a flock of 9 birds", NUMBER),
    ("a cat on a windowsill", "two cats on a windowsill", NUMBER),
    ("a boat on the lake", "boats on the lake", NUMBER),
    ("a single candle burning", "several candles burning", NUMBER),
    ("a pair of dancers on stage", "a dozen dancers on stage", NUMBER),
    # Negation.
    ("a street with people", "a street with no people", NEGATION),
    ("a man wearing a hat", "a man without a hat", NEGATION),
    ("the door is open and the lamp is lit", "the door is not open and the lamp is lit", NEGATION),
    ("a robot that never sleeps", "a robot that sleeps", NEGATION),
    ("a dancer moving on stage", "nobody moving on stage", NEGATION),
    # Direction.
    (BALL, "a large red circle moves left over a blue background", DIRECTION),
    ("a small green star rises over a gray background", "a small green star falls over a gray background", DIRECTION),
    ("an elevator going up", "an elevator going down", DIRECTION),
    ("a child hiding behind a tree", "a child hiding in front of a tree", DIRECTION),
    ("a lamp above the table", "a lamp under the table", DIRECTION),
    ("a car driving forward on a road", "a car driving backward on a road", DIRECTION),
    # The same words, bound otherwise.
    (
        "a red circle moves left and a blue square moves right over a black background",
        "a blue circle moves left and a red square moves right over a black background",
        SWAP,
    ),
    ("a cat chases a dog through a garden", "a dog chases a cat through a garden", SWAP),
    ("a man with a hat and a woman with a fan", "a man with a fan and a woman with a hat", SWAP),
    ("two apples and three pears on a plate", "three apples and two pears on a plate", SWAP),
    ("a red circle left of a blue square", "a blue circle left of a red square", SWAP),
    ("a train passes from left to right", "a train passes from right to left", SWAP),
    # Motion.
    ("a dog running in the park", "a dog sleeping in the park", MOTION),
    ("a woman walking on a bridge", "a woman dancing on a bridge", MOTION),
    ("a fish swims slowly in a pond", "a fish swims quickly in a pond", MOTION),
    ("a bird sitting on a branch", "a bird singing on a branch", MOTION),
    # Place and time.
    ("a fox walking in a forest", "a fox walking in a desert", SCENE),
    ("a city street at night", "a city street at noon", SCENE),
    ("a woman reading on a beach", "a woman reading in a kitchen", SCENE),
    (BALL, "a large red circle moves right over a striped blue background", SCENE),
    # Size.
    (BALL, "a small red circle moves right over a blue background", SIZE),
    ("a tall tower by a river", "a short tower by a river", SIZE),
    # What else an image can have.
    ("a portrait of a king, oil painting", "a portrait of a king, pencil sketch", ATTRIBUTE),
    ("a wooden chair in an empty room", "a metal chair in an empty room", ATTRIBUTE),
    ("a castle on a hill, cinematic", "a castle on a hill, cinematic, 4k, highly detailed", ATTRIBUTE),
    ("a young sailor at the helm", "an elderly sailor at the helm", ATTRIBUTE),
]

HIGH = StageBoundaries(k1=25, k2=45)
kinds_sets = st.sets(st.sampled_from(ChangeKind), min_size=1)


@st.composite
def boundaries_of(draw: st.DrawFn, num_steps: int) -> StageBoundaries:
    k1, k2 = sorted((draw(st.integers(0, num_steps)), draw(st.integers(0, num_steps))))
    return StageBoundaries(k1=k1, k2=k2)


def test_the_table_has_60_pairs_of_every_kind() -> None:
    assert len({(source, target) for source, target, _ in TABLE}) == 60
    assert {kind for _, _, kind in TABLE} == set(ChangeKind) - {REROLL}  # which no word tells


@pytest.mark.parametrize(("source", "target", "kind"), TABLE)
@pytest.mark.parametrize("is_turned", [False, True], ids=["", "turned"])
def test_pairs(source: str, target: str, kind: ChangeKind, is_turned: bool) -> None:
    diff = align_diff(target, source) if is_turned else align_diff(source, target)
    kind = OBJECT if is_turned and kind is NEW else kind  # what comes one way goes the other
    kinds = change_kinds(diff)
    assert kinds[0] is kind
    lowered, reason = lower_boundaries(HIGH, kinds, num_steps=50)
    assert reason.kinds == kinds
    assert reason.is_lowered is (lowered != HIGH) is (kind is not NONE)
    assert lowered.k1 == min(HIGH.k1, int(50 * CAPS[kind].k1 + 1e-9))


@given(data=st.data(), num_steps=st.integers(1, 80), kinds=kinds_sets)
def test_no_boundary_is_ever_raised(data: st.DataObject, num_steps: int, kinds: set[ChangeKind]) -> None:
    before = data.draw(boundaries_of(num_steps))
    after, reason = lower_boundaries(before, kinds, num_steps=num_steps)
    assert after.k1 <= before.k1
    assert after.k2 <= before.k2
    assert reason.is_lowered is (after != before)


@given(data=st.data(), num_steps=st.integers(1, 80), kinds=kinds_sets, more=kinds_sets)
def test_more_kinds_and_lower_boundaries_never_allow_more(
    data: st.DataObject, num_steps: int, kinds: set[ChangeKind], more: set[ChangeKind]
) -> None:
    high = data.draw(boundaries_of(num_steps))
    low = StageBoundaries(k1=high.k1 // 2, k2=max(high.k1 // 2, high.k2 // 2))
    few, _ = lower_boundaries(high, kinds, num_steps=num_steps)
    many, _ = lower_boundaries(high, kinds | more, num_steps=num_steps)
    lower, _ = lower_boundaries(low, kinds, num_steps=num_steps)
    assert (many.k1 <= few.k1, many.k2 <= few.k2) == (True, True)
    assert (lower.k1 <= few.k1, lower.k2 <= few.k2) == (True, True)


@given(data=st.data(), num_steps=st.integers(1, 80))
def test_without_a_difference_nothing_is_lowered(data: st.DataObject, num_steps: int) -> None:
    before = data.draw(boundaries_of(num_steps))
    after, reason = lower_boundaries(before, {NONE}, num_steps=num_steps)
    assert (after, reason.is_lowered) == (before, False)


def test_caps_follow_the_order_of_kinds() -> None:
    caps = [CAPS[kind] for kind in sorted(ChangeKind, key=STRICTNESS.__getitem__)]
    assert [cap.k1 for cap in caps] == sorted((cap.k1 for cap in caps), reverse=True)
    assert all(cap.k1 <= cap.k2 for cap in caps)
    assert CAPS[NEGATION].k2 == 0


def test_no_kinds_and_boundaries_beyond_the_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds must not be empty"):
        lower_boundaries(HIGH, (), num_steps=50)
    with pytest.raises(ValueError, match="k2=45 is beyond num_steps=40"):
        lower_boundaries(HIGH, (NONE,), num_steps=40)


def test_several_changes_are_all_named_strictest_first() -> None:
    diff = align_diff("a black cat runs in a garden", "two white cats sleep in a kitchen, no people")
    assert change_kinds(diff) == (NEGATION, NEW, NUMBER, MOTION, SCENE, COLOUR)


@pytest.mark.parametrize("text", ["8 k", "35 mm", "1990", "episode 7"])
def test_numerals_that_count_nothing(text: str) -> None:
    assert NUMBER not in change_kinds(align_diff("a fox", f"a fox, {text}"))


def test_words_without_lists_count_as_things() -> None:
    kinds = change_kinds(align_diff("\u4e00\u53ea\u732b\u5750\u7740", "\u4e00\u53ea\u72d7\u5750\u7740"))
    assert kinds == (OBJECT,)


def changed(scene: SceneSpec, **fields: str) -> SceneSpec:
    """Change the first object."""
    first, *others = scene.objects
    return dataclasses.replace(scene, objects=(dataclasses.replace(first, **fields), *others))


@pytest.mark.parametrize("seed", range(20))
def test_scenes_of_the_tiny_world_need_no_rule_of_their_own(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng)
    first, *others = scene.objects
    third = ObjectSpec("star" if first.shape != "star" else "circle", "white", "small", "up")
    cases = {
        DIRECTION: (changed(scene, motion="left"), changed(scene, motion="right")),
        SIZE: (changed(scene, size="small"), changed(scene, size="large")),
        OBJECT: (changed(scene, shape="star"), changed(scene, shape="square")),
        NONE: (scene, scene),
        SCENE: (dataclasses.replace(scene, pattern="striped"), dataclasses.replace(scene, pattern="gradient")),
    }
    for kind, (source, target) in cases.items():
        assert change_kinds(align_diff(write_prompt(source), write_prompt(target)))[0] is kind
    if not others:
        more = dataclasses.replace(scene, objects=(first, third))
        assert NEW in change_kinds(align_diff(write_prompt(scene), write_prompt(more)))
        assert NEW not in change_kinds(align_diff(write_prompt(more), write_prompt(scene)))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("a large red star moves right and a blue square rests over a black background", 50),
        ("a large red star moves right and a blue star rests over a black background", 20),
        ("a large red star moves right and a small blue square falls over a black background", 12),
        ("a large red star moves right and a blue square rests over a grey background", 25),
    ],
)
def test_region_ends_where_changes_beside_its_object_must_begin(target: str, expected: int) -> None:
    source = "a large red circle moves right and a blue square rests over a black background"
    assert region_limit(align_diff(source, target), num_steps=50) == expected


def test_region_without_an_object_has_no_step() -> None:
    assert region_limit(align_diff(BALL, BALL), num_steps=50) == 0
