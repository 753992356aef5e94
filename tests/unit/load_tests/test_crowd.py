"""How many users there are at a time."""

import pytest

from load_tests.crowd import SHAPES, users_at


@pytest.mark.parametrize("most", [1, 2, 8, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_there_is_always_somebody_and_never_too_many(shape: str, most: int) -> None:
    counts = [users_at(shape, share / 100, most) for share in range(100)]
    assert min(counts) >= 1
    assert max(counts) == most


def test_shapes() -> None:
    assert [users_at("ramp", share, 10) for share in (0.0, 0.2, 0.4, 0.8, 0.99)] == [1, 2, 5, 10, 10]
    assert [users_at("spike", share, 8) for share in (0.0, 0.39, 0.4, 0.59, 0.6)] == [2, 2, 8, 8, 2]
    with pytest.raises(ValueError, match="got 'flood'"):
        users_at("flood", 0.5, 1)
