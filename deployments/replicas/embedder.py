"""The embedder's deployment: embedding runs in a thread, so that health checks are answered meanwhile."""

import asyncio

from actors.embedder import EmbedderReplica, Embedding
from cache_store.contracts import EncoderTag
from deployments.config import AppConfig


class EmbedderDeployment:
    """Embeds prompts."""

    def __init__(self, config: AppConfig) -> None:
        self._replica = EmbedderReplica(config.embedder_config())

    async def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        return await asyncio.to_thread(self._replica.embed, prompt)

    def tag(self) -> EncoderTag:
        """Name the vector space."""
        return self._replica.tag
