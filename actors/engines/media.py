"""Frames to files: an H.264 MP4, a WebP thumbnail and a JPEG sprite sheet, as the frames come.

With fragments.py the one place that knows PyAV and Pillow. The picture is enlarged by the largest whole factor that
fits the canvas and centred on black, so that a small model's pixels stay exact. Knows nothing about jobs or storage.

Shape letters: T frames, H height, W width, C colour channels (red, green, blue).
"""

import fractions
import io
import math
import pathlib
import tempfile
from typing import Any, Final

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from numpy.typing import NDArray
from PIL import Image

Frames = NDArray[np.uint8]

_SHEET_COLUMNS: Final = 4
_SHEET_TILES: Final = 16
_TILE_PIXELS: Final = 192
"""Longer side of one tile."""


def make_media(frames_THWC: Frames, *, fps: int, canvas_width: int, canvas_height: int) -> dict[str, bytes]:
    """Write frames, 0 to 255, as the files of a finished video: `video`, `thumbnail` and `spritesheet`."""
    with MediaWriter(
        fps=fps, canvas_width=canvas_width, canvas_height=canvas_height, num_frames=len(frames_THWC)
    ) as writer:
        writer.add(frames_THWC)
        return writer.finish()


class MediaWriter:
    """Writes the files of a video of `num_frames` whose frames come in pieces; holds a few pictures, not the video."""

    def __init__(self, *, fps: int, canvas_width: int, canvas_height: int, num_frames: int) -> None:
        if num_frames < 1 or fps < 1:
            raise ValueError(f"a clip needs at least one frame and one frame per second, got {num_frames} and {fps}")
        self._canvas = Canvas(canvas_width, canvas_height)
        self._num_frames, self._next = num_frames, 0
        num_tiles = min(_SHEET_TILES, num_frames)
        self._tile_indices = [int(index) for index in np.linspace(0, num_frames - 1, num_tiles).round()]
        self._tiles: dict[int, Image.Image] = {}
        self._thumbnail = b""
        # The index can only be moved to the front in a file that the muxer may open again, so not in memory.
        self._folder = tempfile.TemporaryDirectory(prefix="reprise-mux-")
        self._path = pathlib.Path(self._folder.name) / "video.mp4"
        self._container = av.open(str(self._path), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream = add_stream(self._container, fps=fps, canvas=self._canvas)

    def add(self, frames_THWC: Frames) -> None:
        """Take the next frames, 0 to 255."""
        if self._next + len(frames_THWC) > self._num_frames:
            raise ValueError(f"expected {self._num_frames} frames, got {self._next + len(frames_THWC)}")
        for frame_HWC in frames_THWC:
            picture_HWC = self._canvas.draw(frame_HWC)
            self._container.mux(self._stream.encode(to_video_frame(picture_HWC, self._next, self._stream)))
            if self._next == self._num_frames // 2:  # the first often shows less of what the clip is about
                self._thumbnail = _encode_thumbnail(picture_HWC)
            if self._next in self._tile_indices:
                self._tiles[self._next] = _shrink(picture_HWC)
            self._next += 1

    def finish(self) -> dict[str, bytes]:
        """Give the files by variant; raises ValueError when frames are missing."""
        if self._next != self._num_frames:
            raise ValueError(f"expected {self._num_frames} frames, got {self._next}")
        self._container.mux(self._stream.encode(None))
        self._container.close()
        tiles = [self._tiles[index] for index in self._tile_indices]
        return {
            "video": self._path.read_bytes(),
            "thumbnail": self._thumbnail,
            "spritesheet": _encode_sheet(tiles),
        }

    def close(self) -> None:
        """Remove what is on the disk, finished or not."""
        self._container.close()
        self._folder.cleanup()

    def __enter__(self) -> "MediaWriter":
        """Give the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class Canvas:
    """Draws one frame at a time; the picture it returns is drawn over by the next."""

    def __init__(self, width: int, height: int) -> None:
        """Raise ValueError for sides that H.264 cannot have."""
        if width % 2 or height % 2:
            raise ValueError(f"H.264 with yuv420p needs even sides, got a canvas of {width}x{height}")
        self._canvas_HWC = np.zeros((height, width, 3), np.uint8)
        self.width, self.height = width, height

    def draw(self, frame_HWC: Frames) -> Frames:
        """Give a frame enlarged and centred; raise ValueError for one that does not fit."""
        height, width, _ = frame_HWC.shape
        if width > self.width or height > self.height:
            raise ValueError(f"a picture of {width}x{height} does not fit a canvas of {self.width}x{self.height}")
        factor = min(self.width // width, self.height // height)
        picture_HWC = frame_HWC.repeat(factor, axis=0).repeat(factor, axis=1)
        top = (self.height - picture_HWC.shape[0]) // 2
        left = (self.width - picture_HWC.shape[1]) // 2
        self._canvas_HWC[top : top + picture_HWC.shape[0], left : left + picture_HWC.shape[1]] = picture_HWC
        return self._canvas_HWC


def add_stream(container: Any, *, fps: int, canvas: Canvas) -> Any:
    """Add a video stream with the settings of every file that is delivered."""
    # No B-frames: they would need an edit list, which some players ignore and so drop a frame.
    stream = container.add_stream("libx264", rate=fps, options={"preset": "superfast", "crf": "18", "bf": "0"})
    stream.width, stream.height, stream.pix_fmt = canvas.width, canvas.height, "yuv420p"
    encoder = stream.codec_context
    # One thread: the same frames give the same bytes, and other requests keep their cores.
    encoder.thread_count = 1
    # Untagged video is read with a matrix that depends on player and height.
    encoder.colorspace, encoder.color_range = Colorspace.ITU709, ColorRange.MPEG
    encoder.color_primaries, encoder.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
    return stream


def to_video_frame(picture_HWC: Frames, index: int, stream: Any) -> av.VideoFrame:
    """Give a picture as the encoder takes it, shown at `index` frames from the beginning."""
    frame = av.VideoFrame.from_ndarray(picture_HWC, format="rgb24").reformat(
        format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
    )
    frame.pts, frame.time_base = index, fractions.Fraction(1) / stream.average_rate
    return frame


def _encode_thumbnail(picture_HWC: Frames) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture_HWC).save(buffer, "WEBP", quality=85, method=2)
    return buffer.getvalue()


def _shrink(picture_HWC: Frames) -> Image.Image:
    height, width, _ = picture_HWC.shape
    shrink = _TILE_PIXELS / max(width, height)
    size = (round(width * shrink), round(height * shrink))
    return Image.fromarray(picture_HWC).resize(size, Image.Resampling.BOX)


def _encode_sheet(tiles: list[Image.Image]) -> bytes:
    """Write evenly spaced frames, first and last among them, row by row."""
    width, height = tiles[0].size
    columns = min(_SHEET_COLUMNS, len(tiles))
    sheet = Image.new("RGB", (columns * width, math.ceil(len(tiles) / columns) * height))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place % columns * width, place // columns * height))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
