"""The plan table: what is reused for which request, and why not."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.gate import ChangeKind
from reprise.chorus.plan import Candidate, MissReason, RegionReason, ReuseMode, ReusePlan, plan_miss, plan_reuse
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import NO_REUSE, StageBoundaries, StageMap, StageRow

MAP = StageMap(
    tau=0.6, num_steps=50, rows=(StageRow(min_score=0.6, k1=10, k2=10), StageRow(min_score=0.9, k1=20, k2=20))
)
SOURCE = Candidate(source_id="a", matching_score=0.95, prompt="A red ball", seed=1, num_steps=50, stored_steps=(10, 20))
REQUEST: dict[str, Any] = {"prompt": "a blue ball", "seed": 2, "num_steps": 50, "stage_map": MAP}


def source(**changes: Any) -> Candidate:
    return dataclasses.replace(SOURCE, **changes)


@pytest.mark.parametrize(
    ("candidates", "request_changes", "expected"),
    [
        pytest.param([SOURCE], {}, ("a", 20), id="hit"),
        pytest.param([source(matching_score=0.7)], {}, ("a", 10), id="a lower score starts earlier"),
        pytest.param([source(stored_steps=(5, 12, 30))], {}, ("a", 12), id="k1 snaps down to a stored step"),
        pytest.param([source(source_id="b", matching_score=0.7), SOURCE], {}, ("a", 20), id="the best score wins"),
        pytest.param([source(source_id="b"), SOURCE], {}, ("a", 20), id="a tie goes to the lower id"),
        pytest.param(
            [source(stored_steps=(30,)), source(source_id="b", matching_score=0.7)],
            {},
            ("b", 10),
            id="the next one when the best has no usable step",
        ),
        pytest.param([source(matching_score=0.59)], {}, MissReason.BELOW_THRESHOLD, id="under tau"),
        pytest.param([], {}, MissReason.EMPTY_CACHE, id="nothing stored"),
        pytest.param([SOURCE], {"mode": ReuseMode.OFF}, MissReason.OFF, id="off"),
        pytest.param(
            [SOURCE], {"mode": ReuseMode.OFF, "forced_source_id": "a"}, MissReason.OFF, id="off beats a remix"
        ),
        pytest.param(
            [SOURCE], {"prompt_exceeds_encoder": True}, MissReason.PROMPT_EXCEEDS_ENCODER, id="prompt too long"
        ),
        pytest.param([source(prompt_exceeds_encoder=True)], {}, MissReason.EMPTY_CACHE, id="source prompt too long"),
        pytest.param([source(stored_steps=(21,))], {}, MissReason.NO_STORED_STEP, id="stored too late"),
        pytest.param([source(stored_steps=())], {}, MissReason.NO_STORED_STEP, id="no latent stored"),
        pytest.param([source(stored_steps=(0,))], {}, MissReason.NO_STORED_STEP, id="step 0 saves nothing"),
        pytest.param(
            [source(num_steps=2, stored_steps=(1,))], {"num_steps": 2}, MissReason.TOO_FEW_STEPS, id="F is 0 at N=2"
        ),
        pytest.param([source(matching_score=0.1)], {"forced_source_id": "a"}, ("a", 10), id="remix under tau"),
        pytest.param([source(matching_score=None)], {"forced_source_id": "a"}, ("a", 10), id="remix without score"),
        pytest.param([source(matching_score=math.nan)], {"forced_source_id": "a"}, ("a", 10), id="remix, score NaN"),
        pytest.param([SOURCE], {"forced_source_id": "a"}, ("a", 20), id="remix over tau keeps its score"),
        pytest.param(
            [SOURCE, source(source_id="b", matching_score=0.7)], {"forced_source_id": "b"}, ("b", 10), id="remix of b"
        ),
        pytest.param([source(matching_score=0.7)], {"tau": 0.8}, MissReason.BELOW_THRESHOLD, id="tau of the request"),
        pytest.param([source(matching_score=0.7)], {"tau": 0.1}, ("a", 10), id="tau under the map's own"),
        pytest.param([SOURCE], {"mode": ReuseMode.EXACT}, MissReason.NOT_THE_SAME, id="exact, and it is another"),
        pytest.param(
            [source(matching_score=0.8, stored_steps=(5, 10))],
            {"mode": ReuseMode.NIRVANA},
            ("a", 10),
            id="NIRVANA's map",
        ),
        pytest.param([SOURCE], {"forced_source_id": "b"}, MissReason.SOURCE_MISSING, id="remix of what is gone"),
        pytest.param(
            [source(prompt_exceeds_encoder=True, matching_score=None)],
            {"forced_source_id": "a", "prompt_exceeds_encoder": True},
            ("a", 10),
            id="remix of long prompts",
        ),
    ],
)
def test_plan(
    candidates: list[Candidate], request_changes: dict[str, Any], expected: tuple[str, int] | MissReason
) -> None:
    plan = plan_reuse(candidates=candidates, **{**REQUEST, **request_changes})
    if isinstance(expected, MissReason):
        assert (plan.reason, plan.boundaries, plan.source_id) == (expected, NO_REUSE, None)
        assert not plan.is_hit
    else:
        source_id, k1 = expected
        assert plan.is_hit
        assert (plan.source_id, plan.reason, plan.source_seed) == (source_id, None, 1)
        assert plan.boundaries.k1 == k1


@pytest.mark.parametrize(
    ("prompt", "expected", "kinds", "is_lowered"),
    [
        pytest.param("the red ball", 20, (ChangeKind.NONE,), False, id="another wording"),
        pytest.param("a blue ball", 20, (ChangeKind.COLOUR,), False, id="a colour, within its cap"),
        pytest.param("two red balls", MissReason.NO_STORED_STEP, (ChangeKind.NUMBER,), True, id="a number lowers K1"),
        pytest.param("a small blue ball", 10, (ChangeKind.SIZE, ChangeKind.COLOUR), True, id="the strictest decides"),
        pytest.param("no red ball", MissReason.WORDS_DIFFER, (ChangeKind.NEGATION,), True, id="a negation forbids"),
    ],
)
def test_differing_words_lower_k1_and_say_so(
    prompt: str, expected: int | MissReason, kinds: tuple[ChangeKind, ...], is_lowered: bool
) -> None:
    plan = plan_reuse(candidates=[SOURCE], **{**REQUEST, "prompt": prompt})
    assert (plan.reason or plan.boundaries.k1) == expected
    assert (plan.change_kinds, plan.is_lowered) == (kinds, is_lowered)
    assert plan.matching_score == 0.95


def test_a_less_similar_source_is_taken_where_words_forbid_the_best() -> None:
    candidates = [SOURCE, source(source_id="b", matching_score=0.7, prompt="no red ball")]
    plan = plan_reuse(candidates=candidates, **{**REQUEST, "prompt": "no blue ball"})
    assert (plan.source_id, plan.change_kinds) == ("b", (ChangeKind.COLOUR,))


@pytest.mark.parametrize(
    ("prompt", "seed", "refresh_noise", "k1"),
    [
        ("A red ball", 1, False, 50),
        ("A red ball", 2, True, 5),
        ("a  red BALL!", 2, True, 5),
        ("a red ball", 1, False, 20),
        ("A blue ball", 2, False, 20),
        ("A blue ball", 1, False, 20),
    ],
)
def test_reroll_refreshes_the_noise_and_repetition_gives_the_clip_itself(
    prompt: str, seed: int, refresh_noise: bool, k1: int
) -> None:
    plan = plan_reuse(candidates=[source(stored_steps=(5, 20, 50))], **{**REQUEST, "prompt": prompt, "seed": seed})
    assert (plan.refresh_noise, plan.boundaries, plan.source_steps) == (
        refresh_noise,
        StageBoundaries(k1=k1, k2=k1),
        (k1,),
    )
    assert (plan.change_kinds == (ChangeKind.REROLL,)) == refresh_noise


@pytest.mark.parametrize("mode", [ReuseMode.EXACT, ReuseMode.CHORUS])
def test_the_same_request_is_found_behind_others_that_score_alike(mode: ReuseMode) -> None:
    candidates = [source(seed=7), source(source_id="b", stored_steps=(10, 50)), source(source_id="c", seed=8)]
    plan = plan_reuse(candidates=candidates, mode=mode, **{**REQUEST, "prompt": SOURCE.prompt, "seed": 1})
    assert (plan.source_id, plan.boundaries.k1) == ("b", 50)


WIDE = dataclasses.replace(MAP, rows=(StageRow(min_score=0.6, k1=10, k2=30),))
DENSE = source(stored_steps=(5, 10, 15, 20, 25, 30, 50))


@pytest.mark.parametrize(
    ("prompt", "phrase", "reason", "steps"),
    [
        pytest.param("a red cube", "red ball", None, (10, 15, 20, 25, 30), id="the object that changes"),
        pytest.param("a red ball on a beach", None, RegionReason.NOT_ALLOWED, (10,), id="gate gives no step"),
        pytest.param("the red ball", None, RegionReason.NO_OBJECT, (10,), id="no word differs"),
    ],
)
def test_stage_2_follows_where_one_object_changes(
    prompt: str, phrase: str | None, reason: RegionReason | None, steps: tuple[int, ...]
) -> None:
    narrow = dataclasses.replace(WIDE, rows=(StageRow(min_score=0.6, k1=10, k2=10),))
    stage_map = narrow if reason is RegionReason.NOT_ALLOWED else WIDE
    plan = plan_reuse(candidates=[DENSE], **{**REQUEST, "prompt": prompt, "stage_map": stage_map})
    assert (plan.region_phrase, plan.region_reason, plan.source_steps) == (phrase, reason, steps)
    assert plan.boundaries == StageBoundaries(k1=10, k2=30 if phrase else 10)


def test_stage_2_does_not_outlast_what_changes_beside_its_object() -> None:
    stored = dataclasses.replace(DENSE, prompt="a red ball beside a green vase")
    plan = plan_reuse(candidates=[stored], **{**REQUEST, "prompt": "a red cube beside a large lamp", "stage_map": WIDE})
    assert plan.boundaries == StageBoundaries(k1=10, k2=20)


def test_k2_is_no_later_than_the_last_stored_step() -> None:
    plan = plan_reuse(candidates=[source(stored_steps=(10, 20))], **{**REQUEST, "stage_map": WIDE})
    assert (plan.boundaries, plan.source_steps) == (StageBoundaries(k1=10, k2=20), (10, 20))


def test_nirvana_looks_at_no_words() -> None:
    plan = plan_reuse(candidates=[DENSE], mode=ReuseMode.NIRVANA, **{**REQUEST, "prompt": "no red ball"})
    assert plan.boundaries == StageBoundaries(k1=25, k2=25)
    assert (plan.diff, plan.change_kinds) == (None, ())


def test_another_engines_diff_can_lower_and_names_the_words() -> None:
    other = align_diff("A red ball", "two red balls")
    plan = plan_reuse(candidates=[DENSE], diffs={"a": other}, **{**REQUEST, "stage_map": WIDE})
    assert plan.change_kinds == (ChangeKind.NUMBER, ChangeKind.COLOUR)
    assert plan.diff == other


def test_a_remix_with_the_same_prompt_stays_close_to_its_source() -> None:
    plan = plan_reuse(candidates=[SOURCE], forced_source_id="a", **{**REQUEST, "prompt": "A red ball"})
    assert (plan.boundaries.k1, plan.refresh_noise) == (20, True)


def test_the_gate_leaves_a_forced_source_its_first_step() -> None:
    request = {**REQUEST, "prompt": "no red ball"}
    assert plan_reuse(candidates=[SOURCE], **request).reason is MissReason.WORDS_DIFFER
    plan = plan_reuse(candidates=[SOURCE], forced_source_id="a", **request)
    assert (plan.boundaries, plan.is_lowered) == (StageBoundaries(k1=10, k2=10), True)


def test_the_source_that_saves_most_is_taken_and_among_equals_the_nearest() -> None:
    turned = source(source_id="b", matching_score=0.99, prompt="two red balls")
    plan = plan_reuse(candidates=[turned, SOURCE], **REQUEST)
    assert (plan.source_id, plan.boundaries.k1) == ("a", 20)
    farther = source(source_id="b", matching_score=0.93)
    assert plan_reuse(candidates=[farther, SOURCE], **REQUEST).source_id == "a"


def test_a_miss_tells_the_best_score() -> None:
    candidates = [source(matching_score=0.2), source(source_id="b", matching_score=0.4)]
    assert plan_reuse(candidates=candidates, **REQUEST).matching_score == 0.4
    assert plan_miss(MissReason.LOOKUP_TIMEOUT).matching_score is None


@given(
    st.lists(
        st.builds(
            source,
            source_id=st.sampled_from("abc"),
            matching_score=st.floats(-1, 1),
            stored_steps=st.sets(st.integers(0, 50)).map(lambda steps: tuple(sorted(steps))),
        ),
        max_size=4,
    )
)
def test_every_plan_starts_from_a_stored_step_within_f(candidates: list[Candidate]) -> None:
    plan = plan_reuse(candidates=candidates, **REQUEST)
    if plan.is_hit:
        assert plan.matching_score is not None
        assert plan.matching_score >= MAP.tau
        assert plan.boundaries.k1 <= MAP.stage_boundaries(plan.matching_score, num_steps=50).k1
        assert any(c.source_id == plan.source_id and plan.boundaries.k1 in c.stored_steps for c in candidates)


def test_candidate_of_another_partition_is_refused() -> None:
    with pytest.raises(ValueError, match="of 20 steps for a request of 50"):
        plan_reuse(candidates=[source(num_steps=20)], **REQUEST)


@pytest.mark.parametrize("score", [None, math.nan])
def test_unscored_candidate_is_refused_unless_forced(score: float | None) -> None:
    with pytest.raises(ValueError, match=f"candidate a has matching_score={score}"):
        plan_reuse(candidates=[source(matching_score=score)], **REQUEST)


@pytest.mark.parametrize(
    "fields",
    [
        {"source_id": "a", "boundaries": NO_REUSE},
        {"boundaries": StageBoundaries(k1=1, k2=1), "reason": MissReason.OFF},
        {"boundaries": NO_REUSE},
        {"source_id": "a", "boundaries": StageBoundaries(k1=1, k2=1), "reason": MissReason.OFF},
    ],
)
def test_contradictory_plan_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a source and k1 > 0, or neither and a reason"):
        ReusePlan(**fields)


def test_a_region_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="a region exactly when k2 > k1"):
        ReusePlan(source_id="a", boundaries=StageBoundaries(k1=1, k2=1), region_phrase="ball")
