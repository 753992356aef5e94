"""Schemathesis over the OpenAPI document, against the real app on a real socket: whatever the document allows or
forbids, no answer is a server error, and every answer is one that the document names.
"""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.services import ApiSettings
from deployments.serve import free_port
from tests.unit.api.conftest import Forgotten, tiny_limits

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def make_app(url: str, folder: str) -> FastAPI:
    jobs = JobStore.connect(url, JobStoreConfig(max_unfinished_jobs=10**6))
    return create_api(ApiSettings(limits=tiny_limits()), jobs, ArtifactStore(folder), forget_source=Forgotten())


DOCUMENT = schemathesis.openapi.from_dict(make_app("redis://nowhere", "nowhere").openapi())
OPERATIONS: list[Any] = [found.ok() for found in DOCUMENT.get_all_operations() if isinstance(found, Ok)]


@pytest.fixture(scope="module")
def base_url(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the app from a thread; it has an event loop of its own, as its Redis client must."""
    app, port = make_app(f"{valkey_url}?db=11", str(tmp_path_factory.mktemp("artifacts"))), free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_documented(operation: Any, base_url: str) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any) -> None:
        case.call_and_validate(base_url=base_url, checks=CHECKS, timeout=30)

    holds()
