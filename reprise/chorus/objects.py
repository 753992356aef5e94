"""Which objects a prompt names: the phrases whose masks are made when a source is stored (Chorus, 3.3.1).

A noun phrase is read as a run of words between function words, punctuation and verbs; no model, one pass. It errs on
the side of a phrase too many, which costs a look for something that is not there, off the critical path. Standard
library only; knows nothing about a second prompt or about pixels.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_PHRASE_WORDS: Final = 6
"""Of a longer run only the last words are kept: the noun and what is nearest to it."""
_TOKEN: Final = re.compile(r"[^\W_]+(?:[-'\u2019][^\W_]+)*|[^\w\s]")
_LETTERS: Final = re.compile(r"[A-Za-z\u00c0-\u024f]")
_OPENERS: Final = _words(
    "a an the this that these those his her its their our my your another each every some any no all both several many "
    "few one two three four five six seven eight nine ten dozen"
)
_STOPS: Final = _OPENERS | _words(
    "i you he she it we they him them us me who whom whose which what where when while as than then there here if so "
    "and or but nor not of in on at by to from with without into onto over under above below between behind beside "
    "near through across along around against toward towards during before after up down off out about inside outside "
    "upon within among beyond past via like for per is are was were be been being am do does did has have had having "
    "can could will would shall should may might must left right forward backward backwards forwards away together "
    "alone very too also just only almost still again slowly quickly back next don't doesn't isn't aren't"
)
_ADJECTIVES: Final = _words(
    "red green blue yellow purple orange cyan white black gray grey brown pink golden silver gold scarlet violet "
    "turquoise crimson beige dark light bright pale small little tiny large big huge giant medium tall short long old "
    "young new wet dry hot cold round fluffy furry cute beautiful pretty happy sad wooden metal metallic shiny wild "
    "empty full spotted striped plain elderly fat thin strong heavy fast slow modern ancient colorful colourful"
)
_VERBS: Final = _words(
    "run walk move slide drift rise fall rest stay go come fly swim jump hop leap sit stand lie ride drive play dance "
    "sing eat drink look watch stare wear hold carry hang float turn spin rotate roll bounce climb crawl chase follow "
    "cross enter leave open close pass pull push throw catch kick hit shoot shine glow burn melt grow bloom blow flow "
    "wave smile laugh talk speak read write paint draw cook sleep wake work fight explode surf ski skate race travel "
    "wander stroll gallop sail land take make give get put show face lead fill cover surround emerge appear disappear "
    "transform become perform do begin start stop swing sway feed bark zoom pan pour splash dive fetch pick lift point "
    "lean kneel ran flew swam fell sat stood rode drove ate wore held threw caught sang lay"
)
_PARTICIPLES: Final = _words(
    "made seen known shown worn held taken born broken driven eaten written drawn dressed filled"
)
_NOUNS: Final = _words(
    "building ceiling wedding painting king wing string spring butterfly dragonfly firefly family lily jelly belly bed "
    "shed sled reed seed table vegetable cable stable"
)
"""They look like something else."""
_ONE: Final = _words("a an one this each every another")
_NOT_OBJECTS: Final = _words(
    "background backdrop foreground scene scenery video animation movie film clip footage shot view camera close-up "
    "closeup angle photo photograph photography picture image portrait painting illustration render rendering style "
    "quality resolution lighting light lights detail details realistic cinematic 4k 8k hd uhd hdr 3d 2d motion "
    "slow-motion time day night morning evening sunset sunrise dawn dusk winter summer autumn group pair couple bunch "
    "lot kind type set number side middle center centre top bottom front part way thing something someone anyone "
    "everything stripes gradient pattern color colour mood atmosphere artstation octane unreal engine"
)


class _Word(NamedTuple):
    start: int
    stop: int
    lower: str


def object_phrases(prompt: str) -> tuple[str, ...]:
    """Give the noun phrases of a prompt that can be looked for in its video, each once, in order of the prompt.

    They are of lower case and have no article or number. Never fails; a prompt without nouns gives none.

    >>> object_phrases("A spotted dog runs beside a man with two red balloons, on a beach, cinematic lighting")
    ('spotted dog', 'man', 'red balloons', 'beach')
    """
    tokens = [
        _Word(match.start(), match.end(), match[0].lower().replace("\u2019", "'")) for match in _TOKEN.finditer(prompt)
    ]
    runs: list[list[_Word]] = [[]]
    opener, after_verb = "", False
    for place, token in enumerate(tokens):
        word, run = token.lower, runs[-1]
        following = tokens[place + 1].lower if place + 1 < len(tokens) else ""
        if _joins_adjectives(word, following, run):
            continue
        is_verb = _is_verb(word, following, run, opener) if run else not (opener or after_verb) and _is_bare_verb(word)
        if is_verb or word in _STOPS or not _LETTERS.search(word):
            runs.append([])
            opener, after_verb = word if word in _OPENERS else "", is_verb
        else:
            run.append(token)
    return tuple(dict.fromkeys(_text_of(prompt, run) for run in runs if run and _is_object(run[-1].lower)))


def match_phrase(wanted: str, phrases: Iterable[str]) -> str | None:
    """Find the phrase that means the same object as `wanted`, or None: of the same noun, one says all the other says.

    >>> match_phrase("the spotted dog", ("man", "large spotted dog", "red balloons"))
    'large spotted dog'
    >>> match_phrase("red star", ("blue star",)) is None
    True
    """
    words = [word for word in wanted.lower().replace("\u2019", "'").split() if word not in _OPENERS]
    fits = [phrase for phrase in phrases if words and _same_object(words, phrase.split())]
    return max(fits, key=lambda phrase: -abs(len(phrase.split()) - len(words)), default=None)


def _same_object(one: list[str], other: list[str]) -> bool:
    return one[-1] == other[-1] and (set(one) <= set(other) or set(other) <= set(one))


def _joins_adjectives(word: str, following: str, run: list[_Word]) -> bool:
    """Tell the `and` of `black and white cat` and the comma of `large, red car`."""
    only_adjectives = bool(run) and all(_is_adjective(other.lower) for other in run)
    return word in ("and", ",") and only_adjectives and _is_adjective(following)


def _is_adjective(word: str) -> bool:
    return word in _ADJECTIVES or ("-" in word and word.endswith(("ed", "ing")))


def _is_verb(word: str, following: str, run: list[_Word], opener: str) -> bool:
    """Tell whether a word inside a run ends it: the verb of the noun, or what the noun does or had done to it."""
    if _is_adjective(run[-1].lower) or _is_adjective(word):
        return False
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "'s")) and opener in _ONE:
        return _is_listed_verb(word) or following in _STOPS or not following.isalnum()
    return _is_listed_verb(word) or word in _PARTICIPLES or (word.endswith(("ing", "ed", "ly")) and _is_bare_verb(word))


def _is_bare_verb(word: str) -> bool:
    """Tell a verb that no noun of its own precedes."""
    return _is_listed_verb(word) or (word.endswith(("ing", "ed", "ly")) and len(word) > 4 and word not in _NOUNS)


def _is_listed_verb(word: str) -> bool:
    """Tell a form of a listed verb."""
    bases = {word}
    for ending in ("s", "es", "ing", "ed", "d"):
        base = word.removesuffix(ending)
        if base != word:
            bases |= {base, base + "e", base[:-1] if base[-1:] == base[-2:-1] else base}
    if word.endswith(("ies", "ied")):
        bases.add(word[:-3] + "y")
    return not bases.isdisjoint(_VERBS)


def _is_object(head: str) -> bool:
    is_attribute = _is_adjective(head) or head.endswith(("ed", "ly", "ous", "ful", "less", "istic", "able"))
    return head not in _NOT_OBJECTS and len(head) > 1 and head[0].isalpha() and (head in _NOUNS or not is_attribute)


def _text_of(prompt: str, run: list[_Word]) -> str:
    kept = run[-MAX_PHRASE_WORDS:]
    return " ".join(prompt[kept[0].start : kept[-1].stop].lower().split())
