"""Serve handles as the plain protocols that a clip job works with; every Ray call of the router is made here.

Turns what Ray raises into the two errors that a job knows: its worker was lost, or the work itself failed.
"""

from collections.abc import AsyncGenerator
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from actors.embedder import Embedding
from actors.messages import DenoiseEvent, DenoiseRequest
from actors.retrieval import Admission
from cache_store.partition import PartitionKey
from deployments.api.facts import FailureCode
from deployments.clip_job import WorkerLost, WorkFailed
from reprise.chorus.plan import Candidate


class EmbedderHandle:
    """The embedder deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        result: Embedding = await self._handle.embed.remote(prompt)
        return result


class RetrievalHandle:
    """The retrieval deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def candidates(self, partition: PartitionKey, vector: bytes, count: int) -> list[Candidate]:
        """Give the nearest sources of a partition."""
        found: list[Candidate] = await self._handle.candidates.remote(partition, vector, count)
        return found

    async def source(self, partition: PartitionKey, source_id: str, vector: bytes) -> list[Candidate]:
        """Give one source, if it is stored in this partition."""
        found: list[Candidate] = await self._handle.source.remote(partition, source_id, vector)
        return found

    async def admit(self, admission: Admission) -> str:
        """Register a source whose latents are stored."""
        outcome: str = await self._handle.admit.remote(admission)
        return outcome

    async def touch(self, tenant: str, source_id: str, steps_saved: int) -> None:
        """Count one use."""
        await self._handle.touch.remote(tenant, source_id, steps_saved)

    async def purge(self, tenant: str, source_id: str) -> None:
        """Forget a source."""
        await self._handle.purge.remote(tenant, source_id)


class DenoiserHandle:
    """The denoiser deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(stream=True)

    async def generate(self, request: DenoiseRequest) -> AsyncGenerator[DenoiseEvent, None]:
        """Yield events; closing the iterator cancels the replica's work before its next step."""
        events = self._handle.generate.remote(request)
        try:
            async for event in events:
                yield event
        except (RayActorError, DeploymentUnavailableError, BackPressureError) as error:
            raise WorkerLost(str(error)) from error
        except RayTaskError as error:
            raise failure_of(error.cause) from error
        except RayError as error:
            raise WorkerLost(str(error)) from error
        finally:
            events.cancel()


def failure_of(cause: Any) -> WorkFailed:
    """Map what the worker raised to a code of the closed list, with a sentence for the caller."""
    code = getattr(cause, "code", None)
    if isinstance(code, str) and code in set(FailureCode):
        return WorkFailed(FailureCode(code), str(cause))
    if type(cause).__name__ == "OutOfMemoryError" or isinstance(cause, MemoryError):
        return WorkFailed(
            FailureCode.OUT_OF_MEMORY, "the clip does not fit in the device's memory; ask for a smaller one"
        )
    if isinstance(cause, ValueError):
        return WorkFailed(FailureCode.INVALID_INPUT, str(cause))
    return WorkFailed(FailureCode.INTERNAL_ERROR, f"{type(cause).__name__} in the worker; see its log")
