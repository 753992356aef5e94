"""A prompt as words with roles: which noun an adjective belongs to, who moves, what is where. No model, one pass.

A rough reading of English, good enough to tell "a red circle and a blue square" from its swap: errors are harmless as
long as equal wording is read alike in both prompts. Standard library only; knows nothing about what differs.
"""

import dataclasses
import enum
import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from reprise.chorus import english
from reprise.chorus.stemming import canonical_phrases, folded_stem, is_plural, stem, stems_of

_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters: scripts without spaces, where a character is taken for a word."""
_TOKEN: Final = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:[-'\u2019][^\W{_UNSPACED}]+)*|[^\w\s]")
_LOOK_AHEAD: Final = 8
"""Words after a preposition among which its noun is looked for."""
_LIGHT_VERBS: Final = stems_of(english.LIGHT_VERBS)
_DIRECTIONS: Final = stems_of(english.DIRECTIONS)
_MOTIONS: Final = frozenset(map(stem, english.MOTIONS))
"""Not folded: `rise` is a verb, and means the direction `up`."""
_SCENES: Final = stems_of(english.SCENES)
_BACKDROPS: Final = stems_of(english.BACKDROPS)
_NUMBERS: Final = stems_of(english.NUMBERS)
_ADJECTIVES: Final = stems_of(english.COLOURS | english.SIZES | english.NUMBERS)
_PREPOSITIONS: Final = english.PREPOSITIONS | english.RELATIONS


class Role(enum.StrEnum):
    """What a word does in its phrase."""

    HEAD = "head"
    """The noun a phrase is about."""
    MODIFIER = "modifier"
    """Before a head: adjectives, numbers, other nouns."""
    ACTION = "action"
    """A verb, its adverbs and directions, a negation."""
    RELATION = "relation"
    """A preposition that says where or when."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Characters `[start, stop)` of a prompt."""

    text: str
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PromptWord(Span):
    """A word that carries meaning; a fixed phrase such as `dark blue` is one."""

    stem: str
    """Equal for inflections and synonyms."""
    role: Role
    host: str | None
    """Stem of what it belongs to: a modifier's noun, an action's subject. None for a subject, or when not said."""
    is_scene: bool
    """It describes the place, the time or the background."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A noun with what precedes it, as places in `ParsedPrompt.words`; the noun is the last."""

    places: tuple[int, ...]
    is_main: bool
    """Not behind a preposition."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Phrase:
    """A clause without its prepositional phrases, or one of these, as places in `ParsedPrompt.words`."""

    places: tuple[int, ...]
    is_main: bool
    host: int | None
    """Place of what a prepositional phrase belongs to; None at the head of a clause, where it belongs to all of it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ParsedPrompt:
    """Words in order of the prompt, and how they group."""

    words: tuple[PromptWord, ...]
    hosts: tuple[int | None, ...]
    """Of every word the place of the one that its `host` is the stem of."""
    phrases: tuple[Phrase, ...]
    chunks: tuple[Chunk, ...]
    stems: frozenset[str]
    """Of all words."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A word or fixed phrase before its role is known; function words and punctuation too."""

    text: str
    start: int
    stop: int
    lower: str
    stem: str
    is_predicate: bool = False
    """A direction whose verb was left out."""


@functools.lru_cache(maxsize=1024)
def parse_prompt(prompt: str) -> ParsedPrompt:
    """Read a prompt. Never fails; a prompt without words has none."""
    reader = _Reader()
    for clause in _clauses(_without_light_words(_items(prompt))):
        reader.read(clause)
    return reader.parsed()


def _items(prompt: str) -> list[_Item]:
    """Split into words and marks, fixed phrases joined."""
    table = canonical_phrases()
    longest = max(map(len, table))
    matches = list(_TOKEN.finditer(prompt))
    lowers = [match[0].lower().replace("\u2019", "'") for match in matches]
    stems = [stem(lower) for lower in lowers]
    items: list[_Item] = []
    place = 0
    while place < len(matches):
        sizes = range(min(longest, len(matches) - place), 1, -1)
        size = next((size for size in sizes if tuple(stems[place : place + size]) in table), 1)
        start, stop = matches[place].start(), matches[place + size - 1].end()
        lower = lowers[place] if size == 1 else table[tuple(stems[place : place + size])]
        items.append(_Item(prompt[start:stop], start, stop, lower, folded_stem(lower)))
        place += size
    return items


