"""The prompt embedder: a Ray-facing shell around an embedding engine.

Chorus section 3.1: requests are matched by the cosine of their CLIP text embeddings; a sentence encoder can stand in
for CLIP. The engine's tag names the vector space. Knows nothing about thresholds, the index or the cache.
"""

import dataclasses
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_store.contracts import EncoderTag

SENTENCE: Final = "sentence:"
"""What the name of a model begins with that sentence-transformers loads."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EmbedderConfig:
    """Which text model embeds prompts."""

    model: str
    """`sentence:` with a folder or hub id of sentence-transformers; otherwise as open_clip names it:
    `ViT-L-14:openai`, `hf-hub:...` or `local-dir:...`."""
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
        self._engine = engine or _make_engine(config)

    @property
    def tag(self) -> EncoderTag:
        """Name the vector space: embeddings of different tags are never compared."""
        return self._engine.tag

    def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        return Embedding(vector=self._engine.embed(prompt).tobytes(), is_whole=self._engine.fits(prompt))


def _make_engine(config: EmbedderConfig) -> EmbeddingEngine:
    """Import only the library that the model needs."""
    if config.model.startswith(SENTENCE):
        from actors.engines.sentence import SentenceEmbedder

        return SentenceEmbedder(config.model.removeprefix(SENTENCE), device=config.device)
    from actors.engines.open_clip import OpenClipEmbedder

    return OpenClipEmbedder(config.model, device=config.device)
