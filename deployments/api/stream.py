"""Send a long video while it is being made: its pieces in order, each as soon as it is stored.

A viewer may come at any time and gets the video from its beginning. Knows nothing about how pieces are made.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoStatus

POLL_S: Final = 0.1


class StreamBroken(Exception):
    """The video will not be finished; the connection is cut, so that no player takes the part for the whole."""


async def stream_fragments(
    jobs: JobStore, artifacts: ArtifactStore, *, tenant: str, video_id: str
) -> AsyncIterator[bytes]:
    """Yield the pieces until the video is complete; raises StreamBroken when it fails, is deleted or expires."""
    number = 0
    while True:
        job = await jobs.get(tenant, video_id)
        if job is None:
            raise StreamBroken(f"{video_id} was deleted or has expired")
        while number < job.num_fragments:
            fragment = await asyncio.to_thread(artifacts.fragment, tenant, video_id, number)
            if fragment is None:
                raise StreamBroken(f"fragment {number} of {video_id} is gone")
            yield fragment
            number += 1
        if job.status is VideoStatus.COMPLETED:
            return
        if job.status.is_final:
            raise StreamBroken(f"{video_id} failed after {number} pieces")
        await asyncio.sleep(POLL_S)