def _without_light_words(items: Sequence[_Item]) -> list[_Item]:
    """Leave out what adds nothing here: `a video of` at the head, `moves` before `left`, `over` before a backdrop."""
    kept: list[_Item] = []
    is_verb_out = False
    for place, item in enumerate(items):
        rest = items[place + 1 : place + 1 + _LOOK_AHEAD]
        if item.lower in english.FRAMINGS and rest and rest[0].lower in ("of", "showing"):
            continue
        if item.lower in ("of", "showing") and place and items[place - 1].lower in english.FRAMINGS:
            continue
        if item.stem in _LIGHT_VERBS:
            after = next((other for other in rest if other.lower not in ("to", "the")), None)
            if after is not None and _is_course(after):
                is_verb_out = True
                continue
        if is_verb_out and _is_course(item):
            item, is_verb_out = dataclasses.replace(item, is_predicate=True), False
        if item.lower in english.PLAIN and _leads_to_backdrop(rest):
            continue
        if item.lower in english.RELATIONS and _leads_to_backdrop(rest):
            item = dataclasses.replace(item, lower="on", stem="on")
        kept.append(item)
    return kept


def _is_course(item: _Item) -> bool:
    return item.stem in _DIRECTIONS or item.stem == "still"


def _leads_to_backdrop(rest: Sequence[_Item]) -> bool:
    for item in rest:
        if _is_mark(item) or item.lower in _PREPOSITIONS or item.lower in english.CONJUNCTIONS:
            return False
        if item.stem in _BACKDROPS:
            return True
    return False


def is_uncovered(text: str) -> bool:
    """Tell whether a word is of a script that the lists say nothing about; a symbol is of none."""
    return any(character > "\u024f" and character.isalpha() for character in text)


def _is_mark(item: _Item) -> bool:
    """Tell punctuation; a symbol such as an emoji is a word."""
    return len(item.text) == 1 and not item.text.isalnum() and unicodedata.category(item.text) != "So"


def _clauses(items: Sequence[_Item]) -> Iterator[list[_Item]]:
    clause: list[_Item] = []
    for item in items:
        if _is_mark(item) or item.lower in english.CONJUNCTIONS:
            yield clause
            clause = []
        else:
            clause.append(item)
    yield clause


