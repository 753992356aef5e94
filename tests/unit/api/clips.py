"""Requests and jobs for tests of the job store."""

from actors.messages import ClipRequest
from deployments.api.facts import ReuseFacts, effective_parameters
from deployments.api.jobs import JobStore
from deployments.api.video_job import Idempotency, VideoJob

TENANT = "default"

CLIP = ClipRequest(
    prompt="a red ball rises",
    negative_prompt="",
    seed=2**63 - 1,
    num_inference_steps=4,
    guidance_scale=4.0,
    width=64,
    height=64,
    num_frames=17,
    fps=4,
    canvas_width=720,
    canvas_height=1280,
)
FACTS = ReuseFacts(effective=effective_parameters(CLIP, max_sequence_length=48))


async def add_job(
    store: JobStore,
    *,
    tenant: str = TENANT,
    key: str | None = None,
    fingerprint: str = "same",
    work_s: float = 0.0,
    deadline_s: float | None = None,
) -> VideoJob:
    """Queue a clip."""
    idempotency = None if key is None else Idempotency(key=key, fingerprint=fingerprint)
    return await store.create(
        tenant,
        CLIP,
        model="reprise-tiny",
        reuse=FACTS,
        idempotency=idempotency,
        work_s=work_s,
        deadline_s=deadline_s,
    )
