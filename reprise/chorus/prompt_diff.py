"""Which words of two prompts differ: the target's, that attention is to follow, and the source's, that a mask covers.

Chorus sections 3.2 (the tokens T_diff of equation 2) and 3.3.1 (the object phrase). `align_diff` finds them without a
model, `parse_diff` reads what a language model answered. Standard library only; knows nothing about tokenizers.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from reprise.chorus import english
from reprise.chorus.alignment import align_phrases, align_words, common_ends
from reprise.chorus.phrases import Chunk, ParsedPrompt, PromptWord, Role, Span, is_uncovered, parse_prompt
from reprise.chorus.stemming import is_plural, stems_of

MAX_ANSWER_CHARS: Final = 4_096
"""A longer answer of a model is not read."""
MAX_WORDS: Final = 400
"""Of a longer prompt only the words at both ends are compared, which keeps the time linear; text encoders read less."""
_DIRECTIONS: Final = stems_of(english.DIRECTIONS)
_STYLES: Final = stems_of(english.STYLES)
_BACKDROPS: Final = stems_of(english.BACKDROPS)
_CLOTHING: Final = stems_of(english.CLOTHING_VERBS)
_COUNTS: Final = stems_of(english.NUMBERS) | stems_of(english.NEGATIONS)


class UnknownWord(ValueError):
    """A model named a word that is not in the prompt."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenDiff:
    """Words in order of their prompt; articles and others without a meaning of their own are in none of the lists."""

    kept: tuple[PromptWord, ...]
    """Of the target, also in the source and there in the same part."""
    added: tuple[PromptWord, ...]
    """Of the target."""
    removed: tuple[PromptWord, ...]
    """Of the source."""
    object_phrase: Span | None
    """Of the source: the noun, with its adjectives, that differs most visibly. None when no object does."""


def align_diff(source: str, target: str) -> TokenDiff:
    """Compare two prompts word by word; the same two always give the same.

    Inflections, synonyms and moved phrases are no difference; an attribute that went to another object is.

    >>> diff = align_diff("a red circle left of a blue square", "a blue circle left of a red square")
    >>> [word.text for word in diff.removed], [word.text for word in diff.added], diff.object_phrase.text
    (['red', 'blue'], ['blue', 'red'], 'red circle')
    """
    old, new = parse_prompt(source), parse_prompt(target)
    pairs = _match(old, new)
    return _describe(source, old, new, pairs)


def _match(old: ParsedPrompt, new: ParsedPrompt) -> dict[int, int]:
    """Pair words of the target with the source's that they repeat: place in `new` to place in `old`.

    Phrases first, wherever they moved to; then what is left in order; then words that moved within their phrase.
    """
    if max(len(old.words), len(new.words)) > MAX_WORDS:
        return {b: a for a, b in common_ends([word.stem for word in old.words], [word.stem for word in new.words])}
    pairs = align_phrases(old, new)
    taken = set(pairs.values())
    left_old = [place for place in range(len(old.words)) if place not in taken]
    left_new = [place for place in range(len(new.words)) if place not in pairs]
    in_order = align_words(
        [old.words[place].stem for place in left_old],
        [new.words[place].stem for place in left_new],
        weights=[_weight(old.words[place]) for place in left_old],
    )
    pairs |= {left_new[j]: left_old[i] for i, j in in_order}
    moved = [left_new[j] for _, j in in_order if _changed_hands(old, new, pairs, left_new[j])]
    pairs = {place: other for place, other in pairs.items() if place not in moved}
    pairs |= _moved_within(old, new, pairs)
    return {place: other for place, other in pairs.items() if not _count_changed(old.words[other], new.words[place])}


def _weight(word: PromptWord) -> int:
    """Say how much it matters that a word is kept in place: nouns and directions are the last to count as moved."""
    return 3 if word.role is Role.HEAD or word.stem in _DIRECTIONS else 2


