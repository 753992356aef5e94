"""A video in pieces plays while it grows: every piece shows its frames at once and begins with a key frame."""

import io
import itertools
from fractions import Fraction

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from actors.engines.fragments import FragmentWriter, split_boxes

CUTS = (9, 12, 12, 4)
FPS = 4


def pictures(count: int = sum(CUTS)) -> NDArray[np.uint8]:
    """Give a bright square that walks over a grey ground."""
    frames = np.full((count, 64, 64, 3), 80, np.uint8)
    for index in range(count):
        frames[index, 20:40, index : index + 20] = (200, 60, 20 + 5 * index)
    return frames


def pieces(writer: FragmentWriter | None = None) -> list[bytes]:
    writer = writer or FragmentWriter(fps=FPS, canvas_width=64, canvas_height=64)
    starts = np.cumsum((0, *CUTS))
    return [writer.write(pictures()[first:last]) for first, last in itertools.pairwise(starts)]


@pytest.mark.parametrize("count", range(1, len(CUTS) + 1))
def test_what_has_arrived_plays_whole(count: int) -> None:
    arrived = b"".join(pieces()[:count])
    with av.open(io.BytesIO(arrived)) as container:
        frames = list(container.decode(video=0))
    assert [frame.pts * frame.time_base for frame in frames] == [Fraction(k, FPS) for k in range(sum(CUTS[:count]))]
    shown = np.stack([frame.to_ndarray(format="rgb24") for frame in frames]).astype(float)
    assert np.square(shown - pictures()[: len(shown)]).mean() < 50, "31 dB"
    first_of_piece = {int(start) for start in np.cumsum((0, *CUTS))[:count]}
    assert {place for place, frame in enumerate(frames) if frame.key_frame} == first_of_piece


def test_only_the_first_piece_has_the_header() -> None:
    kinds = [[kind for kind, _ in split_boxes(piece)] for piece in pieces()]
    assert kinds == [[b"ftyp", b"moov", b"moof", b"mdat"], *[[b"moof", b"mdat"]] * (len(CUTS) - 1)]


def test_the_same_frames_give_the_same_bytes() -> None:
    assert pieces() == pieces()


def test_a_small_picture_is_enlarged_on_its_canvas() -> None:
    (first, *_) = pieces(FragmentWriter(fps=FPS, canvas_width=130, canvas_height=200))
    with av.open(io.BytesIO(first)) as container:
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert frame.shape == (200, 130, 3)
    assert frame[:30].max() < 20, "black above"
    assert abs(int(frame[36 + 60, 1 + 20].astype(int)[0]) - 200) < 12


@pytest.mark.parametrize(("fps", "width", "match"), [(0, 64, "fps"), (4, 63, "even"), (4, 62, "does not fit")])
def test_what_cannot_be_written_is_refused(fps: int, width: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        FragmentWriter(fps=fps, canvas_width=width, canvas_height=64).write(pictures())


def test_a_piece_without_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        FragmentWriter(fps=FPS, canvas_width=64, canvas_height=64).write(pictures(0))


def test_a_broken_box_is_refused() -> None:
    with pytest.raises(ValueError, match="byte 0"):
        list(split_boxes(b"\x00\x00\x00\x04moof"))
