"""The second gate: what kind of change the differing words make, and how far the boundaries K1 and K2 may then go.

Similarity only proposes: "two cats" and "three cats" score nearly 1. Extends Chorus section 3.1, whose K1 and K2
depend on the matching score alone. Standard library only; knows nothing about scores, stored latents or any model.
"""

import dataclasses
import enum
from collections.abc import Collection
from typing import Final

from reprise.chorus import english
from reprise.chorus.phrases import PromptWord, Role, is_uncovered, parse_prompt
from reprise.chorus.prompt_diff import TokenDiff
from reprise.chorus.stages import StageBoundaries
from reprise.chorus.stemming import is_plural, stem, stems_of


class ChangeKind(enum.StrEnum):
    """Every kind of change, from the most harmless to the one that forbids most; the list is closed."""

    NONE = "none"
    """Another wording of the same."""
    ATTRIBUTE = "attribute"
    """Style, material and whatever no other kind names."""
    COLOUR = "colour"
    SCENE = "scene"
    """Place, time, weather or background."""
    OBJECT = "object"
    """A thing goes or becomes another."""
    MOTION = "motion"
    """What something does, or how fast."""
    DIRECTION = "direction"
    """Left and right, up and down, before and behind."""
    SIZE = "size"
    NUMBER = "number"
    SWAP = "swap"
    """The same words belong to other things: who is red, who chases whom."""
    NEW_OBJECT = "new_object"
    """A thing comes, and none goes for it."""
    REROLL = "reroll"
    """No word, but the seed: another sample of the same is wanted."""
    NEGATION = "negation"


