"""Keep what a live stream has shown as a finished video, with the files that every video has.

Knows nothing about how streams are made.
"""

import asyncio
import io

import av

from actors.engines.media import MediaWriter
from actors.live_messages import Recording
from actors.messages import ClipRequest
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import ReuseFacts, effective_parameters
from deployments.api.jobs import JobStore
from deployments.api.limits import canvas_of
from reprise.chorus.plan import ReuseMode


async def keep_recording(
    recording: Recording, jobs: JobStore, artifacts: ArtifactStore, *, size: str, max_sequence_length: int
) -> str:
    """Store a recording, on a canvas of a size of the API, and give its video's id; raises what the stores raise."""
    canvas_width, canvas_height = canvas_of(size)
    files = await asyncio.to_thread(rewrite, recording, canvas_width, canvas_height)
    spec, facts = recording.spec, recording.facts

    async def put_files(video_id: str) -> None:
        for name, data in files.items():
            await asyncio.to_thread(artifacts.put_bytes, spec.tenant, video_id, Variant(name), data)

    request = ClipRequest(
        prompt=spec.prompt,
        negative_prompt="",
        seed=spec.seed,
        num_inference_steps=facts.num_inference_steps,
        guidance_scale=facts.guidance_scale,
        width=facts.width,
        height=facts.height,
        num_frames=recording.num_frames,
        fps=facts.fps,
        canvas_width=canvas_width,
        canvas_height=canvas_height,
        reuse=ReuseMode.OFF,
    )
    reuse = ReuseFacts(effective=effective_parameters(request, max_sequence_length=max_sequence_length))
    job = await jobs.add_finished(spec.tenant, request, model=facts.model, reuse=reuse, put_files=put_files)
    return job.id


def rewrite(recording: Recording, canvas_width: int, canvas_height: int) -> dict[str, bytes]:
    """Turn fragments into the files of a finished video, frame by frame."""
    with (
        av.open(io.BytesIO(recording.mp4)) as container,
        MediaWriter(
            fps=recording.facts.fps,
            canvas_width=canvas_width,
            canvas_height=canvas_height,
            num_frames=recording.num_frames,
        ) as writer,
    ):
        for frame in container.decode(video=0):
            writer.add(frame.to_ndarray(format="rgb24")[None])
        return writer.finish()
