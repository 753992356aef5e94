"""Clients that keep asking until they know what became of their job, and an oracle that knows what they should get.

A retried POST carries its Idempotency-Key, so whatever breaks there is one job a request. Clips are compared by
content: one computed in full with the clip of a server that nothing was done to, a hit with the first hit of the same
source and plan.
"""

import dataclasses
import enum
import hashlib
import random
import threading
import time
import uuid
from collections.abc import Hashable, Mapping
from typing import Any, Final

import httpx

PATIENCE_S: Final = 180.0
"""After which a job that is not final counts as lost."""
CALL_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.2
HONEST_FAILURES: Final = frozenset({"interrupted", "storage_failed", "worker_lost"})
"""What a job may say when its worker, router or files were taken from it; anything else is a fault of ours."""

PROMPTS: Final = (
    "a large red circle moves right over a black background",
    "a large blue circle moves right over a black background",
    "a small green square rises over a grey background",
    "a small green square falls over a grey background",
    "a red star rests over a white background",
)
_PLAN: Final = ("source_id", "k1", "k2", "region_phrase", "steps_computed", "token_share")
"""What a hit's clip depends on beside prompt and seed."""
SHORTEST: Final = {"num_frames": 5, "num_inference_steps": 4, "size": "64x64"}


class End(enum.StrEnum):
    """What became of a request."""

    COMPLETED = "completed"
    FAILED = "failed"
    """With a reason that is true of the fault."""
    DELETED = "deleted"
    REFUSED = "refused"
    """Never taken, and its client told so for as long as it was patient."""
    LOST = "lost"
    """Gone, or never final."""
    WRONG = "wrong"
    """Completed with another clip than it should be, or failed with a reason that is not true."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One request and its end."""

    end: End
    video_id: str | None = None
    detail: str = ""
    digest: str | None = None


class Oracle:
    """Knows the clips; shared by all customers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, str] = {}

    def judge(self, body: Mapping[str, Any], reuse: Mapping[str, Any], digest: str) -> str:
        """Give what is wrong with a clip, or nothing; the first of its kind is the measure of the others."""
        key: tuple[Hashable, ...] = (body["prompt"], body["seed"])
        if reuse["hit"]:
            key += tuple(reuse[name] for name in _PLAN)
        with self._lock:
            known = self._known.setdefault(key, digest)
        return "" if known == digest else f"{key} gave {digest[:12]} and before {known[:12]}"


class Customer:
    """Runs requests one after the other."""

    def __init__(self, url: str, oracle: Oracle, *, seed: int) -> None:
        self._http = httpx.Client(base_url=url, timeout=CALL_TIMEOUT_S)
        self._oracle = oracle
        self._draw = random.Random(seed)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def random_body(self) -> dict[str, Any]:
        """Draw a request; half of them may reuse others' latents."""
        reuse = self._draw.choice(("off", "chorus", "chorus", "exact"))
        return {"prompt": self._draw.choice(PROMPTS), "seed": self._draw.randrange(3), "reuse": reuse, **SHORTEST}

    def run(self, body: Mapping[str, Any], *, delete: bool = False) -> Outcome:
        """Ask for a clip and follow it to its end; or delete it on the way, and see that it stays deleted."""
        deadline = time.monotonic() + PATIENCE_S
        job = self._post(body, deadline)
        if job is None:
            return Outcome(end=End.REFUSED)
        if delete:
            return self._delete(job["id"], deadline)
        while job["status"] in ("queued", "in_progress"):
            if time.monotonic() > deadline:
                return Outcome(end=End.LOST, video_id=job["id"], detail=f"still {job['status']}")
            time.sleep(0.05)
            answer = self._ask("GET", f"/v1/videos/{job['id']}", deadline)
            if answer is None or answer.status_code == 404:
                return Outcome(end=End.LOST, video_id=job["id"], detail="the record is gone")
            job = answer.json()
        if job["status"] == "failed":
            code = job["error"]["code"]
            end = End.FAILED if code in HONEST_FAILURES else End.WRONG
            return Outcome(end=end, video_id=job["id"], detail=f"{code}: {job['error']['message']}")
        return self._check(body, job, deadline)

    def check_again(self, body: Mapping[str, Any], video_id: str) -> Outcome:
        """Fetch a clip that was finished a while ago, and judge it."""
        deadline = time.monotonic() + PATIENCE_S
        answer = self._ask("GET", f"/v1/videos/{video_id}", deadline)
        if answer is None or answer.status_code == 404:
            return Outcome(end=End.LOST, video_id=video_id, detail="the record of a finished job is gone")
        return self._check(body, answer.json(), deadline)

    def _check(self, body: Mapping[str, Any], job: Mapping[str, Any], deadline: float) -> Outcome:
        """Fetch a finished clip and judge it."""
        answer = self._ask("GET", f"/v1/videos/{job['id']}/content", deadline)
        if answer is None or answer.status_code == 404:
            return Outcome(end=End.LOST, video_id=job["id"], detail="the file is gone")
        digest = hashlib.sha256(answer.content).hexdigest()
        fault = self._oracle.judge(body, job["reuse"], digest)
        end = End.WRONG if fault else End.COMPLETED
        return Outcome(end=end, video_id=job["id"], detail=fault, digest=digest)

    def _post(self, body: Mapping[str, Any], deadline: float) -> dict[str, Any] | None:
        headers = {"idempotency-key": uuid.uuid4().hex}
        answer = self._ask("POST", "/v1/videos", deadline, json=body, headers=headers)
        if answer is None:
            return None
        if answer.status_code != 200:
            raise RuntimeError(f"a good request was answered with {answer.status_code}: {answer.text}")
        job: dict[str, Any] = answer.json()
        return job

    def _delete(self, video_id: str, deadline: float) -> Outcome:
        time.sleep(self._draw.random() * 0.5)
        self._ask("DELETE", f"/v1/videos/{video_id}", deadline)
        answer = self._ask("GET", f"/v1/videos/{video_id}", deadline)
        if answer is None or answer.status_code != 404:
            return Outcome(end=End.WRONG, video_id=video_id, detail="deleted, and still there")
        return Outcome(end=End.DELETED, video_id=video_id)

    def _ask(self, method: str, path: str, deadline: float, **options: Any) -> httpx.Response | None:
        """Repeat a call until it is answered by the API itself; None when patience has run out.

        404 of a route that is not there comes from Serve's proxy while the API restarts, and is no answer.
        """
        while time.monotonic() < deadline:
            try:
                answer = self._http.request(method, path, **options)
            except httpx.HTTPError:
                time.sleep(RETRY_S)
                continue
            is_ours = answer.status_code == 404 and answer.headers.get("content-type") == "application/json"
            if answer.status_code < 400 or is_ours or answer.status_code in (400, 401, 409, 422):
                return answer
            time.sleep(RETRY_S)
        return None
