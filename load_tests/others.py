"""Users beside those whose clips are counted: one who deletes what it has asked for, one who watches a live stream.

What they find goes into Locust's statistics and into the tally of the run. Knows nothing about what a good result is.
"""

import dataclasses
import json
import random
import time
from typing import Any, ClassVar, Final

import gevent  # type: ignore[import-untyped]
from locust import FastHttpUser, User, constant, task
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

MOST_WAIT_S: Final = 3.0
CHANGES: Final = 3
"""Of the prompt, in one stream."""
STREAM_TIMEOUT_S: Final = 60.0
PROMPTS: Final = (
    "a large red circle moves right over a black background",
    "a small green square rises over a grey background",
    "a blue star rests over a white background",
)


@dataclasses.dataclass(kw_only=True, slots=True)
class Tally:
    """What the others have seen."""

    cancelled: int = 0
    cancel_faults: int = 0
    """Jobs that were there after their delete, or could not be deleted."""
    streams: int = 0
    stream_changes: int = 0
    stream_faults: int = 0
    """Streams that broke, or in which a change was never seen; being refused for want of room is none."""
    streams_refused: int = 0


class Canceller(FastHttpUser):  # type: ignore[misc]  # locust ships no types that mypy can follow
    """Asks for a clip, thinks better of it, and sees that it is gone."""

    host = "http://127.0.0.1:8000"
    wait_time = constant(1)
    tally: ClassVar[Tally] = Tally()

    @task  # type: ignore[untyped-decorator]
    def change_mind(self) -> None:
        """Post, wait a moment, delete, look."""
        body = {"prompt": random.choice(PROMPTS), "reuse": "off"}
        posted = self.client.post("/v1/videos", json=body, name="/v1/videos (to be deleted)")
        if posted.status_code != 200:
            return  # refused: nothing to delete
        path = f"/v1/videos/{posted.json()['id']}"
        gevent.sleep(random.random() * MOST_WAIT_S)
        deleted = self.client.delete(path, name="/v1/videos/{id}")
        with self.client.get(path, name="/v1/videos/{id} (deleted)", catch_response=True) as left:
            if deleted.status_code == 200 and left.status_code == 404:
                left.success()
                self.tally.cancelled += 1
            else:
                left.failure(f"DELETE gave {deleted.status_code}, then GET {left.status_code}")
                self.tally.cancel_faults += 1


class Streamer(User):  # type: ignore[misc]  # locust ships no types that mypy can follow
    """Watches a live stream and changes its prompt while it plays."""

    host = "http://127.0.0.1:8000"
    wait_time = constant(1)
    tally: ClassVar[Tally] = Tally()

    @task  # type: ignore[untyped-decorator]
    def watch(self) -> None:
        """Play one stream from its start to its stop."""
        url = self.host.replace("http", "ws", 1) + "/v1/streams"
        begin = time.perf_counter()
        try:
            with connect(url, open_timeout=10) as socket:
                self._play(socket, begin)
        except (OSError, WebSocketException, RuntimeError, TimeoutError) as error:
            self.tally.stream_faults += 1
            self._note("broken", begin, RuntimeError(f"{type(error).__name__}: {error}"))

    def _play(self, socket: ClientConnection, begin: float) -> None:
        _say(socket, type="start", prompt=PROMPTS[0])
        first = _hear(socket, "commit", "error")
        if first["type"] == "error":
            if first["error"]["code"] != "streams_full":
                raise RuntimeError(first["error"]["message"])
            self.tally.streams_refused += 1
            return
        self.tally.streams += 1
        self._note("first frame", begin)
        for sequence in range(1, CHANGES + 1):
            self._watch_for(socket, 1.0 + random.random() * MOST_WAIT_S)
            asked = time.perf_counter()
            _say(socket, type="prompt", prompt=PROMPTS[sequence % len(PROMPTS)], sequence=sequence)
            while _hear(socket, "applied")["sequence"] < sequence:
                continue
            self.tally.stream_changes += 1
            self._note("change seen", asked)
        _say(socket, type="stop")
        _hear(socket, "done")

    def _watch_for(self, socket: ClientConnection, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            try:
                socket.recv(timeout=left)
            except TimeoutError:
                return

    def _note(self, name: str, begin: float, fault: Exception | None = None) -> None:
        self.environment.events.request.fire(
            request_type="STREAM",
            name=name,
            response_time=1000 * (time.perf_counter() - begin),
            response_length=0,
            exception=fault,
            context={},
        )


def _say(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def _hear(socket: ClientConnection, *kinds: str) -> dict[str, Any]:
    """Read on until a message of one of the kinds comes."""
    end = time.perf_counter() + STREAM_TIMEOUT_S
    while (left := end - time.perf_counter()) > 0:
        frame = socket.recv(timeout=left)
        if isinstance(frame, str):
            message: dict[str, Any] = json.loads(frame)
            if message["type"] in kinds:
                return message
            if message["type"] in ("error", "done"):
                raise RuntimeError(f"waited for {' or '.join(kinds)}, got {frame[:200]}")
    raise TimeoutError(f"no {' or '.join(kinds)} came within {STREAM_TIMEOUT_S:g} s")
