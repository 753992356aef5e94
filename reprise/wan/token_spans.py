"""Which text-encoder tokens stand for given words of a prompt: the ones that TGAA amplifies (T_diff of eq. 2).

A word is given by its place, so of two equal words the caller picks one, and a word may be several tokens. The prompt
is cleaned and cut exactly as `encode_prompt` does. Knows nothing about why words are chosen.
"""

import itertools
import re
from collections.abc import Sequence

from diffusers.pipelines.wan.pipeline_wan import prompt_clean

from reprise.wan.model import WanModel

Span = tuple[int, int]
"""First character, and the one behind the last."""


def token_indices(model: WanModel, prompt: str, spans: Sequence[Span]) -> tuple[int, ...]:
    """Give the places, rising, of all tokens that hold any character of the spans of `prompt`; blanks do not count.

    They are places in `encode_prompt(model, prompt).states_BLD`. Words that were cut off have none. Raises ValueError
    for a span outside the prompt.
    """
    for start, end in spans:
        if not 0 <= start < end <= len(prompt):
            raise ValueError(f"expected spans within the {len(prompt)} characters of the prompt, got {(start, end)}")
    text = prompt_clean(prompt)
    wanted = cleaned_spans(prompt, spans)
    with model.tokenizer_lock:
        tokens = model.tokenizer(
            text,
            max_length=model.preset.max_sequence_length,
            truncation=True,
            add_special_tokens=True,
            return_offsets_mapping=True,
        )
    held = [_without_blanks(text, span) for span in tokens.offset_mapping]  # of the end mark: none
    return tuple(i for i, token in enumerate(held) if any(_overlap(token, span) for span in wanted))


def cleaned_spans(prompt: str, spans: Sequence[Span]) -> list[Span]:
    """Find spans of a prompt again in what `prompt_clean` makes of it.

    Cleaning folds blanks and mends characters inside words (entities, broken encodings). A word that it changed counts
    as a whole. Should it ever join words, those around the place are found by counting from both ends, and the ones
    in between are not.
    """
    text = prompt_clean(prompt)
    if text == prompt:
        return list(spans)
    found: list[Span] = []
    for (word_start, word_end), (place_start, place_end) in _follow_words(prompt, text):
        for start, end in spans:
            head, tail = max(start, word_start), min(end, word_end)
            if head >= tail:
                continue
            is_same = prompt[word_start:word_end] == text[place_start:place_end]
            shift = place_start - word_start
            found.append((head + shift, tail + shift) if is_same else (place_start, place_end))
    return found


def _follow_words(prompt: str, text: str) -> list[tuple[Span, Span]]:
    """Pair the words of a prompt with their places in the cleaned text, as far as each word was cleaned by itself."""
    words = [(match.span(), prompt_clean(match.group()).split()) for match in re.finditer(r"\S+", prompt)]
    cleaned = [(match.span(), match.group()) for match in re.finditer(r"\S+", text)]
    places: dict[Span, Span] = {}
    for direction in (1, -1):
        left = iter(cleaned[::direction])
        for span, pieces in words[::direction]:
            taken = list(itertools.islice(left, len(pieces)))
            if [piece for _, piece in taken] != pieces[::direction]:
                break
            if taken:
                places.setdefault(span, (min(start for (start, _), _ in taken), max(end for (_, end), _ in taken)))
    return list(places.items())


def _without_blanks(text: str, span: Span) -> Span:
    start, end = span
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def _overlap(first: Span, second: Span) -> bool:
    return max(first[0], second[0]) < min(first[1], second[1])