def _changed_hands(old: ParsedPrompt, new: ParsedPrompt, pairs: Mapping[int, int], place: int) -> bool:
    """Tell whether a word of the target belongs to another thing than in the source, and both prompts have the thing.

    Red went from the circle to the square, a hat from the man to the woman. Such a word passed its old or new owner;
    one that did not was only read differently, as when a noun was put in behind it.
    """
    before, after = old.hosts[pairs[place]], new.hosts[place]
    if before is None or after is None or pairs.get(after) == before:
        return False
    owners = [(anchor, other) for anchor, other in pairs.items() if other == before or anchor == after]
    return any((other < pairs[place]) != (anchor < place) for anchor, other in owners)


def _moved_within(old: ParsedPrompt, new: ParsedPrompt, pairs: Mapping[int, int]) -> dict[int, int]:
    """Pair words that changed their place and still belong to the same noun or subject.

    Not directions: `from left to right` is not `from right to left`.
    """
    taken = set(pairs.values())
    free = [place for place in range(len(old.words)) if place not in taken]
    moved: dict[int, int] = {}
    for place, word in enumerate(new.words):
        host = new.hosts[place]
        if place in pairs or host is None or host not in pairs or word.stem in _DIRECTIONS:
            continue
        same = [a for a in free if old.words[a].stem == word.stem and old.hosts[a] == pairs[host]]
        if same:
            moved[place] = same[0]
            free.remove(same[0])
    return moved


def _count_changed(before: PromptWord, after: PromptWord) -> bool:
    """Tell one thing from several: `a cat` and `cats`."""
    are_things = all(
        word.role is Role.HEAD and not word.is_scene and word.stem not in _STYLES for word in (before, after)
    )
    return are_things and is_plural(before.text) != is_plural(after.text)


def _describe(source: str, old: ParsedPrompt, new: ParsedPrompt, pairs: dict[int, int]) -> TokenDiff:
    matched = set(pairs.values())
    removed = [place for place in range(len(old.words)) if place not in matched]
    added = [place for place in range(len(new.words)) if place not in pairs]
    chunk = _divergent_chunk(old, new, pairs, removed=set(removed), added=added)
    return TokenDiff(
        kept=tuple(new.words[place] for place in sorted(pairs)),
        added=tuple(new.words[place] for place in added),
        removed=tuple(old.words[place] for place in removed),
        object_phrase=None if chunk is None else _phrase_of(source, old, chunk),
    )


def _divergent_chunk(
    old: ParsedPrompt, new: ParsedPrompt, pairs: dict[int, int], *, removed: Collection[int], added: Sequence[int]
) -> Chunk | None:
    """Choose the source's object that differs most: another noun before other attributes, a subject before the rest."""
    gains = _gaining_heads(new, pairs, added)
    best, best_rank = None, 0
    for chunk in old.chunks:
        if not _is_object(old, chunk):
            continue
        if chunk.places[-1] in removed:
            rank = 6
        elif any(place in removed for place in chunk.places):
            rank = 4
        elif chunk.places[-1] in gains:
            rank = 2
        else:
            continue
        if rank + chunk.is_main > best_rank:
            best, best_rank = chunk, rank + chunk.is_main
    return best


def _is_object(parsed: ParsedPrompt, chunk: Chunk) -> bool:
    head = parsed.words[chunk.places[-1]]
    is_quality = head.stem in _STYLES or head.text.lower().endswith(english.ADJECTIVE_ENDINGS)
    host = parsed.hosts[chunk.places[-1]]
    is_pattern = host is not None and parsed.words[host].stem in _BACKDROPS  # a background with stripes
    return not (head.is_scene or is_quality or is_pattern or _counts(head) or is_uncovered(head.text))


def object_phrases(prompt: str) -> tuple[Span, ...]:
    """Name the things of a prompt that can be pointed at, with their adjectives; not its place, time or style."""
    parsed = parse_prompt(prompt)
    return tuple(_phrase_of(prompt, parsed, chunk) for chunk in parsed.chunks if _is_object(parsed, chunk))


