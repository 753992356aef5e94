"""Unit tests run without Ray: starting it is an error here."""

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest
import ray
from redis.asyncio import Redis

from deployments.api.jobs import JobStore


@pytest.fixture(autouse=True)
def forbid_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `ray.init` raise."""

    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("a unit test started Ray: move it to tests/serve, or give the code a fake")

    monkeypatch.setattr(ray, "init", refuse)


@pytest.fixture
async def jobs_url(valkey_url: str) -> str:
    """URL of an empty database: the job stream is shared by all tenants."""
    url = f"{valkey_url}?db=9"
    redis = Redis.from_url(url)
    await redis.flushdb()
    await redis.aclose()
    return url


@pytest.fixture
async def jobs(jobs_url: str) -> AsyncIterator[JobStore]:
    """A job store without jobs."""
    store = JobStore.connect(jobs_url)
    yield store
    await store.close()
