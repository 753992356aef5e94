"""The phrase segmenter: shapes, and that padding, other phrases and a shift of the picture do not matter."""

import pathlib

import pytest
import torch

from reprise.chorus.segmenter import CELL, PhraseSegmenter, WrappedBlock


@pytest.fixture(scope="module")
def model() -> PhraseSegmenter:
    torch.manual_seed(0)
    model: PhraseSegmenter = PhraseSegmenter(vocab_size=20, channels=16, num_blocks=2, text_channels=8).eval()
    for block in model.modules():
        if isinstance(block, WrappedBlock):  # an untrained one is the identity
            torch.nn.init.normal_(block.conv2.weight, std=0.1)
    return model


FRAMES = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1
TOKENS = torch.tensor([[5, 6, 1, 0], [7, 1, 0, 0], [8, 9, 10, 1]]).expand(2, -1, -1)


def test_every_phrase_of_every_frame_has_pixels_and_a_verdict(model: PhraseSegmenter) -> None:
    masks, presence = model(FRAMES, TOKENS)
    assert masks.shape == (2, 3, 16, 24)
    assert presence.shape == (2, 3)


def test_phrases_and_padding_do_not_touch_each_other(model: PhraseSegmenter) -> None:
    masks, presence = model(FRAMES, TOKENS)
    wider = torch.nn.functional.pad(TOKENS[:, 1:2], (0, 5))
    alone_masks, alone_presence = model(FRAMES, wider)
    # The same sums in a smaller batch.
    torch.testing.assert_close(alone_masks, masks[:, 1:2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone_presence, presence[:, 1:2], rtol=1e-4, atol=1e-5)


def test_phrases_differ_by_their_words_and_by_which_words_meet(model: PhraseSegmenter) -> None:
    codes = model.encode_phrases(torch.tensor([[5, 6, 7, 1], [5, 6, 8, 1], [6, 5, 7, 1]]))
    assert (codes[0] - codes[1]).abs().max() > 1e-3
    assert (codes[0] - codes[2]).abs().max() > 1e-3


def test_a_picture_shifted_around_its_edges_gives_a_shifted_mask(model: PhraseSegmenter) -> None:
    shift = (2 * CELL, -3 * CELL)
    masks, presence = model(FRAMES, TOKENS)
    moved_masks, moved_presence = model(torch.roll(FRAMES, shift, (2, 3)), TOKENS)
    torch.testing.assert_close(moved_masks, torch.roll(masks, shift, (2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved_presence, presence, rtol=1e-4, atol=1e-5)


def test_a_phrase_without_words_is_no_error(model: PhraseSegmenter) -> None:
    masks, presence = model(FRAMES, torch.zeros(2, 1, 3, dtype=torch.long))
    assert masks.isfinite().all()
    assert presence.isfinite().all()


def test_sides_must_be_whole_cells(model: PhraseSegmenter) -> None:
    with pytest.raises(ValueError, match=r"multiples of 4, got frames of 16x23"):
        model(FRAMES[..., :23], TOKENS)


def test_a_saved_model_is_the_same_model(model: PhraseSegmenter, tmp_path: pathlib.Path) -> None:
    model.save_pretrained(tmp_path)
    again = PhraseSegmenter.from_pretrained(tmp_path, local_files_only=True, use_safetensors=True).eval()
    assert torch.equal(again(FRAMES, TOKENS)[0], model(FRAMES, TOKENS)[0])
