"""What a plan's differing words do to the forwards of its clip: TGAA, step by step (Chorus, section 3.2).

Knows nothing about where plans come from. L text tokens.
"""

import contextlib
import dataclasses
from collections.abc import Callable

from torch import Tensor

from reprise.chorus.amplification import amplified
from reprise.chorus.gains import AmplificationConfig, gains_at
from reprise.chorus.plan import ReusePlan
from reprise.wan.model import WanModel
from reprise.wan.token_spans import token_indices


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Conditioning:
    """How the forward of the prompt is amplified at each step of one clip."""

    model: WanModel
    config: AmplificationConfig | None
    """None amplifies nothing."""
    token_indices: tuple[int, ...]
    num_text_tokens: int
    matching_score: float

    def at(self, timestep: Tensor) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Give the context in which the forward of the prompt runs at this timestep of the schedule."""
        if self.config is None:
            return contextlib.nullcontext
        sigma = float(timestep) / self.model.scheduler.config.num_train_timesteps
        gains = gains_at(self.config, sigma=sigma, matching_score=self.matching_score, tau=self.model.preset.tau)
        return lambda: amplified(
            self.model.transformer, gains, self.token_indices, num_text_tokens=self.num_text_tokens
        )


def conditioning_of(model: WanModel, prompt: str, plan: ReusePlan, *, num_text_tokens: int) -> Conditioning:
    """Amplify the words that the plan's source has not; nothing where there are none that the text encoder read."""
    words = () if plan.diff is None else plan.diff.added
    tokens = token_indices(model, prompt, [(word.start, word.stop) for word in words])
    score = plan.matching_score
    return Conditioning(
        model=model,
        config=model.preset.amplification if tokens and score is not None else None,
        token_indices=tokens,
        num_text_tokens=num_text_tokens,
        matching_score=1.0 if score is None else score,
    )
