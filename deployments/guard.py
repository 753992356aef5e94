"""Calls of a part that a job can do without: a deadline, a circuit breaker, and a count of what failed.

Whatever goes wrong, the caller gets a reason instead of an error, so a fault of reuse is a miss.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from actors.circuit_breaker import CircuitBreaker
from deployments.metrics import Metrics, NoMetrics, Sample
from reprise.chorus.plan import MissReason

logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 5
"""Faults in a row after which a part is left alone."""
PAUSE_S: Final = 10.0
"""Time between two trials of a part that is left alone."""

T = TypeVar("T")


class Guard:
    """Guards the calls of one part; one instance a part and process."""

    def __init__(
        self,
        part: str,
        *,
        timeout_s: float,
        has_breaker: bool = True,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a breaker every call is made, however many have failed."""
        self._part, self._timeout_s, self._clock = part, timeout_s, clock
        self._breaker = CircuitBreaker(max_failures=MAX_FAILURES, pause_s=PAUSE_S) if has_breaker else None
        self._metrics = metrics or NoMetrics()

    async def call(self, make: Callable[[], Awaitable[T]]) -> T | MissReason:
        """Make a call and await it; late, broken or not made is a reason for a miss, logged once."""
        if self._breaker is not None and not self._breaker.admit(self._clock()):
            self._count(MissReason.CIRCUIT_OPEN)
            return MissReason.CIRCUIT_OPEN
        try:
            result = await asyncio.wait_for(make(), self._timeout_s)
        except TimeoutError:
            logger.warning("%s took longer than %.2f s", self._part, self._timeout_s)
            return self._fail(MissReason.LOOKUP_TIMEOUT)
        except Exception:  # whatever breaks in there, the job can go on without it
            logger.exception("%s failed", self._part)
            return self._fail(MissReason.LOOKUP_FAILED)
        if self._breaker is not None:
            self._breaker.succeed()
            self._metrics.record([Sample("reprise_circuit_open", 0, (self._part,))])
        return result

    def _fail(self, reason: MissReason) -> MissReason:
        self._count(reason)
        if self._breaker is not None:
            self._breaker.fail(self._clock())
            is_open = not self._breaker.is_closed
            self._metrics.record([Sample("reprise_circuit_open", is_open, (self._part,))])
        return reason

    def _count(self, reason: MissReason) -> None:
        fault = {MissReason.LOOKUP_TIMEOUT: "timeout", MissReason.LOOKUP_FAILED: "error"}.get(reason, "not_made")
        self._metrics.record([Sample("reprise_call_faults_total", 1, (self._part, fault))])
