"""How strong token-guided amplification is at each step (TGAA; Chorus, section 3.2, eq. 4).

Symbols: gamma_k and gamma_o the two gains, m matching score, tau least score that is reused, sigma noise level.
Standard library only; knows nothing about attention or tensors.
"""

import dataclasses
import json
import math


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gains:
    """The gains of one step; 1.0 leaves a part alone."""

    key: float
    """gamma_k, on the keys of the differing tokens."""
    output: float
    """gamma_o, on the output of the cross-attention."""

    def __post_init__(self) -> None:
        for name, gain in (("key", self.key), ("output", self.output)):
            if not 1 <= gain < math.inf:  # also refuses NaN
                raise ValueError(f"a gain is finite and never under 1.0, got {name}={gain}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AmplificationConfig:
    """How strong the gains are at most, and how they fade."""

    key_peak: float
    """gamma_k at sigma 1 and m = tau; 1.0 switches key amplification off."""
    output_peak: float
    """gamma_o there."""
    decay: float
    """Power of sigma by which both fall over the steps; larger fades sooner."""
    floor: float = 0.0
    """Share of the strength that stays at m = 1: embedders are all but blind to some words, such as left and right,
    and score them as if nothing differed."""

    def __post_init__(self) -> None:
        Gains(key=self.key_peak, output=self.output_peak)
        if not 0 < self.decay < math.inf:
            raise ValueError(f"decay must be above 0 and finite, since gains fall over the steps, got {self.decay}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must lie in 0..1, got {self.floor}")


def gains_at(config: AmplificationConfig, *, sigma: float, matching_score: float, tau: float) -> Gains:
    """Give F_k and F_o of eq. 4 at the noise level that enters a step: gamma = 1 + (peak - 1) sigma^decay d(m).

    d falls in a straight line from 1 at m = tau, and below it, to `floor` at m = 1. Noise levels fall with the steps,
    so gains do, at any number of steps; at sigma 0, or at m = 1 without a floor, both are exactly 1.0.
    """
    if not 0 <= sigma <= 1:
        raise ValueError(f"sigma must lie in 0..1, got {sigma}")
    if math.isnan(matching_score):
        raise ValueError("matching_score is NaN: score the source, or take tau for a source that was forced")
    distance = 0.0 if matching_score >= 1 else min(1.0, (1 - matching_score) / (1 - min(tau, matching_score)))
    strength = sigma**config.decay * (config.floor + (1 - config.floor) * distance)
    return Gains(key=1 + (config.key_peak - 1) * strength, output=1 + (config.output_peak - 1) * strength)


def amplification_from_json(text: str) -> AmplificationConfig:
    """Read the setting that `training.amplification` stored with a model's weights."""
    return AmplificationConfig(**json.loads(text)["amplification"])
