"""Folding inflections and synonyms of English words onto one stem, by rules. Standard library only."""

import functools
import re

from reprise.chorus import english


@functools.lru_cache(maxsize=16384)
def stem(word: str) -> str:
    """Fold an inflected word of lower case onto its base, roughly: `moving`, `moved` and `moves` are one.

    The result need not be a word; it only has to be equal for forms of one word.
    """
    word = re.sub(r"'s?$", "", word)
    if word in english.IRREGULAR:
        return _without_e(english.IRREGULAR[word])
    if len(word) > 3:
        word = _singular(word)
        for ending in ("ing", "ed"):
            base = word.removesuffix(ending)
            if base != word and len(base) > 1 and re.search(r"[aeiouy]", base) and not base.endswith("e"):
                word = _restored(base)
                break
    return _without_e(word)


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if re.search(r"(ss|sh|ch|x|zz)es$", word):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _restored(base: str) -> str:
    """Undo what `-ing` and `-ed` did to the end of a verb: running, moving."""
    if len(base) > 2 and base[-1] == base[-2]:
        return base[:-1] if base[-1] not in "lsz" else base
    if re.fullmatch(r"[^aeiouy]*[aeiou][^aeiouywx]", base):
        return base + "e"
    return base


def _without_e(word: str) -> str:
    """Drop a silent e, except after one vowel and consonant, where it tells `plane` from `plan`."""
    if word.endswith("ie"):
        return word[:-2] + "y"
    is_silent = len(word) > 4 and word.endswith("e") and not re.fullmatch(r"[^aeiouy]*[aeiouy][^aeiouy]e", word)
    return word[:-1] if is_silent else word


def is_plural(text: str) -> bool:
    """Tell whether a noun looks like more than one."""
    lower = text.lower()
    return lower in english.PLURALS or (len(lower) > 3 and lower.endswith("s") and _singular(lower) != lower)


@functools.cache
def canonical_phrases() -> dict[tuple[str, ...], str]:
    """Map the stems of every synonym, a fixed phrase as several, to the word that stands for their group."""
    table: dict[tuple[str, ...], str] = {}
    for group in english.SYNONYMS:
        for entry in group:
            table.setdefault(tuple(map(stem, entry.split())), group[0])
    return table


def folded_stem(word: str) -> str:
    """Give the stem of a word of lower case, its synonyms folded."""
    base = stem(word)
    canonical = canonical_phrases().get((base,))
    return base if canonical is None else stem(canonical)


def stems_of(words: frozenset[str]) -> frozenset[str]:
    """Give the folded stems of a word list."""
    return frozenset(map(folded_stem, words))
