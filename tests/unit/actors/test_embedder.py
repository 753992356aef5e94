"""Prompt embeddings by open_clip: the bundled model, and another one from a folder."""

import concurrent.futures
import json
import pathlib
import shutil

import numpy as np
import open_clip
import pytest
import torch
from numpy.typing import NDArray
from open_clip.model import CLIPTextCfg, CLIPVisionCfg
from safetensors.torch import load_file, save_file

from actors.embedder import EmbedderConfig, EmbedderReplica, Embedding
from actors.engines.open_clip import OpenClipEmbedder
from reprise.wan.presets import WEIGHTS, tiny

FOLDER = WEIGHTS / "tiny_clip"
FILE = "open_clip_model.safetensors"
PROMPT = "a large red circle moves right over a blue background"


@pytest.fixture(scope="module")
def bundled() -> OpenClipEmbedder:
    return OpenClipEmbedder(f"local-dir:{FOLDER}")


def vector_of(embedding: Embedding) -> NDArray[np.float32]:
    return np.frombuffer(embedding.vector, np.float32)


def test_a_prompt_becomes_the_same_unit_vector_each_time(bundled: OpenClipEmbedder) -> None:
    replica = EmbedderReplica(EmbedderConfig(model="unused"), bundled)
    one, two = replica.embed(PROMPT), replica.embed(PROMPT)
    assert one == two
    assert one.is_whole
    assert vector_of(one).shape == (replica.tag.dim,)
    assert np.linalg.norm(vector_of(one)) == pytest.approx(1.0, abs=1e-5)


def test_near_prompts_are_nearer_than_far_ones(bundled: OpenClipEmbedder) -> None:
    source, near, far = (
        bundled.embed(text)
        for text in (PROMPT, PROMPT.replace("large", "big"), "a white square rests on a purple gradient backdrop")
    )
    assert source @ near > tiny().tau > source @ far


def test_a_long_prompt_does_not_fit_and_is_embedded_all_the_same(bundled: OpenClipEmbedder) -> None:
    long = " ".join([PROMPT] * 6)
    assert bundled.fits(PROMPT)
    assert not bundled.fits(long)
    assert np.isfinite(bundled.embed(long)).all()


def test_threads_do_not_disturb_each_other(bundled: OpenClipEmbedder) -> None:
    """The deployment embeds several prompts at a time."""
    replica = EmbedderReplica(EmbedderConfig(model="unused"), bundled)
    prompts = [f"a red circle and {number} stars" for number in range(40)]
    expected = [replica.embed(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(replica.embed, prompts)) == expected


def test_other_weights_have_another_tag(bundled: OpenClipEmbedder, tmp_path: pathlib.Path) -> None:
    tags = {bundled.tag}
    for number, name in enumerate(("text_projection", "token_embedding.weight")):
        folder = tmp_path / str(number) / FOLDER.name
        shutil.copytree(FOLDER, folder)
        weights = load_file(folder / FILE)
        weights[name] = weights[name] * 1.01
        save_file(weights, folder / FILE)
        tags.add(OpenClipEmbedder(f"local-dir:{folder}").tag)
    assert len(tags) == 3
    assert {(tag.name, tag.dim) for tag in tags} == {("tiny_clip", 128)}


def test_images_do_not_matter_to_the_tag(bundled: OpenClipEmbedder, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / FOLDER.name
    shutil.copytree(FOLDER, folder)
    weights = load_file(folder / FILE)
    save_file({name: w * 2 if name.startswith("visual.") else w for name, w in weights.items()}, folder / FILE)
    assert OpenClipEmbedder(f"local-dir:{folder}").tag == bundled.tag


@pytest.fixture(scope="module")
def plain_clip(tmp_path_factory: pytest.TempPathFactory) -> OpenClipEmbedder:
    """A model of the usual architecture and vocabulary, tiny and random, from a folder."""
    folder = tmp_path_factory.mktemp("clip") / "plain"
    folder.mkdir()
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"model_cfg": {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = open_clip.CLIP(24, CLIPVisionCfg(**vision), CLIPTextCfg(**text))
    save_file({name: weights.contiguous() for name, weights in model.state_dict().items()}, folder / FILE)
    return OpenClipEmbedder(f"local-dir:{folder}")


def test_another_model_loads_from_a_folder(plain_clip: OpenClipEmbedder) -> None:
    assert (plain_clip.tag.name, plain_clip.tag.dim) == ("plain", 24)
    assert np.linalg.norm(plain_clip.embed(PROMPT)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("num_words", "fits"), [(1, True), (14, True), (15, False), (40, False)])
@pytest.mark.parametrize("word", ["cat", "!"])
def test_the_last_token_that_fits_is_the_one_before_the_end_mark(
    plain_clip: OpenClipEmbedder, word: str, num_words: int, fits: bool
) -> None:
    # In CLIP's vocabulary the exclamation mark is token 0, which also pads.
    assert plain_clip.fits(" ".join(["cat", *[word] * (num_words - 1)])) is fits
