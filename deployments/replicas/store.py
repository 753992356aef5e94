"""The embedded store's deployment, and how the others find the store. Knows nothing about what is stored."""

import asyncio
from typing import TypeAlias

from ray.serve.handle import DeploymentHandle

from cache_store.embedded import EmbeddedConfig, EmbeddedValkey

Store: TypeAlias = DeploymentHandle | str
"""The embedded store's deployment, or the URL of a store that runs elsewhere."""


async def store_url(store: Store) -> str:
    """Give the store's URL once the store answers."""
    return store if isinstance(store, str) else str(await store.url.remote())


class StoreDeployment:
    """Owns the embedded Valkey server; a replacement adopts the server it finds."""

    def __init__(self, config: EmbeddedConfig) -> None:
        self._server = EmbeddedValkey(config)
        self._server.start()

    def url(self) -> str:
        """Give the server's URL."""
        return self._server.url

    async def check_health(self) -> None:
        """Fail when the server is gone; the replica that Serve starts instead starts it again, with all it had."""
        await asyncio.to_thread(self._server.check)

    def __del__(self) -> None:
        self._server.stop()
