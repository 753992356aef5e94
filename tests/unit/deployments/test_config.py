"""The application's configuration: faults are named, and what it is turned into fits together."""

import pathlib
from typing import Any

import pytest
from pydantic import ValidationError

import deployments
from actors.diff_extractor import DiffEngineName, DiffExtractorConfig
from actors.mask_generator import MaskEngineName
from cache_store.contracts import EncoderTag
from deployments.config import PRESETS, AppConfig
from tests.fakes.partitions import MODEL_PARTITION

CONFIGS = pathlib.Path(deployments.__file__).parent / "configs"


@pytest.mark.parametrize("values", [{"prest": "tiny"}, {"router": {"embed_timeout": 1}}, {"denoiser": {"gpus": 1}}])
def test_an_unknown_key_is_named(values: dict[str, Any]) -> None:
    key = str(next(iter(values)))
    inner = values[key]
    with pytest.raises(ValidationError) as raised:
        AppConfig.model_validate(values)
    (fault,) = raised.value.errors()
    assert fault["type"] == "extra_forbidden"
    assert fault["loc"] == ((key, *inner) if isinstance(inner, dict) else (key,))


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError) as raised:
        AppConfig(preset="huge")
    for name in (*PRESETS, "'huge'"):
        assert name in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"store": {"capacity_bytes": 0}},
        {"store": {"eviction": "random"}},
        {"denoiser": {"num_replicas": 0}},
        {"router": {"lookup_timeout_s": 0}},
        {"router": {"max_attempts": 0}},
        {"masks": {"engine": "sam"}},
        {"masks": {"timeout_s": 0}},
        {"masks": {"num_replicas": 0}},
        {"diff": {"engine": "regex"}},
        {"diff": {"deadline_s": 0}},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AppConfig.model_validate(values)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_gives_settings_that_agree(preset: str) -> None:
    config = AppConfig(preset=preset)
    limits, model = config.api_settings().limits, config.model_preset()
    assert limits.model == model.name
    assert set(limits.sizes) == set(model.sizes)
    assert config.embedder_config().model == PRESETS[preset].embedder
    assert config.job_store_config().max_attempts == config.router.max_attempts
    assert config.retrieval_config().capacity_bytes == config.store.capacity_bytes


def test_a_checkpoint_and_an_embedder_replace_the_presets_own() -> None:
    config = AppConfig.model_validate({"model_path": "/models/mine", "embedder": {"model": "ViT-B-32:openai"}})
    assert config.model_preset().path == "/models/mine"
    assert config.embedder_config().model == "ViT-B-32:openai"


def test_the_bundled_model_has_masks_and_a_real_one_only_when_told() -> None:
    bundled = AppConfig().mask_generator_config()
    assert bundled is not None
    assert (bundled.engine, bundled.segmenter) == (MaskEngineName.TINY_SEGMENTER, PRESETS["tiny"].segmenter)
    assert (pathlib.Path(bundled.segmenter) / "config.json").is_file()
    assert AppConfig.model_validate({"masks": {"engine": "off"}}).mask_generator_config() is None
    assert AppConfig(preset="wan2.1-t2v-1.3b").mask_generator_config() is None


@pytest.mark.parametrize("preset", PRESETS)
def test_any_preset_takes_segmenters_by_their_paths(preset: str) -> None:
    masks = {"engine": "grounded_sam", "segmenter": "/sam", "detector": "/dino", "device": "cuda"}
    real = AppConfig.model_validate({"preset": preset, "masks": masks}).mask_generator_config()
    assert real is not None
    assert (real.engine, real.segmenter, real.detector, real.device) == (*masks.values(),)
    mine = AppConfig.model_validate({"preset": preset, "masks": {"engine": "tiny_segmenter", "segmenter": "/mine"}})
    generator = mine.mask_generator_config()
    assert generator is not None
    assert (generator.engine, generator.segmenter) == (MaskEngineName.TINY_SEGMENTER, "/mine")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"masks": {"engine": "grounded_sam", "detector": "/dino"}}, "grounded_sam needs masks.segmenter"),
        ({"masks": {"engine": "grounded_sam", "segmenter": "/sam"}}, "grounded_sam needs masks.detector"),
        ({"masks": {"detector": "/dino"}}, "tiny_segmenter takes no masks.detector, got masks.detector='/dino'"),
        ({"masks": {"engine": "off", "segmenter": "/sam"}}, "off takes no masks.segmenter"),
        ({"preset": "wan2.1-t2v-1.3b", "masks": {"segmenter": "/sam"}}, "off takes no masks.segmenter"),
        ({"preset": "wan2.1-t2v-14b", "masks": {"engine": "tiny_segmenter"}}, "needs masks.segmenter"),
        ({"diff": {"engine": "llm", "model": "m"}}, "base_url=''"),
        ({"diff": {"engine": "llm", "base_url": "http://h/v1"}}, "model=''"),
        ({"diff": {"base_url": "http://h/v1"}}, "base_url='http://h/v1'"),
    ],
)
def test_settings_of_an_engine_that_is_not_chosen_or_lacks_them_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as raised:
        AppConfig.model_validate(values)
    (fault,) = raised.value.errors()
    assert named in fault["msg"]


def test_prompts_are_compared_by_the_aligner_unless_a_model_is_named() -> None:
    assert AppConfig().diff.extractor_config() == DiffExtractorConfig()
    values = {"engine": "llm", "base_url": "http://h/v1", "model": "m", "deadline_s": 0.3}
    assert AppConfig.model_validate({"diff": values}).diff.extractor_config() == DiffExtractorConfig(
        engine=DiffEngineName.LLM, base_url="http://h/v1", model="m", deadline_s=0.3
    )


def test_the_data_folder_is_the_same_for_every_process(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert AppConfig(data_dir="here").data_path() == tmp_path / "here"
    assert AppConfig(data_dir="here").artifacts() == str(tmp_path / "here" / "videos")
    assert AppConfig(artifacts_url="s3://bucket/videos").artifacts() == "s3://bucket/videos"


def test_another_encoder_is_another_partition() -> None:
    config = AppConfig()
    one, two = (
        config.complete_partition(MODEL_PARTITION, EncoderTag(name="clip", revision=revision, dim=8))
        for revision in ("1", "2")
    )
    assert one.digest() != two.digest()


def test_memory_bounds_the_sizes_that_are_offered() -> None:
    config = AppConfig.model_validate({"preset": "wan2.1-t2v-14b", "denoiser": {"memory_gib": 64}})
    assert len(config.api_settings().limits.sizes) == 4
    with pytest.raises(ValidationError, match=r"denoiser\.memory_gib: wan2\.1-t2v-14b at 1280x720 .* needs 60\.8 GiB"):
        AppConfig.model_validate({"preset": "wan2.1-t2v-14b", "denoiser": {"memory_gib": 24}})


def test_another_embedder_s_tau_moves_the_preset_s_thresholds() -> None:
    config = AppConfig.model_validate({"embedder": {"tau": 0.6}})
    assert config.model_preset().tau == config.api_settings().limits.min_tau == 0.6
    assert config.model_preset().stage_map.rows[0].k1 == AppConfig().model_preset().stage_map.rows[0].k1
