"""A live stream of the whole application: WebSocket in, an MP4 out that shows what was asked for, when it was."""

import asyncio
import io
import json
from typing import Any

import av
import numpy as np
import pytest
from websockets.asyncio.client import connect

from reprise.tinyworld import read_prompt, score_video
from tests.serve.conftest import Server, Studio

pytestmark = [pytest.mark.serve, pytest.mark.timeout(300)]

FIRST = "a large red circle is still over a black background"
SECOND = "a large yellow circle is still over a black background"


async def play(url: str, **start: Any) -> tuple[list[dict[str, Any]], bytes]:
    messages: list[dict[str, Any]] = []
    data = b""
    async with connect(url) as socket, asyncio.timeout(120):
        await socket.send(json.dumps({"type": "start", "prompt": FIRST, "seed": 4, **start}))
        async for frame in socket:
            if isinstance(frame, bytes):
                data += frame
                continue
            message = json.loads(frame)
            messages.append(message)
            if message["type"] == "commit" and message["frame"] == 40:
                await socket.send(json.dumps({"type": "prompt", "prompt": SECOND, "sequence": 1}))
            elif message["type"] == "commit" and message["frame"] == 100:
                await socket.send(json.dumps({"type": "stop"}))
    return messages, data


def of(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["type"] == kind]


async def test_a_change_is_seen_in_the_pictures_from_the_frame_that_is_named(server: Server) -> None:
    messages, data = await play(f"ws://127.0.0.1:{server.port}/v1/streams")
    with av.open(io.BytesIO(data)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    commits = of(messages, "commit")
    assert len(frames) == sum(commit["frames"] for commit in commits)
    applied = of(messages, "applied")[1]
    assert of(messages, "acknowledged")[0]["sequence"] == applied["sequence"] == 1
    changed = applied["frame"]
    assert 40 < changed <= 100
    before, after = read_prompt(FIRST), read_prompt(SECOND)
    assert before is not None
    assert after is not None
    assert "colour" in score_video(frames[:40], before).found()
    assert "colour" in score_video(frames[-16:], after).found()
    assert "colour" not in score_video(frames[:40], after).found()
    assert of(messages, "done")[0]["reason"] == "stopped"


async def test_a_stream_of_jpegs_that_is_kept_is_a_video_like_any_other(server: Server, studio: Studio) -> None:
    messages, data = await play(f"ws://127.0.0.1:{server.port}/v1/streams", format="jpeg", record=True)
    frames = sum(commit["frames"] for commit in of(messages, "commit"))
    assert data.count(b"\xff\xd8\xff") == frames
    video = studio.client.videos.retrieve(of(messages, "done")[0]["video_id"])
    assert (video.status, video.progress, video.prompt) == ("completed", 100, SECOND)
    content = studio.client.videos.download_content(video.id).read()
    with av.open(io.BytesIO(content)) as container:
        assert sum(1 for _ in container.decode(video=0)) == frames
    studio.client.videos.delete(video.id)
