"""What one request reuses, decided before anything runs and written down as a value (Chorus, section 3.1).

`plan_reuse` is pure: stored requests that look alike go in, a `ReusePlan` comes out, with a reason whenever nothing
is reused. F bounds the steps by the matching score, the second gate by the words that differ. Standard library only;
knows nothing about latents, stores or embedders.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from reprise.chorus.gate import ChangeKind, GateReason, change_kinds, lower_boundaries, region_limit
from reprise.chorus.grid import TrajectoryGrid, steps_needed
from reprise.chorus.objects import match_phrase, object_phrases
from reprise.chorus.prompt_diff import TokenDiff, align_diff
from reprise.chorus.stages import NO_REUSE, StageBoundaries, StageMap, nirvana_map

REGION_SAVING: Final = 0.3
"""Of a step in full, what a step in a typical region saves; only to compare sources before a mask is at hand."""


class ReuseMode(enum.StrEnum):
    """What a request allows to be reused."""

    OFF = "off"
    """Nothing; and nothing of it is stored."""
    EXACT = "exact"
    """The clip of the very same request, and nothing else."""
    NIRVANA = "nirvana"
    """A baseline: stage 1 alone, by matching score alone (Agarwal et al., NSDI 2024)."""
    CHORUS = "chorus"
    """All stages, and the second gate."""


class MissReason(enum.StrEnum):
    """Every reason for reusing nothing; the list is closed."""

    OFF = "off"
    """The request asked for no reuse."""
    EMPTY_CACHE = "empty_cache"
    """Nothing is stored in the request's partition."""
    BELOW_THRESHOLD = "below_threshold"
    """The best matching score is under tau."""
    PROMPT_EXCEEDS_ENCODER = "prompt_exceeds_encoder"
    """The embedder read only the head of the prompt, so its scores say nothing about the rest."""
    TOO_FEW_STEPS = "too_few_steps"
    """F(m; N) skips no step at this score and number of steps."""
    NOT_THE_SAME = "not_the_same"
    """Only the same request would do, and none is stored."""
    WORDS_DIFFER = "words_differ"
    """The scores would do, but what the request changes allows no step; see `change_kinds`."""
    NO_STORED_STEP = "no_stored_step"
    """No similar source has a latent stored at K1 or before."""
    LOOKUP_TIMEOUT = "lookup_timeout"
    """Embedding or look-up took longer than its deadline."""
    LOOKUP_FAILED = "lookup_failed"
    """Embedding or look-up raised an error."""
    CIRCUIT_OPEN = "circuit_open"
    """Embedding or look-up failed several times in a row and is left alone for a while."""
    SOURCE_MISSING = "source_missing"
    """The source's latents are gone, or do not pass their checks."""


class RegionReason(enum.StrEnum):
    """Every reason for which a hit has no stage 2; the list is closed."""

    NOT_ALLOWED = "not_allowed"
    """F and the gate give it no step at this score and change, or at what changes beside the object."""
    NO_OBJECT = "no_object"
    """The words that differ belong to no one object of the source."""
    NO_LATENTS = "no_latents"
    """Some of the source's latents that stage 2 merges with are gone."""
    NO_MASK = "no_mask"
    """The source has no mask of that object: not found in its video, not made yet, or not readable."""
    TOO_LARGE = "too_large"
    """The region takes so much of the picture that leaving out the rest saves nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A stored request of the same partition, so with the same model, steps, size and guidance."""

    source_id: str
    matching_score: float | None
    """None when it could not be computed, which only a remix may ignore."""
    prompt: str
    seed: int
    num_steps: int
    stored_steps: tuple[int, ...]
    """Steps whose entering latent is stored."""
    prompt_exceeds_encoder: bool = False
    """Its vector stands for the head of its prompt only; then only a remix may use it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReusePlan:
    """Start from the latent of `source_id` that enters step `boundaries.k1`; or, with a `reason`, from noise.

    At k1 = N no step is left: the source's own clip.
    """

    boundaries: StageBoundaries
    source_id: str | None = None
    source_seed: int | None = None
    """The source's noise is drawn again from it when noise is refreshed."""
    matching_score: float | None = None
    """Of the source; on a miss of the best candidate, None when none was scored."""
    reason: MissReason | None = None
    """Set exactly on a miss."""
    change_kinds: tuple[ChangeKind, ...] = ()
    """What the words that differ from the source's change, strictest first; on a miss, from the best candidate's.
    Empty where no prompts were compared."""
    is_lowered: bool = False
    """The second gate allowed less than the matching score."""
    refresh_noise: bool = False
    """The prompt is the source's and the seed is not: the sampler is deterministic, so without new noise the result
    would be the source's video."""
    diff: TokenDiff | None = None
    """How the request's prompt differs from the source's, on a hit whose difference is to be amplified."""
    region_phrase: str | None = None
    """The object of the source inside which stage 2 works, as its mask is stored; set exactly when k2 > k1."""
    region_reason: RegionReason | None = None
    """Why a hit has no stage 2, where it might have had one."""
    source_steps: tuple[int, ...] = ()
    """Steps whose entering latents must be fetched from the source, rising."""

    def __post_init__(self) -> None:
        if (self.source_id is None) != (self.boundaries.k1 == 0) or (self.source_id is None) != (
            self.reason is not None
        ):
            raise ValueError(
                "a plan has a source and k1 > 0, or neither and a reason, got "
                f"source_id={self.source_id}, k1={self.boundaries.k1}, reason={self.reason}"
            )
        if (self.region_phrase is not None) != (self.boundaries.k2 > self.boundaries.k1):
            raise ValueError(f"a plan has a region exactly when k2 > k1, got {self.region_phrase=}, {self.boundaries}")

    @property
    def is_hit(self) -> bool:
        """Tell whether latents are reused."""
        return self.source_id is not None

    def without_region(self, reason: RegionReason) -> "ReusePlan":
        """Give the plan that computes its stage 2 in full."""
        k1 = self.boundaries.k1
        return dataclasses.replace(
            self,
            boundaries=StageBoundaries(k1=k1, k2=k1),
            region_phrase=None,
            region_reason=reason,
            source_steps=(k1,),
        )


