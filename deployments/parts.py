"""What a clip job needs of the other parts, as small protocols, and the two ways in which its worker can fail it.

Handles of Serve deployments implement them in handles.py, tests by plain classes.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from actors.diff_extractor import DiffResult
from actors.embedder import Embedding
from actors.messages import DenoiseEvent, DenoiseRequest, LongEvent, LongRequest
from actors.retrieval import Admission
from cache_store.partition import PartitionKey
from deployments.api.facts import FailureCode
from reprise.chorus.plan import Candidate


class WorkerLost(Exception):
    """The worker ended while it ran the job; another run may succeed."""


class WorkFailed(Exception):
    """The job itself cannot succeed; carries the code that its caller sees."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Embedder(Protocol):
    """Embeds prompts."""

    async def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        ...


class Retrieval(Protocol):
    """Finds, registers and counts sources."""

    async def candidates(self, partition: PartitionKey, vector: bytes, count: int) -> list[Candidate]:
        """Give the nearest sources of a partition."""
        ...

    async def source(self, partition: PartitionKey, source_id: str, vector: bytes) -> list[Candidate]:
        """Give one source, if it is stored in this partition."""
        ...

    async def admit(self, admission: Admission) -> str:
        """Register a source whose latents are stored."""
        ...

    async def touch(self, tenant: str, source_id: str, steps_saved: int) -> None:
        """Count one use."""
        ...

    async def purge(self, tenant: str, source_id: str) -> None:
        """Forget a source: vector, prompt and latents, registered or not."""
        ...


class Denoiser(Protocol):
    """Makes clips."""

    def generate(self, request: DenoiseRequest) -> AsyncGenerator[DenoiseEvent, None]:
        """Yield events; closing the iterator stops the work. Raises WorkerLost or WorkFailed."""
        ...


class LongRenderer(Protocol):
    """Makes long videos."""

    def generate(self, request: LongRequest) -> AsyncGenerator[LongEvent, None]:
        """Yield events; closing the iterator stops the work. Raises WorkerLost or WorkFailed."""
        ...


class MaskGenerator(Protocol):
    """Makes masks of a stored source."""

    async def make(self, tenant: str, source_id: str, frames_FHWC: Any, phrases: tuple[str, ...]) -> object:
        """Make and store the masks of the phrases, within a deadline of its own.

        Frames are uint8 (F, H, W, 3), or a reference to them.
        """
        ...


class DiffExtractor(Protocol):
    """Compares prompts by a configured engine."""

    async def extract(self, source: str, target: str) -> DiffResult:
        """Tell which words differ, within a deadline of its own."""
        ...
