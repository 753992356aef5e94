"""Words of a prompt to the text encoder's tokens, with the bundled tokenizer and two that split words."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from reprise.wan.model import WanModel, encode_prompt, load
from reprise.wan.presets import WEIGHTS, tiny
from reprise.wan.token_spans import Span, cleaned_spans, token_indices

LENGTH = 24
WORDS = ("turquoise", "caterpillar", "cat", "on", "a", "mat", "unseen")
PIECES = (
    "turq",
    "uoise",
    "cater",
    "pillar",
    "cat",
    "on",
    "a",
    "mat",
    "un",
    "seen",
    *"turqoisecaplnm",
    "<",
    ">",
    "&",
    ".",
)


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    """Give a tokenizer of the kind that UMT5 has: pieces with scores, a mark for the blank before a word."""
    pieces = list(dict.fromkeys(piece for name in PIECES for piece in ("\u2581" + name, name)))
    scores = [(piece, -1.0 - 5.0 * (len(piece) < 3)) for piece in ("\u2581", *pieces)]
    tokenizer = Tokenizer(models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *scores], unk_id=2))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return wrapped(tokenizer)


def byte_pairs() -> PreTrainedTokenizerFast:
    """Give a byte-level BPE; its merges are learnt from a few words, so that it splits the others."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["turn cat a cat on a mat on on a pill on"], trainer)
    return wrapped(tokenizer)


def bundled() -> Any:
    return AutoTokenizer.from_pretrained(WEIGHTS / "tiny" / "tokenizer", local_files_only=True)


TOKENIZERS = {"unigram": unigram(), "byte_pairs": byte_pairs(), "bundled": bundled()}


@pytest.fixture(scope="module")
def base(wan_folders: dict[str, pathlib.Path]) -> WanModel:
    preset = dataclasses.replace(
        tiny(),
        path=str(wan_folders["euler"]),
        sizes={"32x32": (32, 32)},
        default_size="32x32",
        max_sequence_length=LENGTH,
    )
    return load(preset)


def model_with(base: WanModel, name: str) -> WanModel:
    return dataclasses.replace(base, tokenizer=TOKENIZERS[name])


@pytest.fixture(params=TOKENIZERS)
def model(request: pytest.FixtureRequest, base: WanModel) -> WanModel:
    return model_with(base, request.param)


def text_of(model: WanModel, prompt: str, indices: Sequence[int]) -> str:
    """Read tokens back, with the ids that `encode_prompt` gives to the text encoder."""
    ids = model.tokenizer(prompt_clean(prompt), max_length=LENGTH, truncation=True, padding="max_length").input_ids
    text: str = model.tokenizer.decode([ids[i] for i in indices])
    return text.strip()


def span_of(prompt: str, word: str, occurrence: int = 0) -> Span:
    start = -1
    for _ in range(occurrence + 1):
        start = prompt.index(word, start + 1)
    return start, start + len(word)


def test_a_word_of_several_tokens_gives_all_of_them(model: WanModel) -> None:
    prompt = "a turquoise caterpillar on a mat"
    indices = token_indices(model, prompt, [span_of(prompt, "caterpillar")])
    assert len(indices) > 1
    assert indices == tuple(range(indices[0], indices[-1] + 1))
    assert text_of(model, prompt, indices) == "caterpillar"


def test_the_place_selects_among_equal_words(model: WanModel) -> None:
    prompt = "cat on a cat on a mat"
    first, second = (token_indices(model, prompt, [span_of(prompt, "cat", n)]) for n in (0, 1))
    assert max(first) < min(second)
    assert text_of(model, prompt, first) == text_of(model, prompt, second) == "cat"
    both = token_indices(model, prompt, [span_of(prompt, "cat", 1), span_of(prompt, "cat", 0)])
    assert both == (*first, *second)


@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    chosen=st.integers(0, 3),
)
def test_the_tokens_of_any_word_read_as_that_word(base: WanModel, name: str, words: list[str], chosen: int) -> None:
    model = dataclasses.replace(model_with(base, name), preset=dataclasses.replace(base.preset, max_sequence_length=99))
    chosen %= len(words)
    start = len(" ".join([*words[:chosen], ""]))
    prompt = " ".join(words)
    indices = token_indices(model, prompt, [(start, start + len(words[chosen]))])
    ids = model.tokenizer(prompt).input_ids
    assert model.tokenizer.decode([ids[i] for i in indices]).strip() == words[chosen]
    everything = token_indices(model, prompt, [(0, len(prompt))])
    others = [token for i, token in enumerate(ids) if i not in everything]
    assert model.tokenizer.decode(others).strip() == "</s>"  # all but blanks and the end mark


