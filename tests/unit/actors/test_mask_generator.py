"""The mask generator: key frames in, one result a phrase out; and the bundled engine on scenes whose truth is known."""

import concurrent.futures
import pathlib

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.engines.tiny_segmenter import TinySegmenter
from actors.mask_generator import MaskEngineName, MaskGeneratorConfig, MaskGeneratorReplica
from cache_store.contracts import LatentKey, LatentRecord
from cache_store.latents.memory import MemoryLatentStore
from reprise.chorus.mask_codec import unpack_mask
from reprise.chorus.objects import object_phrases
from reprise.tinyworld import ObjectSpec, SceneSpec, is_held_out, render_scene, sample_scene, write_prompt
from reprise.wan.presets import WEIGHTS
from tests.fakes.mask_engine import ScriptedMaskEngine

FOLDER = str(WEIGHTS / "tiny_segmenter")
CONFIG = MaskGeneratorConfig(engine=MaskEngineName.TINY_SEGMENTER, segmenter=FOLDER)
PAIR = SceneSpec(
    (ObjectSpec("star", "red", "large", "up"), ObjectSpec("square", "cyan", "small", "left")), "blue", "striped"
)


def walking_dot(num_frames: int) -> NDArray[np.uint8]:
    """Frames (F, 4, F, 3): in frame f, column f is red."""
    frames = np.zeros((num_frames, 4, num_frames, 3), np.uint8)
    for f in range(num_frames):
        frames[f, :, f, 0] = 255
    return frames


def columns_of(packed: bytes | None) -> list[list[int]]:
    """Give the marked columns of every frame."""
    assert packed is not None
    return [np.flatnonzero(mask.any(0)).tolist() for mask in unpack_mask(packed)]


def test_only_key_frames_are_segmented_and_their_masks_stay_in_their_group() -> None:
    engine = ScriptedMaskEngine({"dot": range(3)})
    frames = walking_dot(9)
    (result,) = MaskGeneratorReplica(CONFIG, engine).generate(frames, ["dot"])
    ((shown, phrases),) = engine.shown
    assert np.array_equal(shown, frames[[0, 2, 6]])
    assert phrases == ("dot",)
    assert columns_of(result.packed) == [[0], *[[2]] * 4, *[[6]] * 4]
    assert result.coverage == pytest.approx(1 / 9)
    assert (result.key_frames_found, result.num_key_frames, result.reason) == (3, 3, None)


def test_a_frame_in_which_the_engine_missed_it_takes_the_nearest_mask() -> None:
    engine = ScriptedMaskEngine({"dot": (0, 2)})
    (result,) = MaskGeneratorReplica(CONFIG, engine).generate(walking_dot(13), ["dot"])
    assert columns_of(result.packed) == [[0], *[[0]] * 4, *[[6]] * 4, *[[6]] * 4]
    assert (result.key_frames_found, result.num_key_frames) == (2, 4)


def test_what_is_seen_in_few_frames_is_marked_in_those_alone() -> None:
    engine = ScriptedMaskEngine({"dot": (2,)})
    (result,) = MaskGeneratorReplica(CONFIG, engine).generate(walking_dot(13), ["dot"])
    assert columns_of(result.packed) == [[], *[[]] * 4, *[[6]] * 4, *[[]] * 4]


def test_nothing_found_is_a_result_with_a_reason() -> None:
    (result,) = MaskGeneratorReplica(CONFIG, ScriptedMaskEngine({})).generate(walking_dot(9), ["dot"])
    assert (result.packed, result.coverage, result.key_frames_found) == (None, 0.0, 0)
    assert result.reason == "not found in any of 3 key frames"


def test_everything_found_reports_its_coverage() -> None:
    frames = np.full((5, 8, 8, 3), 255, np.uint8)
    (result,) = MaskGeneratorReplica(CONFIG, ScriptedMaskEngine({"sky": (0, 1)})).generate(frames, ["sky"])
    assert result.coverage == 1.0
    assert result.packed is not None
    assert unpack_mask(result.packed).all()


def test_phrases_keep_their_order_and_those_past_the_limit_are_named() -> None:
    engine = ScriptedMaskEngine({"b": (0, 1, 2)})
    config = MaskGeneratorConfig(engine=MaskEngineName.TINY_SEGMENTER, segmenter="unused", max_phrases=2)
    results = MaskGeneratorReplica(config, engine).generate(walking_dot(9), ["a", "b", "c"])
    assert [result.phrase for result in results] == ["a", "b", "c"]
    assert [result.packed is None for result in results] == [True, False, True]
    assert results[2].reason == "beyond the first 2 phrases of its source"
    assert engine.shown[0][1] == ("a", "b")


def test_no_phrase_asks_no_engine() -> None:
    engine = ScriptedMaskEngine({})
    assert MaskGeneratorReplica(CONFIG, engine).generate(walking_dot(9), []) == ()
    assert engine.shown == []


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((5, 8, 8, 3), np.float32),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((5, 8, 8, 4), np.uint8),
        np.zeros((0, 8, 8, 3), np.uint8),
    ],
)
def test_frames_that_are_no_video_are_refused(frames: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="expected uint8 frames"):
        MaskGeneratorReplica(CONFIG, ScriptedMaskEngine({})).generate(frames, ["dot"])


def test_a_detector_goes_with_the_engine_that_has_one() -> None:
    with pytest.raises(ValueError, match=r"engine=grounded_sam and detector=None"):
        MaskGeneratorConfig(engine=MaskEngineName.GROUNDED_SAM, segmenter="sam")
    with pytest.raises(ValueError, match=r"engine=tiny_segmenter and detector='dino'"):
        MaskGeneratorConfig(engine=MaskEngineName.TINY_SEGMENTER, segmenter="tiny", detector="dino")
    with pytest.raises(ValueError, match="key_frame_stride"):
        MaskGeneratorConfig(engine=MaskEngineName.TINY_SEGMENTER, segmenter="tiny", key_frame_stride=0)


