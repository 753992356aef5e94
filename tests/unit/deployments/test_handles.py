"""What a worker raised, as the failure that a caller sees."""

import pytest

from deployments.api.facts import FailureCode
from deployments.handles import failure_of
from reprise.errors import Cancelled, CheckpointError, NumericalError


class OutOfMemoryError(RuntimeError):
    """As torch.cuda names its own, which is recognised by name so that the router needs no torch."""


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (NumericalError("a NaN in frame 3"), FailureCode.NUMERICAL_ERROR),
        (OutOfMemoryError("CUDA out of memory"), FailureCode.OUT_OF_MEMORY),
        (MemoryError(), FailureCode.OUT_OF_MEMORY),
        (ValueError("expected 4k + 1 frames"), FailureCode.INVALID_INPUT),
        (Cancelled("stopped"), FailureCode.INTERNAL_ERROR),
        (CheckpointError("no vae"), FailureCode.INTERNAL_ERROR),
        (KeyError("secret"), FailureCode.INTERNAL_ERROR),
        (None, FailureCode.INTERNAL_ERROR),
    ],
)
def test_each_cause_has_a_code_and_a_sentence(cause: Exception | None, code: FailureCode) -> None:
    failure = failure_of(cause)
    assert failure.code is code
    assert str(failure).strip()
    assert "secret" not in str(failure)


def test_the_worker_s_own_words_are_kept_where_they_help() -> None:
    assert str(failure_of(NumericalError("a NaN in frame 3"))) == "a NaN in frame 3"
    assert "smaller" in str(failure_of(OutOfMemoryError()))