def test_part_of_a_word_gives_the_tokens_it_touches(base: WanModel) -> None:
    model, prompt = model_with(base, "unigram"), "a turquoise cat"
    start, end = span_of(prompt, "turquoise")
    head, tail = (token_indices(model, prompt, [span]) for span in ((start, start + 2), (end - 1, end)))
    assert text_of(model, prompt, head) == "turq"
    assert text_of(model, prompt, tail) == "uoise"


def test_a_blank_selects_nothing(model: WanModel) -> None:
    prompt = "a cat on"
    assert token_indices(model, prompt, [(1, 2)]) == ()
    assert token_indices(model, prompt, [(1, 6)]) == token_indices(model, prompt, [(2, 5)])
    assert token_indices(model, prompt, []) == ()


def test_words_that_were_cut_off_have_no_index(model: WanModel) -> None:
    prompt = "cat " * 30 + "mat"
    assert token_indices(model, prompt, [span_of(prompt, "mat")]) == ()
    assert token_indices(model, prompt, [span_of(prompt, "cat", 0)])
    kept = token_indices(model, prompt, [(0, len(prompt))])
    assert max(kept) == LENGTH - 2  # the last place holds the end mark


def test_indices_are_places_in_the_encoded_states(base: WanModel) -> None:
    # The conftest's tokenizer knows "red" and "blue" as one token each; a changed word changes no token before it in
    # the ids, and the index of the changed word is the first place where the ids differ.
    prompts = ["the red ball moves &amp;  over \n red sand", "the red ball moves &amp;  over \n blue sand"]
    spans = [span_of(prompts[0], "red", 1), span_of(prompts[1], "blue")]
    places = [token_indices(base, prompt, [span]) for prompt, span in zip(prompts, spans, strict=True)]
    ids = [base.tokenizer(prompt_clean(prompt)).input_ids for prompt in prompts]
    differing = tuple(i for i, (a, b) in enumerate(zip(*ids, strict=True)) if a != b)
    assert places == [differing, differing]
    assert max(differing) < encode_prompt(base, prompts[0]).num_tokens - 1


@pytest.mark.parametrize(
    ("prompt", "word", "expected"),
    [
        ("  a  red \n ball ", "red", "red"),
        ("  a  red \n ball ", "ball", "ball"),
        ("cat &amp;amp; red mat", "red", "red"),
        ("cat &amp;amp; red mat", "&amp;amp;", "&"),
        ("the \u201cred\u201d ball", "red", '"red"'),  # cleaning changes the quotes, so the word counts as a whole
        ("caf\u00c3\u00a9 red", "red", "red"),
        ("caf\u00c3\u00a9 red", "caf\u00c3\u00a9", "caf\u00e9"),
        ("red&nbsp;ball sand", "red", "red ball"),
        ("red&nbsp;ball sand", "sand", "sand"),
        ("\x07 red ball", "red", "red"),
        ("red ball,", "ball", "ball"),
    ],
)
def test_spans_survive_cleaning(prompt: str, word: str, expected: str) -> None:
    text = prompt_clean(prompt)
    assert [text[start:end] for start, end in cleaned_spans(prompt, [span_of(prompt, word)])] == [expected]


def test_where_cleaning_joins_words_their_neighbours_are_still_found() -> None:
    # A broken encoding that spans a blank is mended only with both words in view.
    prompt = "red voil\u00c3  la ball on red sand"
    text = prompt_clean(prompt)
    assert text == "red voil\u00e0 la ball on red sand"
    found = {
        word: [text[start:end] for start, end in cleaned_spans(prompt, [span_of(prompt, word)])]
        for word in ("voil\u00c3", "ball", "sand")
    }
    assert found == {"voil\u00c3": [], "ball": ["ball"], "sand": ["sand"]}
    assert cleaned_spans(prompt, [span_of(prompt, "red", 0)]) == [(0, 3)]
    assert cleaned_spans(prompt, [span_of(prompt, "red", 1)]) == [span_of(text, "red", 1)]


@given(words=st.lists(st.sampled_from(["red", "a", "&lt;", "ball,"]), min_size=1, max_size=8), chosen=st.integers(0, 7))
def test_blanks_and_entities_never_shift_a_word(words: list[str], chosen: int) -> None:
    chosen %= len(words)
    prompt, start = "\t" + " \n ".join(words), 1 + len(" \n ".join([*words[:chosen], ""]))
    [span] = cleaned_spans(prompt, [(start, start + len(words[chosen]))])
    text = prompt_clean(prompt)
    assert text[: span[0]].split() == [prompt_clean(word) for word in words[:chosen]]
    assert text[span[0] : span[1]] == prompt_clean(words[chosen])


@pytest.mark.parametrize("span", [(0, 0), (3, 2), (-1, 2), (0, 6)])
def test_span_outside_the_prompt_is_refused(base: WanModel, span: Span) -> None:
    with pytest.raises(ValueError, match=r"within the 5 characters of the prompt"):
        token_indices(base, "a cat", [span])
