"""What one request reuses, decided before anything runs and written down as a value (Chorus, section 3.1).

`plan_reuse` is pure: stored requests that look alike go in, a `ReusePlan` comes out, with a reason whenever nothing
is reused. F bounds the steps by the matching score, the second gate by the words that differ. Stage 2 is not planned
yet: k2 equals k1 in every plan. Standard library only; knows nothing about latents, stores or embedders.
"""

import dataclasses
import enum
import math
import re
from collections.abc import Sequence

from reprise.chorus.gate import ChangeKind, change_kinds, lower_boundaries
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import NO_REUSE, StageBoundaries, StageMap


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
    WORDS_DIFFER = "words_differ"
    """The scores would do, but what the request changes allows no step; see `change_kinds`."""
    NO_STORED_STEP = "no_stored_step"
    """No similar source has a latent stored at K1 or before."""
    LOOKUP_TIMEOUT = "lookup_timeout"
    """Embedding or look-up took longer than its deadline."""
    LOOKUP_FAILED = "lookup_failed"
    """Embedding or look-up raised an error."""
    SOURCE_MISSING = "source_missing"
    """The source's latents are gone, or do not pass their checks."""


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
    """Start from the latent of `source_id` that enters step `boundaries.k1`; or, with a `reason`, from noise."""

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
    same_request: bool = False
    """Prompt and seed are both the source's: going on exactly gives the source's video, as the caller asked."""

    def __post_init__(self) -> None:
        if (self.source_id is None) != (self.boundaries.k1 == 0) or (self.source_id is None) != (
            self.reason is not None
        ):
            raise ValueError(
                "a plan has a source and k1 > 0, or neither and a reason, got "
                f"source_id={self.source_id}, k1={self.boundaries.k1}, reason={self.reason}"
            )

    @property
    def is_hit(self) -> bool:
        """Tell whether latents are reused."""
        return self.source_id is not None


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
    is_off: bool = False,
    prompt_exceeds_encoder: bool = False,
    forced_source_id: str | None = None,
) -> ReusePlan:
    """Choose the source and the boundaries of one request.

    `forced_source_id` is a remix: that source or none, at tau at least, whatever its score. `is_off` wins over it.
    """
    if is_off:
        return plan_miss(MissReason.OFF)
    if forced_source_id is not None:
        candidates = [_at_least_tau(c, stage_map.tau) for c in candidates if c.source_id == forced_source_id]
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
    is_forced = forced_source_id is not None
    return _best_plan(
        candidates, prompt=prompt, seed=seed, num_steps=num_steps, stage_map=stage_map, is_forced=is_forced
    )


def _at_least_tau(candidate: Candidate, tau: float) -> Candidate:
    """Let a remix's source count as similar enough; how similar beyond that is still its score."""
    score = candidate.matching_score
    return candidate if score is not None and score >= tau else dataclasses.replace(candidate, matching_score=tau)


def _best_plan(
    candidates: Sequence[Candidate], *, prompt: str, seed: int, num_steps: int, stage_map: StageMap, is_forced: bool
) -> ReusePlan:
    """Take the best-matching candidate that has a usable stored step; else tell what stopped the best one."""
    ranked = sorted(((_score(c), c) for c in candidates), key=lambda pair: (-pair[0], pair[1].source_id))
    stopped = plan_miss(MissReason.BELOW_THRESHOLD, matching_score=ranked[0][0])
    for score, candidate in ranked:
        if not score >= stage_map.tau:
            break
        allowed = stage_map.stage_boundaries(score, num_steps=num_steps)
        is_reroll = candidate.seed != seed and _words(candidate.prompt) == _words(prompt)
        kinds = change_kinds(align_diff(candidate.prompt, prompt))
        if is_reroll and not is_forced:  # a remix asks for what looks like its source
            kinds = (ChangeKind.REROLL,)
        lowered, gate = lower_boundaries(allowed, kinds, num_steps=num_steps)
        usable = [step for step in candidate.stored_steps if 0 < step <= lowered.k1]
        if usable:
            k1 = max(usable)
            return ReusePlan(
                boundaries=StageBoundaries(k1=k1, k2=k1),
                source_id=candidate.source_id,
                source_seed=candidate.seed,
                matching_score=candidate.matching_score,
                refresh_noise=is_reroll,
                same_request=candidate.seed == seed and candidate.prompt == prompt,
                change_kinds=gate.kinds,
                is_lowered=gate.is_lowered,
            )
        if candidate is ranked[0][1]:
            reason = _why_no_step(allowed.k1, lowered.k1)
            stopped = ReusePlan(
                boundaries=NO_REUSE,
                reason=reason,
                matching_score=score,
                change_kinds=gate.kinds,
                is_lowered=gate.is_lowered,
            )
    return stopped


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
