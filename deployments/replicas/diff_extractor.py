"""The diff extractor's deployment; there is one only where a language model compares prompts."""

from actors.diff_extractor import DiffExtractorConfig, DiffExtractorReplica, DiffResult


class DiffExtractorDeployment:
    """Compares prompts; always answers."""

    def __init__(self, config: DiffExtractorConfig) -> None:
        self._replica = DiffExtractorReplica(config)

    async def extract(self, source: str, target: str) -> DiffResult:
        """Compare the prompt of a stored source with a new one."""
        return await self._replica.extract(source, target)

    async def __del__(self) -> None:
        await self._replica.stop()
