"""Frames to files: an H.264 MP4, a WebP thumbnail and a JPEG sprite sheet.

The one place that knows PyAV and Pillow. The picture is enlarged by the largest whole factor that fits the
canvas and centred on black, so that a small model's pixels stay exact. Knows nothing about jobs or storage.

Shape letters: T frames, H height, W width, C colour channels (red, green, blue).
"""

import fractions
import io
import math
import pathlib
import tempfile
from typing import Final

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
    num_frames, height, width, _ = frames_THWC.shape
    if num_frames < 1 or fps < 1:
        raise ValueError(f"a clip needs at least one frame and one frame per second, got {num_frames} and {fps}")
    if canvas_width % 2 or canvas_height % 2:
        raise ValueError(f"H.264 with yuv420p needs even sides, got a canvas of {canvas_width}x{canvas_height}")
    if width > canvas_width or height > canvas_height:
        raise ValueError(f"a picture of {width}x{height} does not fit a canvas of {canvas_width}x{canvas_height}")
    canvas = _Canvas(frames_THWC, canvas_width, canvas_height)
    return {
        "video": _encode_mp4(canvas, fps=fps),
        "thumbnail": _encode_thumbnail(canvas),
        "spritesheet": _encode_sheet(canvas),
    }


class _Canvas:
    """Draws one frame at a time; the picture it returns is drawn over by the next."""

    def __init__(self, frames_THWC: Frames, width: int, height: int) -> None:
        self._frames_THWC = frames_THWC
        self._canvas_HWC = np.zeros((height, width, 3), np.uint8)
        self._factor = min(width // frames_THWC.shape[2], height // frames_THWC.shape[1])
        self.width, self.height, self.num_frames = width, height, len(frames_THWC)

    def draw(self, index: int) -> Frames:
        """Give frame `index` enlarged and centred."""
        picture_HWC = self._frames_THWC[index].repeat(self._factor, axis=0).repeat(self._factor, axis=1)
        top = (self.height - picture_HWC.shape[0]) // 2
        left = (self.width - picture_HWC.shape[1]) // 2
        self._canvas_HWC[top : top + picture_HWC.shape[0], left : left + picture_HWC.shape[1]] = picture_HWC
        return self._canvas_HWC


def _encode_mp4(canvas: _Canvas, *, fps: int) -> bytes:
    # The index can only be moved to the front in a file that the muxer may open again, so not in memory.
    with tempfile.TemporaryDirectory(prefix="reprise-mux-") as folder:
        path = pathlib.Path(folder) / "video.mp4"
        with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            # No B-frames: they would need an edit list, which some players ignore and so drop a frame.
            stream = container.add_stream("libx264", rate=fps, options={"preset": "superfast", "crf": "18", "bf": "0"})
            stream.width, stream.height, stream.pix_fmt = canvas.width, canvas.height, "yuv420p"
            encoder = stream.codec_context
            # One thread: the same frames give the same bytes, and other requests keep their cores.
            encoder.thread_count = 1
            # Untagged video is read with a matrix that depends on player and height.
            encoder.colorspace, encoder.color_range = Colorspace.ITU709, ColorRange.MPEG
            encoder.color_primaries, encoder.color_trc = ColorPrimaries.BT709, ColorTrc.BT709
            for index in range(canvas.num_frames):
                frame = av.VideoFrame.from_ndarray(canvas.draw(index), format="rgb24").reformat(
                    format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
                )
                frame.pts, frame.time_base = index, fractions.Fraction(1, fps)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return path.read_bytes()


def _encode_thumbnail(canvas: _Canvas) -> bytes:
    """Write the middle frame: the first often shows less of what the clip is about."""
    buffer = io.BytesIO()
    Image.fromarray(canvas.draw(canvas.num_frames // 2)).save(buffer, "WEBP", quality=85, method=2)
    return buffer.getvalue()


def _encode_sheet(canvas: _Canvas) -> bytes:
    """Write evenly spaced frames, first and last among them, row by row."""
    num_tiles = min(_SHEET_TILES, canvas.num_frames)
    shrink = _TILE_PIXELS / max(canvas.width, canvas.height)
    tile_width, tile_height = round(canvas.width * shrink), round(canvas.height * shrink)
    columns = min(_SHEET_COLUMNS, num_tiles)
    sheet = Image.new("RGB", (columns * tile_width, math.ceil(num_tiles / columns) * tile_height))
    for tile, index in enumerate(np.linspace(0, canvas.num_frames - 1, num_tiles).round().astype(int)):
        picture = Image.fromarray(canvas.draw(int(index))).resize((tile_width, tile_height), Image.Resampling.BOX)
        sheet.paste(picture, (tile % columns * tile_width, tile // columns * tile_height))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
