"""Grounding DINO and SAM 2: the real loading code on tiny random checkpoints in the layout of the published ones.

Random weights find random things; the threshold decides how many boxes count.
"""

import json
import pathlib

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

if not all(hasattr(transformers, name) for name in ("GroundingDinoForObjectDetection", "Sam2Model", "Sam2VideoModel")):
    pytest.skip("this version of transformers has no Grounding DINO or no SAM 2", allow_module_level=True)

from actors.engines import grounded_sam
from actors.engines.grounded_sam import GroundedSam
from actors.mask_generator import MaskEngineName, MaskGeneratorConfig, MaskGeneratorReplica
from reprise.chorus.mask_codec import unpack_mask

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "red", "star", "dog", "?")
SIDE = 64
FRAMES = np.random.default_rng(0).integers(0, 256, (3, 48, 80, 3), np.uint8)


def save_detector(folder: pathlib.Path) -> None:
    torch.manual_seed(0)
    backbone = transformers.SwinConfig(
        image_size=SIDE,
        embed_dim=12,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=["stage2", "stage3", "stage4"],
    )
    text = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    config = transformers.GroundingDinoConfig(
        backbone_config=backbone,
        text_config=text,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,  # transformers ties the heads of the later ones to the first
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=6,
        max_text_len=32,
        encoder_n_points=2,
        decoder_n_points=2,
    )
    transformers.GroundingDinoForObjectDetection(config).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab={word: index for index, word in enumerate(WORDS)}).save_pretrained(folder)
    # The least size whose coarsest of four levels has more than one cell.
    transformers.GroundingDinoImageProcessor(size={"shortest_edge": 128, "longest_edge": 160}).save_pretrained(folder)


def sam_parts() -> dict[str, object]:
    backbone = transformers.Sam2HieraDetConfig(
        hidden_size=12,
        image_size=[SIDE, SIDE],
        window_positional_embedding_background_size=[4, 4],
        blocks_per_stage=[1, 1, 1, 1],
        embed_dim_per_stage=[12, 24, 48, 96],
        num_attention_heads_per_stage=[1, 1, 2, 2],
        window_size_per_stage=[4, 4, 2, 2],
        global_attention_blocks=[],
    )
    vision = transformers.Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[96, 48, 24, 12],
        backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
        fpn_hidden_size=32,
    )
    prompts = transformers.models.sam2.configuration_sam2.Sam2PromptEncoderConfig(
        hidden_size=32, image_size=SIDE, patch_size=16, mask_input_channels=4
    )
    decoder = transformers.models.sam2.configuration_sam2.Sam2MaskDecoderConfig(
        hidden_size=32, mlp_dim=32, num_attention_heads=2, iou_head_hidden_dim=32
    )
    return {"vision_config": vision, "prompt_encoder_config": prompts, "mask_decoder_config": decoder}


def save_segmenter(folder: pathlib.Path) -> None:
    """Save a model for stills with its processor in one file."""
    torch.manual_seed(1)
    transformers.Sam2Model(transformers.Sam2Config(**sam_parts())).save_pretrained(folder)
    images = transformers.Sam2ImageProcessor(size={"height": SIDE, "width": SIDE})
    transformers.Sam2Processor(image_processor=images, target_size=SIDE).save_pretrained(folder)


def save_video_segmenter(folder: pathlib.Path) -> None:
    """Save as the published checkpoints are: a model for video, with a memory that stills do not need."""
    torch.manual_seed(1)
    config = transformers.Sam2VideoConfig(
        **sam_parts(),
        image_size=SIDE,
        memory_attention_hidden_size=32,
        memory_attention_num_layers=1,
        memory_attention_feed_forward_hidden_size=32,
        memory_attention_rope_feat_sizes=[4, 4],
        memory_encoder_hidden_size=32,
        memory_encoder_output_channels=8,
        mask_downsampler_embed_dim=32,
        memory_fuser_embed_dim=32,
        memory_fuser_intermediate_dim=32,
        memory_fuser_num_layers=1,
    )
    transformers.Sam2VideoModel(config).save_pretrained(folder)
    transformers.Sam2ImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    names = {"processor_class": "Sam2VideoProcessor", "image_processor_type": "Sam2ImageProcessorFast"}
    images = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**images, **names}))
    processor = {"point_pad_value": -10, "processor_class": "Sam2VideoProcessor", "target_size": SIDE}
    (folder / "processor_config.json").write_text(json.dumps(processor))


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("detector")
    save_detector(folder)
    return str(folder)


@pytest.fixture(scope="module", params=[save_segmenter, save_video_segmenter])
def segmenter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("segmenter")
    request.param(folder)
    return str(folder)


@pytest.fixture
def engine(detector: str, segmenter: str) -> GroundedSam:
    return GroundedSam(detector=detector, segmenter=segmenter)


