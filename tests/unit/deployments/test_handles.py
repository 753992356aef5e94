"""What a worker raised, as the failure that a caller sees; and handles whose deployment is slow or gone."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, cast

import numpy as np
import pytest
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from actors.diff_extractor import DiffEngineName, DiffExtractorConfig, DiffExtractorReplica, FallbackReason
from actors.mask_generator import MasksMade
from deployments.api.facts import FailureCode
from deployments.handles import DiffExtractorHandle, MaskGeneratorHandle, failure_of
from reprise.chorus.prompt_diff import align_diff
from reprise.errors import Cancelled, CheckpointError, NumericalError

SOURCE, TARGET = "a red star rises", "a blue star rises"
MADE = MasksMade(phrases=("star",), reasons={}, milliseconds=1.0)


class OutOfMemoryError(RuntimeError):
    """As torch.cuda names its own, which is recognised by name so that the router needs no torch."""


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (NumericalError("a NaN in frame 3"), FailureCode.NUMERICAL_ERROR),
        (OutOfMemoryError("CUDA out of memory"), FailureCode.OUT_OF_MEMORY),
        (MemoryError(), FailureCode.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), FailureCode.OUT_OF_MEMORY),
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


class PlayedResponse:
    """What a call of a handle gives: awaitable, and can be cancelled."""

    def __init__(self, work: Coroutine[Any, Any, object]) -> None:
        self._work = work
        self.is_cancelled = False

    def __await__(self) -> Generator[Any, None, object]:
        return self._work.__await__()

    def cancel(self) -> None:
        self.is_cancelled = True


class PlayedHandle:
    """A handle with one method, which every name calls; notes the calls and their responses."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, object]]) -> None:
        self._method = method
        self.calls: list[tuple[object, ...]] = []
        self.responses: list[PlayedResponse] = []

    def __getattr__(self, _name: str) -> "PlayedHandle":
        return self

    def remote(self, *arguments: object) -> PlayedResponse:
        self.calls.append(arguments)
        self.responses.append(PlayedResponse(self._method(*arguments)))
        return self.responses[-1]


async def never(*_arguments: object) -> object:
    await asyncio.Event().wait()
    return None


def diff_handle(played: PlayedHandle) -> DiffExtractorHandle:
    return DiffExtractorHandle(cast(DeploymentHandle, played), deadline_s=0.01)


def mask_handle(played: PlayedHandle, *, timeout_s: float) -> MaskGeneratorHandle:
    return MaskGeneratorHandle(cast(DeploymentHandle, played), timeout_s=timeout_s)


async def test_the_deployments_diff_is_passed_on() -> None:
    replica = DiffExtractorReplica(DiffExtractorConfig())
    handle = DiffExtractorHandle(cast(DeploymentHandle, PlayedHandle(replica.extract)), deadline_s=60.0)
    result = await handle.extract(SOURCE, TARGET)
    assert (result.diff, result.fallback_reason) == (align_diff(SOURCE, TARGET), None)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (None, FallbackReason.DEADLINE),
        (RayActorError(), FallbackReason.UNREACHABLE),
        (DeploymentUnavailableError(None), FallbackReason.UNREACHABLE),
    ],
)
async def test_the_aligner_answers_for_a_deployment_that_does_not(
    fault: Exception | None, reason: FallbackReason
) -> None:
    async def fail(*_arguments: object) -> object:
        raise fault or AssertionError

    played = PlayedHandle(fail if fault else never)
    result = await diff_handle(played).extract(SOURCE, TARGET)
    assert (result.engine, result.fallback_reason) == (DiffEngineName.ALIGNER, reason)
    assert result.diff == align_diff(SOURCE, TARGET)
    assert played.responses[0].is_cancelled


async def test_masks_are_asked_for_with_the_frames_as_they_came() -> None:
    async def make(*_arguments: object) -> object:
        return MADE

    played, reference = PlayedHandle(make), object()
    handle = mask_handle(played, timeout_s=60.0)
    frames = np.zeros((1, 4, 4, 3), np.uint8)
    for each in (frames, reference):
        assert await handle.make("t", "video_1", each, ("star",)) == MADE
    assert [call[2] is each for call, each in zip(played.calls, (frames, reference), strict=True)] == [True, True]
    assert played.calls[1] == ("t", "video_1", reference, ("star",))


async def test_masks_that_take_too_long_are_given_up() -> None:
    played = PlayedHandle(never)
    with pytest.raises(TimeoutError):
        await mask_handle(played, timeout_s=0.01).make("t", "video_1", object(), ("star",))
    assert played.responses[0].is_cancelled