class _Reader:
    """Collects words, phrases and chunks clause by clause.

    State of a clause: its subject, the places of its main phrase, the prepositional phrase that is open if any, and
    the noun phrase that is open.
    """

    def __init__(self) -> None:
        self._words: list[PromptWord] = []
        self._phrases: list[Phrase] = []
        self._chunks: list[Chunk] = []
        self._hosts: list[int | None] = []
        self._subject: int | None = None
        self._last_head: int | None = None
        self._main: list[int] = []
        self._side: list[int] | None = None
        self._side_host: int | None = None
        self._open: list[_Item] = []

    def parsed(self) -> ParsedPrompt:
        """Give what was read."""
        stems = [None if host is None else self._words[host].stem for host in self._hosts]
        words = [dataclasses.replace(word, host=host) for word, host in zip(self._words, stems, strict=True)]
        return ParsedPrompt(
            words=tuple(words),
            hosts=tuple(self._hosts),
            phrases=tuple(self._phrases),
            chunks=tuple(self._chunks),
            stems=frozenset(word.stem for word in words),
        )

    def read(self, clause: Sequence[_Item]) -> None:
        """Read one clause: a main phrase and the prepositional phrases in it."""
        after_verb = False
        for item, following in zip(clause, (*clause[1:], None), strict=False):
            if item.lower == "of" and self._open and self._open[-1].stem in _NUMBERS:
                continue  # a pair of dancers: the pair counts them
            if item.lower in _PREPOSITIONS:
                self._close_chunk()
                if item.lower == "of" and self._subject_is_a_view():
                    self._subject = None
                    continue
                self._close_side()
                self._side = []
                self._side_host = self._last_head if item.lower in ("with", "of") else self._subject
                if item.lower in english.RELATIONS:
                    self._add(item, Role.RELATION, self._side_host)
                after_verb = False
            elif item.lower in english.FUNCTION_WORDS:
                self._close_chunk()
                if item.lower in english.AUXILIARIES:
                    self._close_side()
                after_verb = item.lower in english.AUXILIARIES or (after_verb and item.lower not in english.DETERMINERS)
            elif self._is_action(item, following, after_verb=after_verb):
                self._close_chunk()
                if item.is_predicate or stem(item.lower) in _MOTIONS or item.stem not in _DIRECTIONS:
                    self._close_side()
                self._add(item, Role.ACTION, self._subject)
                after_verb = True
            else:
                self._open.append(item)
        self._close_chunk()
        self._close_side()
        if self._main:
            self._phrases.append(Phrase(places=tuple(self._main), is_main=True, host=None))
        self._main, self._subject, self._last_head = [], None, None

    def _subject_is_a_view(self) -> bool:
        """Tell `a closeup of`: what it is about comes after."""
        is_last = self._side is None and self._subject is not None and self._subject == len(self._words) - 1
        return is_last and self._words[-1].text.lower() in english.STYLES

    def _close_side(self) -> None:
        """End a prepositional phrase, unless only its preposition has been read."""
        if self._side:
            self._phrases.append(Phrase(places=tuple(self._side), is_main=False, host=self._side_host))
        self._side = None

    def _add(self, item: _Item, role: Role, host: int | None, *, is_scene: bool = False) -> None:
        (self._main if self._side is None else self._side).append(len(self._words))
        span = {"start": item.start, "stop": item.stop}
        word = PromptWord(text=item.text, **span, stem=item.stem, role=role, host=None, is_scene=is_scene)
        self._words.append(word)
        self._hosts.append(host)

    def _close_chunk(self) -> None:
        """Give the words of the open noun phrase their roles."""
        if not self._open:
            return
        first, last = len(self._words), len(self._words) + len(self._open) - 1
        of_scene = self._side is not None and self._side_host is not None and self._words[self._side_host].is_scene
        is_scene = self._open[-1].stem in _SCENES or of_scene  # a beach with palm trees
        for item in self._open[:-1]:
            self._add(item, Role.MODIFIER, last, is_scene=is_scene)
        is_main = self._side is None
        self._add(self._open[-1], Role.HEAD, self._subject if is_main else self._side_host, is_scene=is_scene)
        self._chunks.append(Chunk(places=tuple(range(first, last + 1)), is_main=is_main))
        if is_main and self._subject is None:
            self._subject = last
        self._last_head = last
        self._open = []

    def _is_action(self, item: _Item, following: _Item | None, *, after_verb: bool) -> bool:
        if item.lower in english.NEGATIONS or item.stem == "still":
            return True
        if item.stem in _DIRECTIONS and stem(item.lower) not in _MOTIONS:
            return following is None or following.lower in english.FUNCTION_WORDS | english.RELATIONS
        if after_verb and not self._open:
            return item.lower in english.ADVERBS or item.lower.endswith("ly") or self._is_verb(item, following)
        has_noun = any(not _is_adjective(other) for other in self._open)
        has_head = not self._open and self._side is None and bool(self._main)
        is_manner = item.lower in english.ADVERBS and item.lower.endswith("ly")
        return (has_noun or has_head) and (is_manner or self._is_verb(item, following))

    def _is_verb(self, item: _Item, following: _Item | None) -> bool:
        if (item.stem in _SCENES and not item.lower.endswith("ed")) or item.lower in english.STYLES:
            return False
        if item.lower.endswith("ing") and stem(item.lower) != item.lower:
            return True
        has_object = following is not None and following.lower in english.DETERMINERS | english.NUMBERS
        ends_here = following is None or following.lower in english.FUNCTION_WORDS | english.RELATIONS
        if item.lower.endswith("ed") and ends_here:
            return True  # a car parked here, but not: a snow covered park
        if stem(item.lower) not in _MOTIONS:
            return has_object and item.lower.endswith("s")
        is_inflected = item.lower in english.IRREGULAR or item.lower.endswith(("s", "ed"))
        return is_inflected or has_object or not self._open or is_plural(self._open[-1].text)


def _is_adjective(item: _Item) -> bool:
    return item.stem in _ADJECTIVES or item.lower.endswith(english.ADJECTIVE_ENDINGS)