def _gaining_heads(new: ParsedPrompt, pairs: Mapping[int, int], added: Iterable[int]) -> frozenset[int]:
    """Find nouns of the source that the target describes further: new adjectives, something worn or held."""
    heads = {new.words[b].stem: a for b, a in pairs.items() if new.words[b].role is Role.HEAD}
    gains = set()
    for place in added:
        word = new.words[place]
        is_attribute = word.role is Role.MODIFIER or word.stem in _CLOTHING
        if is_attribute and word.stem not in _STYLES and word.host in heads:
            gains.add(heads[word.host])
    return frozenset(gains)


def _phrase_of(source: str, old: ParsedPrompt, chunk: Chunk) -> Span:
    """Give the chunk as text, without the words that count."""
    kept = [place for place in chunk.places if not _counts(old.words[place])] or [chunk.places[-1]]
    start, stop = old.words[kept[0]].start, old.words[chunk.places[-1]].stop
    return Span(text=source[start:stop], start=start, stop=stop)


def _counts(word: PromptWord) -> bool:
    return word.stem in _COUNTS or word.text.isdecimal()


def parse_diff(answer: str, *, source: str, target: str) -> TokenDiff:
    """Read a model's answer, `{"added": [...], "removed": [...], "object": "..." or null}`, words or phrases.

    Raises UnknownWord, a ValueError, which names the word that is not in the prompt it is said to be in, and ValueError
    when the answer is no such object. A model names words and not places: of a repeated word those places count that
    the aligner finds different.
    """
    fields = _fields(answer)
    old, new = parse_prompt(source), parse_prompt(target)
    guess = align_diff(source, target)
    removed = _places(fields["removed"], "removed", source, old, guess.removed)
    added = _places(fields["added"], "added", target, new, guess.added)
    phrase = fields["object"]
    return TokenDiff(
        kept=tuple(word for place, word in enumerate(new.words) if place not in added),
        added=tuple(new.words[place] for place in sorted(added)),
        removed=tuple(old.words[place] for place in sorted(removed)),
        object_phrase=_find(phrase, "object", source)[0] if isinstance(phrase, str) else None,
    )


def _fields(answer: str) -> dict[str, object]:
    if len(answer) > MAX_ANSWER_CHARS:
        raise ValueError(f"expected an answer of at most {MAX_ANSWER_CHARS} characters, got {len(answer)}")
    try:
        fields = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, got {answer[:80]!r}") from error
    if not isinstance(fields, dict) or fields.keys() != {"added", "removed", "object"}:
        raise ValueError(f"expected an object with added, removed and object, got {answer[:80]!r}")
    for name in ("added", "removed"):
        if not isinstance(fields[name], list) or not all(isinstance(entry, str) for entry in fields[name]):
            raise ValueError(f"expected {name} to be a list of words, got {str(fields[name])[:80]!r}")
    if not isinstance(fields["object"], str | None):
        raise ValueError(f"expected object to be a phrase or null, got {str(fields['object'])[:80]!r}")
    return fields


def _places(
    entries: object, name: str, prompt: str, parsed: ParsedPrompt, guess: Sequence[PromptWord]
) -> frozenset[int]:
    """Find the words that the entries name; of several places of one entry the first that is free and a guess."""
    assert isinstance(entries, list)
    taken: set[int] = set()
    for entry in entries:
        options = [
            [place for place, word in enumerate(parsed.words) if word.start < span.stop and span.start < word.stop]
            for span in _find(entry, name, prompt)
        ]
        free = [option for option in options if not taken.intersection(option)] or options
        guessed = [option for option in free if any(parsed.words[place] in guess for place in option)]
        taken.update((guessed or free)[0])
    return frozenset(taken)


def _find(entry: str, name: str, prompt: str) -> list[Span]:
    """Find a word or phrase in a prompt as whole words, whatever their case; at least one place, or UnknownWord."""
    pattern = r"\s+".join(map(re.escape, entry.split()))
    spans = [
        Span(text=match[0], start=match.start(), stop=match.end())
        for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", prompt, re.IGNORECASE)
        if match[0]
    ]
    if not spans:
        raise UnknownWord(f"expected every entry of {name} to occur in the prompt {prompt!r}, got {entry!r}")
    return spans
