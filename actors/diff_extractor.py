"""Which words differ between two prompts: a Ray-facing shell around a diff engine, with a deadline and a fallback.

Chorus sections 3.2 and 3.3.1. Whatever goes wrong with the engine, the aligner answers and the result says why; an
engine that fails again and again is not waited for at all. Knows nothing about HTTP, tokenizers or what the words are
used for.
"""

import asyncio
import collections
import dataclasses
import enum
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from actors.circuit_breaker import CircuitBreaker
from reprise.chorus.prompt_diff import TokenDiff, UnknownWord, align_diff

logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 5
"""Faults of the engine in a row after which it is left alone."""
PAUSE_S: Final = 10.0
"""Time between two trials of an engine that is left alone."""


class DiffEngineName(enum.StrEnum):
    """The engines to choose from."""

    ALIGNER = "aligner"
    """Compares the prompts word by word; needs no model."""
    LLM = "llm"
    """Asks a language model behind an OpenAI-compatible endpoint, such as vLLM's."""


class FallbackReason(enum.StrEnum):
    """Every reason for which the aligner answered in another engine's place; the list is closed."""

    DEADLINE = "deadline"
    """No answer in time."""
    UNREACHABLE = "unreachable"
    """No connection, or one that broke."""
    REFUSED = "refused"
    """The endpoint answered with an error status."""
    UNREADABLE = "unreadable"
    """The answer is not of the form that was asked for."""
    UNKNOWN_WORD = "unknown_word"
    """The answer names a word that is in neither prompt, or not in the one it is said to be in."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The engine does not ask about prompts of so many words."""
    CIRCUIT_OPEN = "circuit_open"
    """The engine failed several times in a row and is left alone for a while."""
    ENGINE_FAILED = "engine_failed"
    """An error that nobody foresaw."""


class DiffFault(Exception):
    """What an engine raises when it has no answer to give."""

    def __init__(self, reason: FallbackReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DiffExtractorConfig:
    """Which engine compares prompts, and how long it may take."""

    engine: DiffEngineName = DiffEngineName.ALIGNER
    base_url: str = ""
    """Of the `llm` engine: up to `/v1`, as the OpenAI client takes it."""
    model: str = ""
    """Of the `llm` engine: the name under which the endpoint serves it."""
    deadline_s: float = 1.0
    """After it the aligner answers."""

    def __post_init__(self) -> None:
        needs_endpoint = self.engine is DiffEngineName.LLM
        if needs_endpoint != bool(self.base_url) or needs_endpoint != bool(self.model):
            raise ValueError(
                "engine llm needs base_url and model, and no other engine takes them, "
                f"got engine={self.engine}, base_url={self.base_url!r}, model={self.model!r}"
            )
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s must be positive, got {self.deadline_s}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DiffResult:
    """The differing words, and who found them."""

    diff: TokenDiff
    engine: DiffEngineName
    """That answered."""
    fallback_reason: FallbackReason | None
    """Set exactly when it is not the engine that was configured."""
    milliseconds: float
    """From the call to the result, an engine's failed try included."""


class DiffEngine(Protocol):
    """What the shell needs of an engine. It has no deadline of its own: the shell cancels it."""

    async def diff(self, source: str, target: str) -> TokenDiff:
        """Compare two prompts; raises DiffFault, or ValueError for an answer that does not fit them."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class AlignerEngine:
    """The deterministic aligner as an engine."""

    async def diff(self, source: str, target: str) -> TokenDiff:
        """Compare two prompts, in about a millisecond."""
        return align_diff(source, target)

    async def close(self) -> None:
        """Have nothing to release."""


class DiffExtractorReplica:
    """Compare prompts for the router; always answers."""

    def __init__(
        self,
        config: DiffExtractorConfig,
        engine: DiffEngine | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._engine = engine or _engine_of(config)
        self._clock = clock
        self._breaker = CircuitBreaker(max_failures=MAX_FAILURES, pause_s=PAUSE_S)
        self._fallbacks: collections.Counter[FallbackReason] = collections.Counter()

    @property
    def fallback_counts(self) -> Mapping[FallbackReason, int]:
        """Count how often the aligner had to answer instead, by reason."""
        return dict(self._fallbacks)

    async def extract(self, source: str, target: str) -> DiffResult:
        """Compare the prompt of a stored request with a new one."""
        begin = time.perf_counter()
        reason = None
        try:
            diff = await self._ask(source, target)
        except Exception as error:  # the boundary: a diff is worth no failed job
            reason = _reason_of(error)
            self._fallbacks[reason] += 1
            level = logging.DEBUG if reason is FallbackReason.CIRCUIT_OPEN else logging.WARNING
            name = self._config.engine
            logger.log(level, "%s engine gave no diff (%s), the aligner answers: %s", name, reason, error)
            diff = align_diff(source, target)
        return DiffResult(
            diff=diff,
            engine=self._config.engine if reason is None else DiffEngineName.ALIGNER,
            fallback_reason=reason,
            milliseconds=1_000 * (time.perf_counter() - begin),
        )

    async def _ask(self, source: str, target: str) -> TokenDiff:
        """Ask the engine, unless it is left alone."""
        if not self._breaker.admit(self._clock()):
            raise DiffFault(FallbackReason.CIRCUIT_OPEN, f"{MAX_FAILURES} faults in a row")
        try:
            async with asyncio.timeout(self._config.deadline_s):
                diff = await self._engine.diff(source, target)
        except Exception as error:
            if _reason_of(error) is not FallbackReason.PROMPT_TOO_LONG:  # then nobody was asked
                self._breaker.fail(self._clock())
            raise
        self._breaker.succeed()
        return diff

    async def stop(self) -> None:
        """Release the engine's connections."""
        await self._engine.close()


def _reason_of(error: Exception) -> FallbackReason:
    match error:
        case DiffFault():
            return error.reason
        case TimeoutError():
            return FallbackReason.DEADLINE
        case UnknownWord():
            return FallbackReason.UNKNOWN_WORD
        case ValueError():
            return FallbackReason.UNREADABLE
        case _:
            return FallbackReason.ENGINE_FAILED


def _engine_of(config: DiffExtractorConfig) -> DiffEngine:
    if config.engine is DiffEngineName.ALIGNER:
        return AlignerEngine()
    from actors.engines.llm_diff import LlmDiffEngine

    return LlmDiffEngine(config.base_url, config.model)