def plan_miss(reason: MissReason, *, matching_score: float | None = None) -> ReusePlan:
    """Plan a run from noise and say why."""
    return ReusePlan(boundaries=NO_REUSE, reason=reason, matching_score=matching_score)


def plan_reuse(
    *,
    prompt: str,
    seed: int,
    num_steps: int,
    candidates: Sequence[Candidate],
    stage_map: StageMap,
    mode: ReuseMode = ReuseMode.CHORUS,
    tau: float | None = None,
    prompt_exceeds_encoder: bool = False,
    forced_source_id: str | None = None,
    diffs: Mapping[str, TokenDiff] = MappingProxyType({}),
) -> ReusePlan:
    """Choose the source and the boundaries of one request.

    `tau` asks for more than the map's own. `forced_source_id` names the source or none, which then counts as scored
    at tau at least, whatever its score, and of which the gate leaves at least the first stored step. `diffs` by
    source id adds what another engine than the aligner found: its kinds of change count too, its words take the place
    of the aligner's.
    """
    if mode is ReuseMode.OFF:
        return plan_miss(MissReason.OFF)
    if mode is ReuseMode.NIRVANA:
        stage_map = nirvana_map(num_steps=num_steps)
    tau = stage_map.tau if tau is None else max(tau, stage_map.tau)
    if forced_source_id is not None:
        candidates = [_at_least_tau(c, tau) for c in candidates if c.source_id == forced_source_id]
        if not candidates:
            return plan_miss(MissReason.SOURCE_MISSING)
    elif prompt_exceeds_encoder:
        return plan_miss(MissReason.PROMPT_EXCEEDS_ENCODER)
    else:
        candidates = [c for c in candidates if not c.prompt_exceeds_encoder]
        if not candidates:
            return plan_miss(MissReason.EMPTY_CACHE)
    for candidate in candidates:
        if candidate.num_steps != num_steps:
            raise ValueError(
                f"a candidate of {candidate.num_steps} steps for a request of {num_steps}: "
                f"{candidate.source_id} is of another partition; look up within the request's own"
            )
    ranked = sorted(candidates, key=lambda c: (-_score(c), c.source_id))
    if mode is not ReuseMode.NIRVANA:
        for candidate in ranked:
            if candidate.prompt == prompt and candidate.seed == seed and num_steps in candidate.stored_steps:
                return _same_clip(candidate, num_steps)
    if mode is ReuseMode.EXACT:
        return plan_miss(MissReason.NOT_THE_SAME, matching_score=_score(ranked[0]))
    return _best_plan(
        _Request(prompt=prompt, seed=seed, num_steps=num_steps, is_forced=forced_source_id is not None),
        ranked,
        stage_map=stage_map,
        tau=tau,
        diffs=None if mode is ReuseMode.NIRVANA else diffs,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    prompt: str
    seed: int
    num_steps: int
    is_forced: bool


def _at_least_tau(candidate: Candidate, tau: float) -> Candidate:
    """Let a forced source count as similar enough; how similar beyond that is still its score."""
    score = candidate.matching_score
    return candidate if score is not None and score >= tau else dataclasses.replace(candidate, matching_score=tau)


def _same_clip(candidate: Candidate, num_steps: int) -> ReusePlan:
    return ReusePlan(
        boundaries=StageBoundaries(k1=num_steps, k2=num_steps),
        source_id=candidate.source_id,
        source_seed=candidate.seed,
        matching_score=candidate.matching_score,
        change_kinds=(ChangeKind.NONE,),
        source_steps=(num_steps,),
    )


def _best_plan(
    request: _Request,
    ranked: Sequence[Candidate],
    *,
    stage_map: StageMap,
    tau: float,
    diffs: Mapping[str, TokenDiff] | None,
) -> ReusePlan:
    """Take the candidate that saves most of those similar enough, among equals the best-matching one.

    The nearest by embedding may differ in what is settled first, such as a direction, which embedders hardly tell;
    another one, a little less similar, in what can be turned late. When none can be used, tell what stopped the
    best-matching one. Without `diffs` the words that differ do not count.
    """
    plans = [
        _plan_from(candidate, request, stage_map=stage_map, diffs=diffs)
        for candidate in ranked
        if _score(candidate) >= tau
    ]
    if not plans:
        return plan_miss(MissReason.BELOW_THRESHOLD, matching_score=_score(ranked[0]))
    best = max(plans, key=_steps_saved)  # the first of equals, so the best-matching
    return best if best.is_hit else plans[0]


def _steps_saved(plan: ReusePlan) -> float:
    k1, k2 = plan.boundaries.k1, plan.boundaries.k2
    return k1 + REGION_SAVING * (k2 - k1)


def _plan_from(
    candidate: Candidate, request: _Request, *, stage_map: StageMap, diffs: Mapping[str, TokenDiff] | None
) -> ReusePlan:
    """Plan to start from this candidate, or say why not."""
    score = _score(candidate)
    allowed = stage_map.stage_boundaries(score, num_steps=request.num_steps)
    is_reroll = candidate.seed != request.seed and _words(candidate.prompt) == _words(request.prompt)
    if diffs is None:
        diff, lowered, gate = None, allowed, GateReason(kinds=(), is_lowered=False)
    else:
        aligned = align_diff(candidate.prompt, request.prompt)
        diff = diffs.get(candidate.source_id, aligned)
        kinds = {*change_kinds(aligned), *change_kinds(diff)} - {ChangeKind.NONE} or {ChangeKind.NONE}
        if is_reroll and not request.is_forced:  # a forced source is asked for because of its looks
            kinds = {ChangeKind.REROLL}
        lowered, gate = lower_boundaries(allowed, kinds, num_steps=request.num_steps)
        if request.is_forced:  # the caller has chosen, so the gate leaves the earliest start there is
            first = min((step for step in candidate.stored_steps if 0 < step <= allowed.k1), default=0)
            lowered = StageBoundaries(k1=max(lowered.k1, first), k2=max(lowered.k2, first))
    usable = [step for step in candidate.stored_steps if 0 < step <= lowered.k1]
    if not usable:
        return ReusePlan(
            boundaries=NO_REUSE,
            reason=_why_no_step(allowed.k1, lowered.k1),
            matching_score=score,
            change_kinds=gate.kinds,
            is_lowered=gate.is_lowered,
        )
    k1, k2 = max(usable), min(lowered.k2, max(candidate.stored_steps))
    plan = ReusePlan(
        boundaries=StageBoundaries(k1=k1, k2=k1),
        source_id=candidate.source_id,
        source_seed=candidate.seed,
        matching_score=candidate.matching_score,
        refresh_noise=is_reroll,
        change_kinds=gate.kinds,
        is_lowered=gate.is_lowered,
        diff=diff,
        source_steps=(k1,),
    )
    return plan if diff is None or is_reroll else _with_region(plan, diff, candidate, k2=k2)


def _with_region(plan: ReusePlan, diff: TokenDiff, candidate: Candidate, *, k2: int) -> ReusePlan:
    """Let stage 2 follow where it may, and the differing words belong to an object of the source."""
    k1, wanted = plan.boundaries.k1, diff.object_phrase
    if wanted is not None:
        k2 = min(k2, region_limit(diff, num_steps=candidate.num_steps))
    if k2 <= k1:
        return plan.without_region(RegionReason.NOT_ALLOWED)
    phrase = None if wanted is None else match_phrase(wanted.text, object_phrases(candidate.prompt))
    if phrase is None:
        return plan.without_region(RegionReason.NO_OBJECT)
    boundaries = StageBoundaries(k1=k1, k2=k2)
    stored = tuple(step for step in candidate.stored_steps if step > 0)
    grid = TrajectoryGrid(num_steps=candidate.num_steps, steps=stored)
    return dataclasses.replace(
        plan, boundaries=boundaries, region_phrase=phrase, source_steps=steps_needed(boundaries, grid)
    )


def _why_no_step(allowed_k1: int, lowered_k1: int) -> MissReason:
    if lowered_k1 > 0:
        return MissReason.NO_STORED_STEP
    return MissReason.WORDS_DIFFER if allowed_k1 > 0 else MissReason.TOO_FEW_STEPS


def _score(candidate: Candidate) -> float:
    score = candidate.matching_score
    if score is None or math.isnan(score):
        raise ValueError(f"candidate {candidate.source_id} has matching_score={score}: score it, or leave it out")
    return score


def _words(prompt: str) -> list[str]:
    """Split into words, so that case, spaces and punctuation do not make another prompt of the same one."""
    return re.findall(r"\w+", prompt.casefold())
