"""The files of a clip, read back: what every player needs and pixels that are still the model's."""

import fractions
import io
import itertools

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from numpy.typing import NDArray
from PIL import Image

from actors.engines.media import MediaWriter, make_media

Frames = NDArray[np.uint8]


def moving_square(num_frames: int, height: int, width: int) -> Frames:
    """Draw a red square on blue that moves a pixel a frame."""
    frames_THWC = np.zeros((num_frames, height, width, 3), np.uint8)
    frames_THWC[:] = (20, 40, 160)
    for index in range(num_frames):
        left = index % (width // 2)
        frames_THWC[index, height // 4 : height // 2, left : left + width // 4] = (220, 40, 30)
    return frames_THWC


def boxes_of(data: bytes) -> list[bytes]:
    """Name the top-level boxes of an MP4 in order."""
    names, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        names.append(data[at + 4 : at + 8])
        assert length >= 8
        at += length
    return names


@pytest.mark.parametrize(
    ("num_frames", "fps", "picture", "canvas"),
    [
        (17, 4, (64, 64), (720, 1280)),
        (17, 4, (64, 64), (1792, 1024)),
        (5, 16, (96, 54), (96, 54)),
        (1, 30, (64, 64), (64, 64)),
        (9, 24, (63, 31), (100, 50)),
    ],
)
def test_the_video_is_exactly_what_was_asked_for(
    num_frames: int, fps: int, picture: tuple[int, int], canvas: tuple[int, int]
) -> None:
    frames_THWC = moving_square(num_frames, picture[1], picture[0])
    data = make_media(frames_THWC, fps=fps, canvas_width=canvas[0], canvas_height=canvas[1])["video"]
    with av.open(io.BytesIO(data)) as container:
        (stream,) = container.streams
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height) == canvas
        assert (stream.frames, stream.average_rate) == (num_frames, fps)
        assert stream.duration * stream.time_base == fractions.Fraction(num_frames, fps)
        decoded = list(container.decode(stream))
    assert [frame.time for frame in decoded] == pytest.approx([index / fps for index in range(num_frames)])
    assert not any(frame.pict_type == PictureType.B for frame in decoded)
    names = boxes_of(data)
    assert names[0] == b"ftyp"
    assert names.index(b"moov") < names.index(b"mdat"), "a player must be able to start before the whole file is there"


def test_pixels_are_enlarged_by_a_whole_factor_and_centred() -> None:
    frames_THWC = moving_square(5, 64, 64)
    data = make_media(frames_THWC, fps=4, canvas_width=720, canvas_height=1280)["video"]
    with av.open(io.BytesIO(data)) as container:
        read = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    border = np.concatenate([read[:, :280].ravel(), read[:, 1000:].ravel(), read[:, :, :4].ravel()])
    assert border.max() < 10
    middles = read[:, 288 + 5 : 288 + 704 : 11, 8 + 5 : 8 + 704 : 11].astype(int)
    # Lossy, and with half the colour resolution; 11 pixels wide, a pixel's middle keeps its colour.
    assert np.abs(middles - frames_THWC).mean() < 4
    assert np.percentile(np.abs(middles - frames_THWC), 99) < 30


def test_colours_are_tagged_so_that_players_agree() -> None:
    data = make_media(moving_square(1, 64, 64), fps=4, canvas_width=64, canvas_height=64)["video"]
    with av.open(io.BytesIO(data)) as container:
        frame = next(container.decode(video=0))
    assert (int(frame.colorspace), int(frame.color_primaries), int(frame.color_trc)) == (1, 1, 1), "BT.709"
    assert int(frame.color_range) == 1, "limited range"


def test_the_same_frames_give_the_same_bytes() -> None:
    frames_THWC = moving_square(9, 64, 64)
    one, two = (make_media(frames_THWC, fps=4, canvas_width=720, canvas_height=1280) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(("num_frames", "columns", "rows"), [(17, 4, 4), (5, 4, 2), (1, 1, 1)])
def test_pictures_show_the_clip(num_frames: int, columns: int, rows: int) -> None:
    frames_THWC = moving_square(num_frames, 64, 64)
    media = make_media(frames_THWC, fps=4, canvas_width=720, canvas_height=1280)
    with Image.open(io.BytesIO(media["thumbnail"])) as thumbnail:
        assert (thumbnail.format, thumbnail.size) == ("WEBP", (720, 1280))
    with Image.open(io.BytesIO(media["spritesheet"])) as sheet:
        assert (sheet.format, sheet.size) == ("JPEG", (columns * 108, rows * 192))
        tiles = np.asarray(sheet.convert("RGB")).reshape(rows, 192, columns, 108, 3).swapaxes(1, 2)
    shown = [tiles[row, column].max() > 100 for row, column in itertools.product(range(rows), range(columns))]
    assert shown == [index < min(num_frames, 16) for index in range(rows * columns)]


@pytest.mark.parametrize(
    ("num_frames", "fps", "canvas", "message"),
    [
        (0, 4, (64, 64), "at least one frame"),
        (1, 0, (64, 64), "at least one frame"),
        (1, 4, (65, 64), "even sides"),
        (1, 4, (64, 62), "does not fit"),
    ],
)
def test_what_cannot_be_written_is_refused(num_frames: int, fps: int, canvas: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_media(moving_square(num_frames, 64, 64), fps=fps, canvas_width=canvas[0], canvas_height=canvas[1])


def test_frames_that_come_in_pieces_give_the_same_files() -> None:
    frames_THWC = np.random.default_rng(3).integers(0, 255, (40, 32, 32, 3), np.uint8)
    whole = make_media(frames_THWC, fps=4, canvas_width=64, canvas_height=64)
    with MediaWriter(fps=4, canvas_width=64, canvas_height=64, num_frames=40) as writer:
        for first in range(0, 40, 9):
            writer.add(frames_THWC[first : first + 9])
        assert writer.finish() == whole


def test_too_few_or_too_many_frames_are_refused() -> None:
    frames_THWC = np.zeros((3, 32, 32, 3), np.uint8)
    with MediaWriter(fps=4, canvas_width=64, canvas_height=64, num_frames=4) as writer:
        writer.add(frames_THWC)
        with pytest.raises(ValueError, match="expected 4 frames, got 3"):
            writer.finish()
        with pytest.raises(ValueError, match="expected 4 frames, got 6"):
            writer.add(frames_THWC)
