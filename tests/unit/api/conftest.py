"""The real app on a real Valkey database of its own, driven by the official client; a played router does the work."""

import pathlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.limits import ApiLimits
from deployments.api.services import ApiSettings
from tests.unit.api.played_router import PlayedRouter

SIZES = ("720x1280", "1280x720", "1024x1792", "1792x1024")


def tiny_limits() -> ApiLimits:
    """Give limits like those of the bundled model."""
    return ApiLimits(
        model="reprise-tiny",
        sizes=dict.fromkeys(SIZES, (64, 64)),
        default_size="720x1280",
        default_fps=4,
        min_fps=1,
        max_fps=30,
        default_num_frames=17,
        min_num_frames=5,
        max_num_frames=17,
        default_num_inference_steps=50,
        min_num_inference_steps=1,
        max_num_inference_steps=100,
        default_guidance_scale=4.0,
        min_guidance_scale=0.0,
        max_guidance_scale=30.0,
        min_tau=0.65,
        max_prompt_characters=500,
        max_sequence_length=48,
    )


@pytest.fixture
def artifacts(tmp_path: pathlib.Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


class Forgotten:
    """Stands for the retrieval deployment: notes what it is told to forget."""

    def __init__(self) -> None:
        self.videos: list[tuple[str, str | None]] = []

    async def __call__(self, tenant: str, video_id: str | None) -> None:
        self.videos.append((tenant, video_id))


@pytest.fixture
def forgotten() -> Forgotten:
    return Forgotten()


@pytest.fixture
def app(jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten) -> FastAPI:
    settings = ApiSettings(limits=tiny_limits(), poll_after_ms=5, max_body_bytes=100_000)
    return create_api(settings, jobs, artifacts, forget_source=forgotten)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain HTTP client; an exception inside the app becomes the 500 that a real server would send."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://reprise.test") as client:
        yield client


@pytest.fixture
async def client(http: httpx2.AsyncClient) -> AsyncOpenAI:
    """The official client, which checks every answer against its own models."""
    return AsyncOpenAI(
        api_key="unused", base_url="http://reprise.test/v1", http_client=http, _strict_response_validation=True
    )


@pytest.fixture
def router(jobs: JobStore, artifacts: ArtifactStore) -> PlayedRouter:
    return PlayedRouter(jobs, artifacts)
