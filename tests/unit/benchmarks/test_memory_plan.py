"""The memory plan against what the real architectures hold, at their real sizes."""

from collections.abc import Callable

import pytest

from benchmarks.memory_plan import CASES, measure
from reprise.wan.presets import ModelPreset


@pytest.mark.parametrize("preset", CASES)
def test_every_size_is_planned_for_and_hardly_more(preset: Callable[[], ModelPreset]) -> None:
    found = list(measure(preset(), CASES[preset]()))
    assert {each.size for each in found} == set(preset().sizes)
    for each in found:
        assert 0 <= each.excess < 0.02, each
        assert each.planned.weights == each.counted.weights
        assert each.counted.forward <= each.planned.forward < 1.02 * each.counted.forward, each
        assert each.counted.decode <= each.planned.decode < 1.02 * each.counted.decode, each


def test_shorter_clips_are_planned_for_too() -> None:
    preset = next(iter(CASES))
    assert preset().memory_need("64x64", 5).peak < preset().memory_need("64x64", 17).peak
