"""Tell a tenant's own server that a video is finished or has failed: signed, repeated until it is taken.

Signed as Standard Webhooks say, so `client.webhooks.verify_signature` of the official client checks it. A delivery is
kept in Redis until it is taken or given up; one that a dead sender had begun is sent again, under the same
`webhook-id`.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from typing import Final

import httpx
from redis.exceptions import RedisError

from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoJob, VideoStatus
from deployments.api.webhook_store import SECRET_PREFIX, Webhook, WebhookStore
from deployments.metrics import Metrics, Sample

logger = logging.getLogger(__name__)

BACKOFF_S: Final = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0)
"""Until the second attempt, the third, and so on; after the last the delivery is given up."""
TIMEOUT_S: Final = 10.0
_GONE: Final = 410


class WebhookReporter:
    """Schedules a delivery for each ended job of a tenant that has a webhook."""

    def __init__(self, hooks: WebhookStore, clock: Callable[[], float] = time.time) -> None:
        self._hooks, self._clock = hooks, clock

    async def report(self, job: VideoJob) -> None:
        """Schedule the delivery of one job."""
        if await self._hooks.get(job.tenant) is not None:
            await self._hooks.schedule(job.tenant, job.id, at=self._clock())


class WebhookSender:
    """Makes deliveries as they are due."""

    def __init__(
        self, hooks: WebhookStore, jobs: JobStore, metrics: Metrics, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._hooks, self._jobs, self._metrics, self._clock = hooks, jobs, metrics, clock
        self._http = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)

    async def run(self, *, period_s: float = 1.0) -> None:
        """Send for ever."""
        while True:
            try:
                sent = await self.send_due()
            except (RedisError, OSError) as error:
                logger.warning("webhooks could not be read, trying again: %s", error)
                sent = 0
            if not sent:
                await asyncio.sleep(period_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send_due(self) -> int:
        """Make the deliveries that are due; gives their number."""
        due = await self._hooks.begin_due(self._clock())
        await asyncio.gather(*(self._send(*each) for each in due))
        return len(due)

    async def _send(self, tenant: str, video_id: str, attempts: int) -> None:
        hook, job = await self._hooks.get(tenant), await self._jobs.get(tenant, video_id)
        if hook is not None and job is not None:
            status = await self._post(hook, job)
            is_taken = status is not None and 200 <= status < 300
            is_over = is_taken or status == _GONE or attempts >= len(BACKOFF_S)
            if not is_over:
                at = self._clock() + BACKOFF_S[attempts]
                await self._hooks.schedule(tenant, video_id, attempts=attempts + 1, at=at)
            outcome = "delivered" if is_taken else "given_up" if is_over else "retried"
            self._metrics.record([Sample("reprise_webhooks_total", 1, (outcome,))])
            if not is_taken:
                logger.warning("webhook of %s: %s after %d attempts, %s", video_id, status, attempts + 1, outcome)
        await self._hooks.drop(tenant, video_id, attempts)

    async def _post(self, hook: Webhook, job: VideoJob) -> int | None:
        body = event_of(job)
        headers = sign(hook.secret, f"evt_{job.id}", int(self._clock()), body)
        try:
            answer = await self._http.post(hook.url, content=body, headers=headers)
        except httpx.HTTPError as error:
            logger.info("webhook of %s gave no answer: %s", job.id, type(error).__name__)
            return None
        return answer.status_code


def event_of(job: VideoJob) -> bytes:
    """Write the event of an ended job; what it made is fetched by its id."""
    kind = "video.completed" if job.status is VideoStatus.COMPLETED else "video.failed"
    event = {
        "id": f"evt_{job.id}",
        "object": "event",
        "created_at": int(job.ended_at or job.created_at),
        "type": kind,
        "data": {"id": job.id},
    }
    return json.dumps(event).encode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Give the headers of a message: HMAC-SHA256 over id, time and body, as Standard Webhooks say."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signature = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }
