"""The prompt embedder: a Ray-facing shell around an embedding engine.

Chorus section 3.1: requests are matched by the cosine of their CLIP text embeddings. The engine's tag names
the vector space. Knows nothing about thresholds, the index or the cache.
"""

import dataclasses
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cache_store.contracts import EncoderTag


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EmbedderConfig:
    """Which text model embeds prompts."""

    model: str
    """As open_clip names it: `ViT-L-14:openai`, `hf-hub:...` or `local-dir:...`."""
    device: str = "cpu"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """A prompt's unit vector as float32 bytes; `is_whole` is false when the model read only its beginning."""

    vector: bytes
    is_whole: bool


class EmbeddingEngine(Protocol):
    """What the shell needs of an engine."""

    @property
    def tag(self) -> EncoderTag:
        """Name the vector space."""
        ...

    def fits(self, prompt: str) -> bool:
        """Tell whether the whole prompt is read."""
        ...

    def embed(self, prompt: str) -> NDArray[np.float32]:
        """Embed one prompt to a float32 vector of length 1."""
        ...


class EmbedderReplica:
    """Embed prompts for the router."""

    def __init__(self, config: EmbedderConfig, engine: EmbeddingEngine | None = None) -> None:
        if engine is None:
            from actors.engines.open_clip import OpenClipEmbedder

            engine = OpenClipEmbedder(config.model, device=config.device)
        self._engine = engine

    @property
    def tag(self) -> EncoderTag:
        """Name the vector space: embeddings of different tags are never compared."""
        return self._engine.tag

    def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        return Embedding(vector=self._engine.embed(prompt).tobytes(), is_whole=self._engine.fits(prompt))
