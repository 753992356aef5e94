"""Which objects a prompt names: the phrases whose masks are made when a source is stored (Chorus, 3.3.1).

The same reading of the prompt that the comparison uses, so that the object that later turns out to differ is among
those that have a mask. Standard library only; knows nothing about pixels.
"""

from collections.abc import Iterable

from reprise.chorus import english, prompt_diff
from reprise.chorus.stemming import folded_stem


def object_phrases(prompt: str) -> tuple[str, ...]:
    """Give the noun phrases of a prompt that can be looked for in its video, each once, in order of the prompt.

    They are of lower case and have no article or number. Never fails; a prompt without nouns gives none.

    >>> object_phrases("A spotted dog runs beside a man with two red balloons, on a beach, cinematic lighting")
    ('spotted dog', 'man', 'red balloons')
    """
    return tuple(dict.fromkeys(_plain(span.text) for span in prompt_diff.object_phrases(prompt)))


def match_phrase(wanted: str, phrases: Iterable[str]) -> str | None:
    """Find the phrase that means the same object as `wanted`; None when there is none, or no telling which.

    Equal text, else of the same noun and one says all the other says; of several, the one that differs least.

    >>> match_phrase("the spotted dog", ("man", "large spotted dog", "red balloons"))
    'large spotted dog'
    >>> match_phrase("star", ("red star", "blue star")) is None
    True
    """
    phrases = tuple(phrases)
    if _plain(wanted) in phrases:
        return _plain(wanted)
    words = _stems(wanted)
    distances: dict[str, int] = {}
    for phrase in phrases:
        other = _stems(phrase)
        if words and other and words[-1] == other[-1] and (set(words) <= set(other) or set(other) <= set(words)):
            distances[phrase] = abs(len(other) - len(words))
    nearest = [phrase for phrase, distance in distances.items() if distance == min(distances.values())]
    return nearest[0] if len(nearest) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _stems(phrase: str) -> list[str]:
    return [folded_stem(word) for word in _plain(phrase).split() if word not in english.DETERMINERS]
