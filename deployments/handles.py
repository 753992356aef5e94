"""Serve handles as the plain protocols that a clip job works with; every Ray call of the router is made here.

Turns what Ray raises into the two errors that a job knows: its worker was lost, or the work itself failed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from actors.diff_extractor import DiffEngineName, DiffResult, FallbackReason
from actors.embedder import Embedding
from actors.mask_generator import MasksMade
from actors.messages import DenoiseEvent, DenoiseRequest, LongEvent, LongRequest
from actors.retrieval import Admission
from cache_store.partition import PartitionKey
from deployments.api.facts import FailureCode
from deployments.parts import WorkerLost, WorkFailed
from reprise.chorus.plan import Candidate
from reprise.chorus.prompt_diff import align_diff

logger = logging.getLogger(__name__)

_HOST_IS_FULL: Final = "can't allocate memory"
"""In the RuntimeError that torch raises for the host's memory, for which it has no class."""
HOP_S: Final = 0.1
"""What a call of a deployment may take beyond the deployment's own deadline."""


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
        async with contextlib.aclosing(_stream(self._handle.generate.remote(request))) as events:
            async for event in events:
                yield event


class LongRendererHandle:
    """The long renderer deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(stream=True)

    async def generate(self, request: LongRequest) -> AsyncGenerator[LongEvent, None]:
        """Yield events; closing the iterator cancels the replica's work before its next forward."""
        async with contextlib.aclosing(_stream(self._handle.generate.remote(request))) as events:
            async for event in events:
                yield event


async def _stream(events: DeploymentResponseGenerator[Any]) -> AsyncGenerator[Any, None]:
    """Yield a replica's events in the errors that a job knows."""
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


class MaskGeneratorHandle:
    """The mask generator deployment."""

    def __init__(self, handle: DeploymentHandle, *, timeout_s: float) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    async def make(self, tenant: str, source_id: str, frames: object, phrases: tuple[str, ...]) -> MasksMade:
        """Make and store the masks of a source; raises TimeoutError, and whatever the deployment raised.

        `frames` are a uint8 array (F, H, W, 3) or a reference to one, which the replica's machine then reads itself.
        """
        response = self._handle.make.remote(tenant, source_id, frames, phrases)
        try:
            made: MasksMade = await asyncio.wait_for(response, self._timeout_s)
        finally:
            response.cancel()  # nothing happens to one that has come
        return made


class DiffExtractorHandle:
    """The diff extractor deployment; where it does not answer, the aligner does here."""

    def __init__(self, handle: DeploymentHandle, *, deadline_s: float) -> None:
        self._handle = handle
        self._timeout_s = deadline_s + HOP_S

    async def extract(self, source: str, target: str) -> DiffResult:
        """Compare the prompt of a stored source with a new one; always answers."""
        begin = time.perf_counter()
        response = self._handle.extract.remote(source, target)
        try:
            found: DiffResult = await asyncio.wait_for(response, self._timeout_s)
        except TimeoutError:
            reason = FallbackReason.DEADLINE
        except (RayError, RayServeException) as error:
            logger.warning("the diff extractor gave no answer, the aligner does: %s", error)
            reason = FallbackReason.UNREACHABLE
        else:
            return found
        finally:
            response.cancel()  # nothing happens to one that has come
        diff = await asyncio.to_thread(align_diff, source, target)  # long prompts take tens of milliseconds
        return DiffResult(
            diff=diff,
            engine=DiffEngineName.ALIGNER,
            fallback_reason=reason,
            milliseconds=1_000 * (time.perf_counter() - begin),
        )


def failure_of(cause: Any) -> WorkFailed:
    """Map what the worker raised to a code of the closed list, with a sentence for the caller."""
    code = getattr(cause, "code", None)
    if isinstance(code, str) and code in set(FailureCode):
        return WorkFailed(FailureCode(code), str(cause))
    if type(cause).__name__ == "OutOfMemoryError" or isinstance(cause, MemoryError) or _HOST_IS_FULL in str(cause):
        return WorkFailed(
            FailureCode.OUT_OF_MEMORY, "the clip does not fit in the device's memory; ask for a smaller one"
        )
    if isinstance(cause, ValueError):
        return WorkFailed(FailureCode.INVALID_INPUT, str(cause))
    return WorkFailed(FailureCode.INTERNAL_ERROR, f"{type(cause).__name__} in the worker; see its log")
