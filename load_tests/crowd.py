"""How many users there are at a time: constant (soak), rising (ramp), or a multitude in the middle (spike).

Knows nothing about Locust, which changes a process that only imports it.
"""

from typing import Final

SHAPES: Final = ("soak", "ramp", "spike")


def users_at(shape: str, share: float, most: int) -> int:
    """Give the users at a share of the run, at least one; a spike is four times as many in the fifth in the middle."""
    match shape:
        case "ramp":
            return max(1, round(most * min(1.0, share / 0.8)))
        case "spike":
            return most if 0.4 <= share < 0.6 else max(1, round(most / 4))
        case "soak":
            return most
    raise ValueError(f"shape must be one of {', '.join(SHAPES)}, got {shape!r}")
