"""The reuse key of Chorus: latents pass only between requests that agree on every field here.

A hard partition, not a distance: another tenant, model, encoder or size never sees an entry. Knows no store.
"""

import dataclasses
import hashlib
import json


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PartitionKey:
    """Everything besides prompt and seed that shapes a latent or who may see it."""

    tenant: str
    model_id: str
    model_revision: str
    dtype: str
    quantisation: str
    """Empty when the weights are not quantised."""
    scheduler: str
    shift: float
    num_steps: int
    guidance: float
    width: int
    height: int
    num_frames: int
    fps: int
    negative_prompt: str
    loras: tuple[str, ...]
    """Name, revision and weight of each, in any order."""
    text_encoder_revision: str
    embedder_revision: str
    vae_revision: str

    def digest(self) -> str:
        """Return a short name of the partition: equal keys, equal digests; the order of `loras` is no difference."""
        fields = dataclasses.asdict(self) | {
            "shift": float(self.shift) + 0.0,  # an int, or minus zero, is the same shift
            "guidance": float(self.guidance) + 0.0,
            "loras": sorted(self.loras),
        }
        canonical = json.dumps(fields, sort_keys=True, allow_nan=False)
        return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
