"""What crosses a process for a live stream: a chunk to sample, a group that is ready, what a viewer gets.

Frozen dataclasses of plain values; knows nothing about models, machines or sockets.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprise.wan.live_presets import LivePreset

Frames = NDArray[np.uint8]


class MediaFormat(enum.StrEnum):
    """How a viewer gets its pictures."""

    MP4 = "mp4"
    """One fragment of an MP4 a group, each with a key frame."""
    JPEG = "jpeg"
    """One file a frame."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamSpec:
    """What a stream is begun with."""

    prompt: str
    seed: int
    sequence: int = 0
    """Of the prompt."""
    event_id: str | None = None
    waits_for_chunk: bool = False
    """The baseline: a change applies at the next refill, nothing is replaced."""
    media: MediaFormat = MediaFormat.MP4
    """Of the viewer that begins it; one that joins with another gets what is sampled from then on."""
    record: bool = False
    tenant: str = "default"
    """Whose it is; nobody else can come back to it."""
    max_streams: int | None = None
    """Of the tenant in one group; None is no limit but the group's own."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChunkSpec:
    """One sampling call of a stream."""

    prompt: str
    seed: int
    job: int
    branch: int
    """Position of its first group."""
    boundary_HWC: Frames | None = dataclasses.field(repr=False)
    """The frame before it; None begins from nothing."""
    formats: frozenset[MediaFormat]
    """What its groups are encoded as."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReadyGroup:
    """One ready group."""

    last_HWC: Frames = dataclasses.field(repr=False)
    """Its last frame, which what comes next may continue."""
    header: bytes = dataclasses.field(repr=False)
    """What a viewer's MP4 begins with; empty where none is asked for."""
    fragment: bytes = dataclasses.field(repr=False)
    pictures: tuple[bytes, ...] = dataclasses.field(repr=False)
    """One JPEG a frame."""

    @property
    def formats(self) -> frozenset[MediaFormat]:
        """Give what it was encoded as."""
        made = {MediaFormat.MP4: bool(self.fragment), MediaFormat.JPEG: bool(self.pictures)}
        return frozenset(media for media, is_made in made.items() if is_made)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LiveWorkerConfig:
    """Which model a worker holds."""

    preset: LivePreset
    device: str = "cpu"
    num_threads: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """One message to a viewer; the binary parts follow it."""

    message: Mapping[str, Any]
    parts: tuple[bytes, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A stream that has ended and is to be kept."""

    stream_id: str
    spec: StreamSpec
    """Its prompt is the last that was seen."""
    facts: "LiveFacts"
    num_frames: int
    mp4: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LiveFacts:
    """What a group of workers makes, measured when it was warm."""

    model: str
    width: int
    height: int
    fps: int
    group_frames: int
    chunk_groups: int
    num_inference_steps: int
    guidance_scale: float
    first_s: float
    """Seconds of a call until its first group."""
    whole_s: float

    @property
    def group_s(self) -> float:
        """Give the seconds that a group plays."""
        return self.group_frames / self.fps
