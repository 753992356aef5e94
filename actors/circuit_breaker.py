"""A circuit breaker: something that failed several times in a row is left alone for a while.

Knows no clock: time enters as an argument. Knows nothing about what is called.
"""


class CircuitBreaker:
    """Closed until `max_failures` calls in a row failed; then one call in `pause_s` seconds is let through as a trial.

    A trial that never reports, since its caller went away, blocks nothing: the next one comes a pause later.
    """

    def __init__(self, *, max_failures: int, pause_s: float) -> None:
        self._max_failures = max_failures
        self._pause_s = pause_s
        self._num_failures = 0
        self._next_trial = 0.0

    @property
    def is_closed(self) -> bool:
        """Tell whether calls are made as usual."""
        return self._num_failures < self._max_failures

    def admit(self, now: float) -> bool:
        """Tell whether a call may be made; True obliges to make it."""
        if self.is_closed:
            return True
        if now < self._next_trial:
            return False
        self._next_trial = now + self._pause_s
        return True

    def succeed(self) -> None:
        """Note a call that worked, which closes the circuit."""
        self._num_failures = 0

    def fail(self, now: float) -> None:
        """Note a call that failed."""
        self._num_failures += 1
        self._next_trial = now + self._pause_s
