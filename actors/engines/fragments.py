"""Frames to pieces of one MP4 that plays while it grows: fragmented, each piece shown as soon as it arrives.

A piece is encoded by itself, so it begins with a key frame and nothing of it waits for the next; the same frames give
the same bytes. Knows nothing about where pieces go.
"""

import dataclasses
import io
from collections.abc import Iterator
from typing import Final

import av

from actors.engines.media import Canvas, Frames, add_stream, to_video_frame

_FLAGS: Final = "empty_moov+default_base_moof+frag_keyframe+frag_discont+skip_trailer"
_HEADER_BOXES: Final = (b"ftyp", b"moov")


class FragmentWriter:
    """Writes the pieces of one video, from its first frame on."""

    def __init__(self, *, fps: int, canvas_width: int, canvas_height: int) -> None:
        if fps < 1:
            raise ValueError(f"fps must be at least 1, got {fps}")
        self._fps, self._canvas = fps, Canvas(canvas_width, canvas_height)
        self._num_frames = self._num_pieces = 0

    def write(self, frames_THWC: Frames) -> bytes:
        """Give the bytes that show the next frames, 0 to 255; the first piece begins with the file's header."""
        piece = encode_piece(
            frames_THWC, fps=self._fps, canvas=self._canvas, first_frame=self._num_frames, number=self._num_pieces
        )
        is_first = self._num_pieces == 0
        self._num_frames, self._num_pieces = self._num_frames + len(frames_THWC), self._num_pieces + 1
        return piece.header + piece.body if is_first else piece.body


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Some frames of a video as they lie in its file."""

    header: bytes
    """What the file begins with; the same for every piece of a video."""
    body: bytes


def encode_piece(frames_THWC: Frames, *, fps: int, canvas: Canvas, first_frame: int, number: int) -> Piece:
    """Encode frames, 0 to 255, that are shown from `first_frame` on, as the piece of that number, from 0."""
    if len(frames_THWC) < 1:
        raise ValueError("a piece needs at least one frame, got none")
    buffer = io.BytesIO()
    # Timestamps are left as they are, or every piece would begin at 0.
    options = {"movflags": _FLAGS, "fragment_index": str(number + 1), "avoid_negative_ts": "disabled"}
    with av.open(buffer, "w", format="mp4", options=options) as container:
        stream = add_stream(container, fps=fps, canvas=canvas)
        for index, frame_HWC in enumerate(frames_THWC, start=first_frame):
            container.mux(stream.encode(to_video_frame(canvas.draw(frame_HWC), index, stream)))
        container.mux(stream.encode(None))
    boxes = list(split_boxes(buffer.getvalue()))
    return Piece(
        b"".join(box for kind, box in boxes if kind in _HEADER_BOXES),
        b"".join(box for kind, box in boxes if kind not in _HEADER_BOXES),
    )


def split_boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give the kind and the bytes of each box at the top of an MP4."""
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        if not 8 <= size <= len(data) - start:
            raise ValueError(f"expected a box of 8 to {len(data) - start} bytes at byte {start}, got {size}")
        yield data[start + 4 : start + 8], data[start : start + size]
        start += size
