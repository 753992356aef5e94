"""The application's configuration: faults are named, and what it is turned into fits together."""

import pathlib
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import deployments
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
    assert config.embedder_config().model == PRESETS[preset][1]
    assert config.job_store_config().max_attempts == config.router.max_attempts
    assert config.retrieval_config().capacity_bytes == config.store.capacity_bytes


def test_a_checkpoint_and_an_embedder_replace_the_presets_own() -> None:
    config = AppConfig.model_validate({"model_path": "/models/mine", "embedder": {"model": "ViT-B-32:openai"}})
    assert config.model_preset().path == "/models/mine"
    assert config.embedder_config().model == "ViT-B-32:openai"


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


def test_every_config_file_validates() -> None:
    for path in sorted(CONFIGS.glob("*.yaml")):
        values = yaml.safe_load(path.read_text()) or {}
        for args in [app["args"] for app in values["applications"]] if "applications" in values else [values]:
            AppConfig.model_validate(args)
