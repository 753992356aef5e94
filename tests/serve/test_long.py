"""A video longer than a clip, over real HTTP with the bundled causal model: made in chunks, watched meanwhile."""

import io

import av
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from actors.engines.fragments import split_boxes
from reprise.tinyworld import read_prompt, score_video
from tests.serve.conftest import Server, Studio, facts_of

pytestmark = [pytest.mark.serve, pytest.mark.timeout(600)]

PROMPT = "a large red circle moves right over a blue background"
FRAMES = 81
LONG = {"num_frames": FRAMES, "fps": 4, "num_inference_steps": 4}


def frames_of(data: bytes) -> NDArray[np.uint8]:
    """Give the model's own pixels: 64x64, elevenfold on the canvas."""
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames)[:, 288 + 5 : 992 : 11, 8 + 5 : 712 : 11]


def is_whole(received: bytearray) -> bool:
    """Tell whether what has arrived ends with a piece."""
    try:
        kinds = [kind for kind, _ in split_boxes(bytes(received))]
    except ValueError:
        return False
    return kinds[-1:] == [b"mdat"]


def test_a_long_video_is_watched_while_it_is_made(server: Server, studio: Studio) -> None:
    video = studio.create(PROMPT, seed=3, **LONG)
    progress_at_first_piece = None
    received = bytearray()
    with httpx.stream("GET", f"{server.url}/v1/videos/{video.id}/stream", timeout=120) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "video/mp4")
        for packet in answer.iter_raw():
            received += packet
            if progress_at_first_piece is None and is_whole(received):
                progress_at_first_piece = studio.client.videos.retrieve(video.id).progress
                assert len(frames_of(bytes(received))) >= 9, "the first piece plays by itself"
    assert progress_at_first_piece is not None
    assert progress_at_first_piece < 100, "it could be watched before it was finished"
    finished = studio.completed(video.id)
    facts = facts_of(finished)
    assert facts["schedule"]["forwards"] == {"planner": 4, "extraction": 1, "renderer": 28}
    assert (facts["reason"], facts["effective"]["num_inference_steps"]) == ("long_video", 4)
    assert facts["seconds"]["first_frame"] < facts["schedule"]["render_s"]
    streamed = frames_of(bytes(received))
    whole = frames_of(studio.client.videos.download_content(video.id).read())
    assert len(streamed) == len(whole) == FRAMES
    assert np.abs(streamed.astype(int) - whole).mean() < 3, "the same pictures, encoded twice"
    scene = read_prompt(PROMPT)
    assert scene is not None
    found = [len(score_video(whole[first : first + 17], scene).found()) for first in range(0, FRAMES - 16, 16)]
    assert min(found) >= 5, "every part shows the prompt"


def test_clips_are_made_while_a_long_video_is(studio: Studio) -> None:
    video = studio.create(PROMPT, seed=4, **{**LONG, "num_frames": 641})
    studio.make(PROMPT, seed=1)
    assert studio.client.videos.retrieve(video.id).status == "in_progress"
    studio.client.videos.delete(video.id)


def test_a_deleted_long_video_stops_and_leaves_nothing(server: Server, studio: Studio) -> None:
    video = studio.create(PROMPT, seed=5, **{**LONG, "num_frames": 1281})
    studio.wait(video.id, lambda video: video.progress > 0)
    studio.client.videos.delete(video.id)
    following = studio.create(PROMPT, seed=6, **{**LONG, "num_frames": 21})
    studio.completed(following.id)  # its worker was free long before 1,281 frames were made
    assert server.files(video.id) == []
