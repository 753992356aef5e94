"""Presets as values."""

import dataclasses
import pickle
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from reprise.wan.presets import ModelPreset, tiny, tiny_4step, wan21_t2v_1_3b, wan21_t2v_14b

PRESETS = [tiny, tiny_4step, wan21_t2v_1_3b, wan21_t2v_14b]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_second_is_a_valid_number_of_frames(preset: Callable[[], ModelPreset]) -> None:
    value = preset()
    assert value.seconds
    for seconds in value.seconds:
        value.check_num_frames(value.num_frames(seconds))
    assert pickle.loads(pickle.dumps(value)) == value


def test_tiny_delivers_every_size_of_the_videos_api() -> None:
    assert tiny().num_frames(4) == 17
    assert tiny().seconds == (1, 2, 3, 4)
    assert set(tiny().sizes) >= {"720x1280", "1280x720", "1024x1792", "1792x1024"}
    assert set(tiny().sizes.values()) == {(64, 64)}


@pytest.mark.parametrize("preset", [wan21_t2v_1_3b, wan21_t2v_14b])
def test_real_models_deliver_what_they_generate(preset: Callable[[], ModelPreset]) -> None:
    assert all(name == f"{width}x{height}" for name, (width, height) in preset().sizes.items())
    assert preset().num_frames(5) == 81


@pytest.mark.parametrize("num_frames", [-3, 0, 1, 16, 18, 21])
def test_frames_off_the_grid_are_refused(num_frames: int) -> None:
    with pytest.raises(ValueError, match=f"1 \\+ 4k frames, from 5 to 17, got {num_frames}"):
        tiny().check_num_frames(num_frames)


def test_seconds_beyond_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2, 3, 4\) seconds, got 8"):
        tiny().num_frames(8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("default_size", "1x1"),
        ("vae_dtype", "int8"),
        ("default_num_frames", 16),
        ("max_num_frames", 4),
        ("step_sigmas", (1.0, 0.5)),
    ],
)
def test_contradictory_preset_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(str(value))):
        dataclasses.replace(tiny(), **{field: value})  # type: ignore[arg-type]


def test_presets_and_plans_load_without_torch() -> None:
    code = "import sys, reprise.wan.presets, reprise.chorus.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
