"""Pairing equal phrases and words of two prompts. Standard library only; knows nothing about what a word means.

Phrases may move, words may not: what a moved word would belong to is for the caller to judge.
"""

from collections.abc import Sequence
from typing import Final

from reprise.chorus.phrases import ParsedPrompt, Phrase, Role

SHIFT: Final = 2
"""Cost of taking a word out or putting one in."""
REPLACE: Final = 3


def align_phrases(old: ParsedPrompt, new: ParsedPrompt) -> dict[int, int]:
    """Pair the words of phrases wherever they stand: place in `new` to place in `old`.

    First phrases that are equal as a whole, then those about the same thing, word by word. Of several a phrase that
    stayed where it was is taken before one that moved.
    """
    free_old, free_new = list(enumerate(old.phrases)), list(enumerate(new.phrases))
    pairs: dict[int, int] = {}
    for is_like in (_is_equal, _is_about_the_same):
        for rank, phrase in tuple(free_new):
            alike = [(n, other) for n, other in free_old if _may_pair(old, other, new, phrase)]
            alike = [(n, other) for n, other in alike if is_like(old, other, new, phrase)]
            if alike:
                number, other = min(alike, key=lambda found: abs(found[0] - rank))
                free_old.remove((number, other))
                free_new.remove((rank, phrase))
                inner = align_words(_stems(old, other), _stems(new, phrase))
                pairs.update((phrase.places[j], other.places[i]) for i, j in inner)
    return pairs


def _may_pair(old: ParsedPrompt, phrase: Phrase, new: ParsedPrompt, other: Phrase) -> bool:
    """Tell whether two phrases play the same part: of the same thing, or of one that was replaced by the other.

    At the head of a clause a phrase may belong to anything.
    """
    if phrase.host is None or other.host is None:
        return phrase.is_main == other.is_main
    before, after = old.words[phrase.host].stem, new.words[other.host].stem
    return before == after or (before not in new.stems and after not in old.stems)


def _is_equal(old: ParsedPrompt, phrase: Phrase, new: ParsedPrompt, other: Phrase) -> bool:
    return _stems(old, phrase) == _stems(new, other)


def _is_about_the_same(old: ParsedPrompt, phrase: Phrase, new: ParsedPrompt, other: Phrase) -> bool:
    """Compare the first noun: the subject of a clause, or what a preposition leads to."""
    heads = [
        next((words[place].stem for place in places if words[place].role is Role.HEAD), None)
        for words, places in ((old.words, phrase.places), (new.words, other.places))
    ]
    return heads[0] is not None and heads[0] == heads[1]


def _stems(prompt: ParsedPrompt, phrase: Phrase) -> list[str]:
    return [prompt.words[place].stem for place in phrase.places]


def align_words(
    old: Sequence[str], new: Sequence[str], *, weights: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Pair equal words in order, as places in `old` and `new`, by the cheapest edit of the one into the other.

    Of equally cheap edits the one whose kept words of `old` weigh most. A replacement costs less than taking a word out
    and another in, so words stay where they stand: in "cat chases dog" and "dog chases cat" it is the verb.
    """
    weights = weights or [1] * len(old)
    ends = common_ends(old, new)
    head = sum(a == b == n for n, (a, b) in enumerate(ends))
    stop_a, stop_b = len(old) - len(ends) + head, len(new) - len(ends) + head
    inner = _edit_path(old[head:stop_a], new[head:stop_b], weights[head:stop_a])
    return [*ends[:head], *((head + i, head + j) for i, j in inner), *ends[head:]]


def common_ends(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Pair the equal words at the beginning and, of the rest, those at the end."""
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    return [*((n, n) for n in range(head)), *((len(old) - n, len(new) - n) for n in range(tail, 0, -1))]


def _edit_path(a: Sequence[str], b: Sequence[str], weights: Sequence[int]) -> list[tuple[int, int]]:
    """Give the pairs of the best path through the table of edit costs; a cost is (edits, -weight kept)."""
    costs = [[(SHIFT * j, 0) for j in range(len(b) + 1)]]
    for i, (word, weight) in enumerate(zip(a, weights, strict=True), 1):
        above, row = costs[-1], [(SHIFT * i, 0)]
        for j, other in enumerate(b, 1):
            edits, kept = above[j - 1]
            across = (edits, kept - weight) if word == other else (edits + REPLACE, kept)
            row.append(min(across, (above[j][0] + SHIFT, above[j][1]), (row[-1][0] + SHIFT, row[-1][1])))
        costs.append(row)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        edits, kept = costs[i - 1][j - 1]
        if a[i - 1] == b[j - 1] and costs[i][j] == (edits, kept - weights[i - 1]):
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif costs[i][j] == (edits + REPLACE, kept):
            i, j = i - 1, j - 1
        elif costs[i][j] == (costs[i - 1][j][0] + SHIFT, costs[i - 1][j][1]):
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
