"""What making one clip took, stage by stage, as a value to report. Standard library only."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkDone:
    """What denoising took, by stage."""

    num_steps: int
    """N, skipped steps included."""
    num_region_steps: int
    num_dense_steps: int
    num_cached_steps: int
    """Of the dense steps, those at which TeaCache left the blocks out."""
    edit_share: float | None
    """Share of the tokens that stage 2 denoised; None without a stage 2."""
    see_share: float | None
    """Share of the tokens that took part in it."""
    encode_prompt_s: float
    region_s: float
    dense_s: float

    @property
    def num_steps_computed(self) -> int:
        """Count the steps of stages 2 and 3."""
        return self.num_region_steps + self.num_dense_steps

    @property
    def token_share(self) -> float:
        """Tokens that went through the blocks, as a share of those of N dense steps."""
        seen = 0.0 if self.see_share is None else self.num_region_steps * self.see_share
        return (seen + self.num_dense_steps - self.num_cached_steps) / self.num_steps

    @property
    def denoise_s(self) -> float:
        """Sum text encoding and every computed step."""
        return self.encode_prompt_s + self.region_s + self.dense_s