def set_threshold(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(grounded_sam, "BOX_THRESHOLD", value)


def reference_mask(detector: str, segmenter: str, frame: NDArray[np.uint8], phrase: str) -> NDArray[np.bool_]:
    """Segment one frame in the plainest way: one box at a time, each with the whole model."""
    processor = transformers.GroundingDinoProcessor.from_pretrained(detector)
    inputs = processor(images=frame, text=f"{phrase}.", return_tensors="pt")
    fill, prompts = (
        transformers.Sam2Model.from_pretrained(segmenter),
        transformers.Sam2Processor.from_pretrained(segmenter),
    )
    union = np.zeros(frame.shape[:2], np.bool_)
    with torch.no_grad():
        output = transformers.GroundingDinoForObjectDetection.from_pretrained(detector)(**inputs)
        (found,) = processor.post_process_grounded_object_detection(
            output, threshold=grounded_sam.BOX_THRESHOLD, target_sizes=[frame.shape[:2]], input_ids=inputs.input_ids
        )
        for box in found["boxes"].tolist():
            asked = prompts(images=frame, input_boxes=[[box]], return_tensors="pt")
            masks = fill(**asked, multimask_output=False).pred_masks
            union |= prompts.post_process_masks(masks, asked["original_sizes"])[0][0, 0].numpy()
    return union


def scores_of(engine: GroundedSam, phrase: str) -> list[float]:
    """Give each frame's best score."""
    inputs = engine._detector_inputs(images=list(FRAMES), text=[f"{phrase}."] * len(FRAMES), return_tensors="pt")
    with torch.no_grad():
        return [float(best) for best in engine._detector(**inputs).logits.sigmoid().amax((1, 2))]


def test_masks_are_the_union_of_what_each_box_holds(
    monkeypatch: pytest.MonkeyPatch, engine: GroundedSam, detector: str, segmenter: str
) -> None:
    set_threshold(monkeypatch, 0.0)
    masks = engine.segment(FRAMES, ["red star", "dog"])
    assert masks.shape == (2, *FRAMES.shape[:3])
    assert masks.dtype == np.bool_
    for p, phrase in enumerate(("red star", "dog")):
        for k, frame in enumerate(FRAMES):
            wrong = masks[p, k] != reference_mask(detector, segmenter, frame, phrase)
            # The same sums in another order (frames in a batch, boxes at once) may turn a pixel at the very edge.
            assert wrong.mean() < 0.002


def test_a_frame_without_a_box_stays_empty_and_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch, engine: GroundedSam
) -> None:
    scores = scores_of(engine, "dog")
    set_threshold(monkeypatch, (min(scores) + sorted(scores)[1]) / 2)
    found = engine.segment(FRAMES, ["dog"])[0].any((1, 2))
    assert list(found) == [score > min(scores) for score in scores]


def test_nothing_above_the_threshold_is_no_mask_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, engine: GroundedSam
) -> None:
    set_threshold(monkeypatch, 1.0)
    config = MaskGeneratorConfig(engine=MaskEngineName.GROUNDED_SAM, segmenter="unused", detector="unused")
    (result,) = MaskGeneratorReplica(config, engine).generate(FRAMES, ["dog"])
    assert (result.packed, result.coverage, result.key_frames_found) == (None, 0.0, 0)
    assert result.reason == "not found in any of 2 key frames"


def test_frames_beyond_one_pass_are_those_of_single_passes(
    monkeypatch: pytest.MonkeyPatch, engine: GroundedSam
) -> None:
    set_threshold(monkeypatch, 0.0)
    frames = np.concatenate([FRAMES, FRAMES[:2]])
    assert len(frames) > grounded_sam.FRAMES_PER_PASS
    together = engine._find_boxes(frames, "red star")
    alone = [engine._find_boxes(frame[None], "red star")[0] for frame in frames]
    for one, other in zip(together, alone, strict=True):
        # Pixels of a box; a batch sums in another order.
        torch.testing.assert_close(one, other, rtol=0, atol=0.05)


@pytest.mark.parametrize("phrase", ["", "Dr. Star", "RED STAR.", "red " * 100, "\u72d7"])
def test_any_text_is_a_phrase(engine: GroundedSam, phrase: str) -> None:
    assert engine.segment(FRAMES[:1], [phrase]).shape == (1, 1, *FRAMES.shape[1:3])


def test_case_and_a_final_dot_do_not_matter(monkeypatch: pytest.MonkeyPatch, engine: GroundedSam) -> None:
    set_threshold(monkeypatch, 0.0)
    one, other = engine.segment(FRAMES[:1], ["Red Star.", "red star"])
    assert np.array_equal(one, other)


def test_the_generator_loads_both_models_by_its_config(
    monkeypatch: pytest.MonkeyPatch, detector: str, segmenter: str
) -> None:
    set_threshold(monkeypatch, 0.0)
    config = MaskGeneratorConfig(engine=MaskEngineName.GROUNDED_SAM, segmenter=segmenter, detector=detector)
    (result,) = MaskGeneratorReplica(config).generate(FRAMES, ["red star"])
    assert result.packed is not None
    assert result.coverage == pytest.approx(unpack_mask(result.packed).mean())
    assert result.key_frames_found == result.num_key_frames == 2