@pytest.fixture(scope="module")
def bundled() -> TinySegmenter:
    return TinySegmenter(FOLDER)


def overlap(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    return float((one & other).sum() / (one | other).sum())


def test_the_bundled_engine_marks_what_a_phrase_names_and_nothing_else(bundled: TinySegmenter) -> None:
    rng = np.random.default_rng(3)
    named: list[float] = []
    absent: list[bool] = []
    while len(named) < 60:
        scene = sample_scene(rng)
        if not is_held_out(scene):
            continue
        rendering = render_scene(scene, 1, rng)
        item = scene.objects[0]
        others = [colour for colour in ("red", "green", "cyan") if all(colour != o.colour for o in scene.objects)]
        phrases = [f"{item.size} {item.colour} {item.shape}", f"{others[0]} {item.shape}", "dog"]
        masks = bundled.segment(rendering.frames_THWC, phrases)[:, 0]
        named.append(overlap(masks[0], rendering.masks_KTHW[0, 0]))
        absent += [not mask.any() for mask in masks[1:]]
    # The card says 0.97 and 1.0; these are other scenes.
    assert np.mean(named) > 0.94
    assert np.mean(absent) > 0.98


def test_two_objects_of_a_video_are_told_apart_through_key_frames(bundled: TinySegmenter) -> None:
    rendering = render_scene(PAIR, 17, np.random.default_rng(0))
    results = MaskGeneratorReplica(CONFIG, bundled).generate(
        rendering.frames_THWC, ["large red star", "tiny turquoise box", "green star"]
    )
    for result, truth in zip(results[:2], rendering.masks_KTHW, strict=True):
        assert result.packed is not None
        mask = unpack_mask(result.packed)
        # Exact up to the segmenter's edges in the key frames; between them the object has moved on by two frames.
        assert overlap(mask[[0, 2, 6, 10, 14]], truth[[0, 2, 6, 10, 14]]) > 0.9
        assert overlap(mask, truth) > 0.6
    assert results[2].packed is None


def test_the_replica_loads_the_bundled_folder_by_its_config() -> None:
    rendering = render_scene(PAIR, 5, np.random.default_rng(0))
    (result,) = MaskGeneratorReplica(CONFIG).generate(rendering.frames_THWC, ["the red star"])
    assert result.key_frames_found == 2


@pytest.fixture
def store() -> MemoryLatentStore:
    """A store with latents of one source of tenant `t`: `video_1`."""
    store = MemoryLatentStore()
    record = LatentRecord(dtype="float32", shape=(1,), data=bytes(4))
    assert store.put(LatentKey(tenant="t", source_id="video_1", step=0), record)
    return store


def test_what_the_prompt_names_has_its_mask_in_the_store(bundled: TinySegmenter, store: MemoryLatentStore) -> None:
    rendering = render_scene(PAIR, 17, np.random.default_rng(0))
    phrases = object_phrases(write_prompt(PAIR))
    replica = MaskGeneratorReplica(CONFIG, bundled)
    made = replica.make(
        store,
        tenant="t",
        source_id="video_1",
        frames_FHWC=rendering.frames_THWC,
        phrases=(*phrases, "green star"),
    )
    assert (len(phrases), made.phrases) == (2, phrases)
    assert made.reasons == {"green star": "not found in any of 5 key frames"}
    assert made.milliseconds > 0
    results = replica.generate(rendering.frames_THWC, phrases)
    assert [store.mask("t", "video_1", result.phrase) for result in results] == [result.packed for result in results]
    assert store.mask("t", "video_1", "green star") is None


@pytest.mark.parametrize(("tenant", "source_id"), [("t", "video_2"), ("other", "video_1")])
def test_a_source_that_was_purged_meanwhile_gets_no_masks(
    store: MemoryLatentStore, tenant: str, source_id: str
) -> None:
    replica = MaskGeneratorReplica(CONFIG, ScriptedMaskEngine({"dot": range(3)}))
    made = replica.make(store, tenant=tenant, source_id=source_id, frames_FHWC=walking_dot(9), phrases=["dot"])
    assert made.phrases == ()
    assert "the source is gone" in made.reasons["dot"]
    assert store.mask(tenant, source_id, "dot") is None


def test_other_frame_sizes_are_read_and_odd_ones_refused(bundled: TinySegmenter) -> None:
    frames = np.zeros((2, 48, 80, 3), np.uint8)
    assert bundled.segment(frames, ["star"]).shape == (1, 2, 48, 80)
    with pytest.raises(ValueError, match="multiples of 4"):
        bundled.segment(frames[:, :47], ["star"])


@pytest.mark.parametrize("phrase", ["", "?!", "star " * 500, "\u661f"])
def test_any_text_is_a_phrase(bundled: TinySegmenter, phrase: str) -> None:
    assert bundled.segment(np.zeros((1, 64, 64, 3), np.uint8), [phrase]).shape == (1, 1, 64, 64)


def test_threads_do_not_disturb_each_other(bundled: TinySegmenter) -> None:
    frames = render_scene(PAIR, 1, np.random.default_rng(0)).frames_THWC
    phrases = [["red star"], ["square", "a large red star on the left"], ["cyan square"] * 3] * 8
    expected = [bundled.segment(frames, batch) for batch in phrases]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda batch: bundled.segment(frames, batch), phrases))
    assert all(np.array_equal(one, other) for one, other in zip(results, expected, strict=True))


def test_a_folder_without_weights_is_an_error_at_start(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError, match=str(tmp_path)):
        TinySegmenter(str(tmp_path))