STRICTNESS: Final = {kind: rank for rank, kind in enumerate(ChangeKind)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cap:
    """The largest K1 and K2 that a kind of change allows, as shares of N."""

    k1: float
    k2: float


CAPS: Final = {
    ChangeKind.NONE: Cap(k1=1.0, k2=1.0),
    ChangeKind.ATTRIBUTE: Cap(k1=0.5, k2=0.8),
    ChangeKind.COLOUR: Cap(k1=0.5, k2=0.5),
    ChangeKind.SCENE: Cap(k1=0.5, k2=0.5),
    ChangeKind.OBJECT: Cap(k1=0.4, k2=0.8),
    ChangeKind.MOTION: Cap(k1=0.25, k2=0.5),
    ChangeKind.DIRECTION: Cap(k1=0.25, k2=0.5),
    ChangeKind.SIZE: Cap(k1=0.25, k2=0.5),
    ChangeKind.NUMBER: Cap(k1=0.1, k2=0.1),
    ChangeKind.SWAP: Cap(k1=0.1, k2=0.1),
    ChangeKind.NEW_OBJECT: Cap(k1=0.1, k2=0.1),
    ChangeKind.REROLL: Cap(k1=0.1, k2=0.1),
    ChangeKind.NEGATION: Cap(k1=0.0, k2=0.0),
}
"""Set by hand: how late a start from the source's latent can still be turned into the target; `benchmarks.late_starts`
measures it by kind. Denoising settles the layout first and surfaces last. How large, how many and which belongs to
which is fixed almost at once, then courses, then shapes; places and colours can still be turned at half of N. K2 goes
beyond K1 only where the change lies inside one object of the source, since stage 2 computes nothing else. Where things
are is settled first of all: one thing more, another number, and a re-roll, which is asked for to see it anew. A
negation allows nothing: text encoders hardly tell it, so the source's latent would decide.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateReason:
    """What the gate found and whether it lowered a boundary for it."""

    kinds: tuple[ChangeKind, ...]
    """Strictest first, never empty; the first decides K1."""
    is_lowered: bool


_NEGATIONS: Final = stems_of(english.NEGATIONS)
_NUMBERS: Final = stems_of(english.NUMBERS)
_COLOURS: Final = stems_of(english.COLOURS)
_SIZES: Final = stems_of(english.SIZES)
_DIRECTIONS: Final = stems_of(english.DIRECTIONS)
_MOTIONS: Final = frozenset(map(stem, english.MOTIONS))


def change_kinds(diff: TokenDiff) -> tuple[ChangeKind, ...]:
    """Name the kinds of change between two prompts, strictest first; `(NONE,)` when no word differs."""
    gone = {word.stem: word for word in diff.removed}
    repeated = {
        word.stem: is_plural(word.text) != is_plural(gone[word.stem].text) for word in diff.added if word.stem in gone
    }
    kinds = {ChangeKind.NUMBER if is_count else ChangeKind.SWAP for is_count in repeated.values()}
    added, removed = (
        [_kind_of(word) for word in words if not repeated.get(word.stem, False)] for words in (diff.added, diff.removed)
    )
    kinds |= {*added, *removed}
    if added.count(ChangeKind.OBJECT) > removed.count(ChangeKind.OBJECT):
        kinds = (kinds - {ChangeKind.OBJECT}) | {ChangeKind.NEW_OBJECT}
    return tuple(sorted(kinds or {ChangeKind.NONE}, key=STRICTNESS.__getitem__, reverse=True))


def _kind_of(word: PromptWord) -> ChangeKind:
    """Sort one differing word by what it is, and where no list has it by what it does in its phrase.

    A word in a script without lists counts as a thing.
    """
    lower = word.text.lower()
    if word.stem in _NEGATIONS:
        return ChangeKind.NEGATION
    if is_uncovered(lower):
        return ChangeKind.OBJECT
    if _is_count(word):
        return ChangeKind.NUMBER
    if word.stem in _DIRECTIONS:
        return ChangeKind.DIRECTION
    if word.stem in _COLOURS:
        return ChangeKind.COLOUR
    if word.stem in _SIZES and word.role is not Role.ACTION:
        return ChangeKind.SIZE
    if word.is_scene:
        return ChangeKind.SCENE
    if word.role is Role.ACTION or (word.role is Role.MODIFIER and stem(lower) in _MOTIONS):
        return ChangeKind.MOTION
    is_thing = word.role is Role.HEAD and lower not in english.STYLES and not lower.endswith(english.ADJECTIVE_ENDINGS)
    return ChangeKind.OBJECT if is_thing else ChangeKind.ATTRIBUTE


def _is_count(word: PromptWord) -> bool:
    """Tell numbers of things from years, episode numbers and units: `3 cats`, not `8 k` or `1990`."""
    if not word.text.isdecimal():
        return word.stem in _NUMBERS
    counts_things = word.role is Role.MODIFIER and word.host not in english.UNITS and not str(word.host).isdecimal()
    return counts_things and int(word.text) < 1000


def lower_boundaries(
    boundaries: StageBoundaries, kinds: Collection[ChangeKind], *, num_steps: int
) -> tuple[StageBoundaries, GateReason]:
    """Cut K1 and K2 to what every kind allows; never raise one.

    More kinds never allow more, and larger boundaries never come out smaller than smaller ones.
    """
    if not kinds:
        raise ValueError("kinds must not be empty: prompts without a difference are of kind none")
    if boundaries.k2 > num_steps:
        raise ValueError(f"k2={boundaries.k2} is beyond num_steps={num_steps}")
    ordered = tuple(sorted(set(kinds), key=STRICTNESS.__getitem__, reverse=True))
    lowered = StageBoundaries(
        k1=min(boundaries.k1, *(_steps(CAPS[kind].k1, num_steps) for kind in ordered)),
        k2=min(boundaries.k2, *(_steps(CAPS[kind].k2, num_steps) for kind in ordered)),
    )
    return lowered, GateReason(kinds=ordered, is_lowered=lowered != boundaries)


def region_limit(diff: TokenDiff, *, num_steps: int) -> int:
    """Give the last K2 at which what changes beside the region's object can still be turned.

    Stage 2 computes the region alone, so everywhere else the target starts from the source at K2, not at K1.
    """
    phrase = diff.object_phrase
    if phrase is None:
        return 0
    nouns = {word.stem for word in parse_prompt(phrase.text).words if word.role is Role.HEAD}
    beside = [
        word
        for word in diff.removed
        if not phrase.start <= word.start < phrase.stop and (word.role is Role.HEAD or word.host not in nouns)
    ]
    return min((_steps(CAPS[_kind_of(word)].k1, num_steps) for word in beside), default=num_steps)


def _steps(share: float, num_steps: int) -> int:
    return int(share * num_steps + 1e-9)  # 0.7 * 90 is a little under 63
