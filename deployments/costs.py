"""What a job will cost a worker, predicted from measured step times: tokens times the steps that are left.

Jobs of one shape (size, frames, guided or not) take the same time per step and token; what is not denoising is taken
per job. Both are moving averages over the finished jobs. Pure; knows nothing about queues.
"""

import dataclasses
import math
from typing import Final

from actors.messages import ClipRequest
from deployments.api.facts import ReuseFacts
from deployments.api.video_job import VideoJob, VideoStatus
from reprise.chorus.stages import StageBoundaries

NEWEST_WEIGHT: Final = 0.2
"""Of the newest job in the averages."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """What decides about the time of a step."""

    width: int
    height: int
    num_frames: int
    is_guided: bool

    @property
    def size(self) -> float:
        """Count what passes through the model in a step, up to a factor."""
        return self.width * self.height * (self.num_frames + 3) * (2 if self.is_guided else 1)


@dataclasses.dataclass(slots=True)
class _Seconds:
    """The averages of a shape; of long videos a step is all of it."""

    step: float
    """Of a step on all tokens."""
    rest: float
    """Of a job, beside its steps."""
    seen: float = 1.0
    """Share of the tokens that take part in a step of stage 2."""

    def learn(self, step: float, rest: float) -> None:
        """Move towards what a job has taken."""
        self.step += NEWEST_WEIGHT * (step - self.step)
        self.rest += NEWEST_WEIGHT * (rest - self.rest)


class CostModel:
    """Predicts seconds of a worker's time; knows nothing until a first job has finished."""

    def __init__(self) -> None:
        self._shapes: dict[_Shape, _Seconds] = {}

    def learn(self, request: ClipRequest, facts: ReuseFacts) -> None:
        """Take a finished job in."""
        seconds = facts.seconds
        parts = (seconds.fetch, seconds.prompt, seconds.decode, seconds.encode, seconds.store)
        if seconds.denoise is None:
            return
        steps = request.num_inference_steps
        work = steps if facts.token_share is None else steps * facts.token_share
        if work < 0.5:
            return  # a clip that was there already tells nothing about steps
        denoise = seconds.denoise - (0.0 if request.is_long else seconds.prompt or 0.0)
        rest = sum(part for part in parts if part is not None)
        shape = _shape_of(request)
        if shape in self._shapes:
            self._shapes[shape].learn(denoise / work, rest)
        else:
            self._shapes[shape] = _Seconds(denoise / work, rest)
        if facts.see_share is not None:
            known = self._shapes[shape]
            known.seen += NEWEST_WEIGHT * (facts.see_share - known.seen)

    def predict(self, request: ClipRequest, stages: StageBoundaries | None = None) -> float | None:
        """Predict the seconds of a job, by what it skips where that is planned; None while nothing is known.

        A shape that was never made is judged by the nearest one, in proportion to its tokens.
        """
        if not self._shapes:
            return None
        shape = _shape_of(request)
        nearest = min(self._shapes, key=lambda known: abs(math.log(known.size / shape.size)))
        known, ratio = self._shapes[nearest], shape.size / nearest.size
        steps = float(request.num_inference_steps)
        if stages is not None:
            steps = (stages.k2 - stages.k1) * known.seen + (steps - stages.k2)
        return ratio * (known.step * steps + known.rest)


class CostLearner:
    """Reports ended jobs to the model."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs

    async def report(self, job: VideoJob) -> None:
        """Learn from one job."""
        if job.status is VideoStatus.COMPLETED:
            self._costs.learn(job.request, job.reuse)


def _shape_of(request: ClipRequest) -> _Shape:
    return _Shape(request.width, request.height, request.num_frames, request.guidance_scale != 1.0)
