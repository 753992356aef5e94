"""The circuit breaker: when it lets calls through, over time that the test makes."""

from actors.circuit_breaker import CircuitBreaker


def opened(at: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(max_failures=2, pause_s=10.0)
    for _ in range(2):
        assert breaker.admit(at)
        breaker.fail(at)
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(max_failures=2, pause_s=10.0)
    for _ in range(5):
        breaker.fail(0.0)
        assert breaker.admit(0.0)
        breaker.succeed()
    assert not opened().admit(9.9)


def test_one_trial_a_pause_whatever_becomes_of_it() -> None:
    breaker = opened(at=5.0)
    assert [breaker.admit(now) for now in (14.9, 15.0, 15.1, 24.9, 25.0, 25.1)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_trial_that_works_closes_it() -> None:
    breaker = opened()
    assert breaker.admit(10.0)
    breaker.succeed()
    assert breaker.admit(10.0)
    breaker.fail(10.0)
    assert breaker.admit(10.0)


def test_a_trial_that_fails_begins_the_pause_anew() -> None:
    breaker = opened()
    assert breaker.admit(10.0)
    breaker.fail(12.0)
    assert not breaker.admit(21.9)
    assert breaker.admit(22.0)


def test_a_late_failure_of_an_earlier_call_only_makes_the_pause_longer() -> None:
    breaker = opened()
    breaker.fail(4.0)
    assert not breaker.admit(13.9)
    assert breaker.admit(14.0)
